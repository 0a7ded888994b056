"""`hf-efficient train` whose processes come to harm: they run this module in the place of ``hf_efficient.train``.

``PLANTED`` says which: ``RANK:STEP:TIMES:HARM``; ``PLANTED_MARKS`` names a folder that counts how often it was done;
``PLANTED_SLEEP`` is so many seconds that every forward takes longer.
``PLANTED_WRITES`` is an error number and a probability, with which writes fail while a checkpoint is saved.
"""

import ctypes
import functools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["do_harm"]

_SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "stop": signal.SIGSTOP}


def do_harm(step: int) -> None:
    """Called before each forward of optimizer step ``step``."""
    time.sleep(float(os.environ.get("PLANTED_SLEEP", "0")))
    rank, at, times, harm = os.environ["PLANTED"].split(":")
    if os.environ.get("RANK", "0") != rank or step != int(at):
        return
    for number in range(int(times)):
        mark = Path(os.environ["PLANTED_MARKS"], f"harm{number}")
        if not mark.exists():
            mark.touch()
            if harm in _SIGNALS:
                os.kill(os.getpid(), _SIGNALS[harm])
                return
            if harm == "sleep":
                time.sleep(600)
            if harm == "unmount":
                subprocess.run(["umount", "-l", os.environ["PLANTED_DISK"]], check=True)
                return
            if harm == "memory":
                import torch

                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            raise IndexError("planted")


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
_saving: set[int] = set()  # threads that write a checkpoint
_kept: list[Any] = []  # callbacks of C


def _fail_writes(number: int, probability: float) -> None:
    """As those of a full or broken disk, by libfiu (see ``failing.c``); the threads of the records are left alone."""
    from hf_efficient.recording.checkpoints import CheckpointWriter

    draw = random.Random(0)
    _kept.append(_CALLBACK(lambda *_: threading.get_ident() in _saving and draw.random() < probability))
    fiu = ctypes.CDLL("libfiu.so.0")
    fiu.fiu_enable_external.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, _CALLBACK]
    for name in (b"write", b"pwrite", b"writev", b"fsync", b"rename"):
        fiu.fiu_enable_external(name, 1, number, 0, _kept[0])

    def in_save(run: Callable[..., Any]) -> Callable[..., Any]:
        def saves(*arguments: Any, **options: Any) -> Any:
            _saving.add(threading.get_ident())
            try:
                return run(*arguments, **options)
            finally:
                _saving.discard(threading.get_ident())

        return saves

    for name in ("save", "_write"):
        setattr(CheckpointWriter, name, in_save(getattr(CheckpointWriter, name)))


def _train() -> int:
    if os.environ.get("PLANTED_WRITES"):
        number, _, probability = os.environ["PLANTED_WRITES"].partition(":")
        _fail_writes(int(number), float(probability))
    if os.environ.get("PLANTED"):
        from transformers import Trainer

        step = Trainer.training_step

        def harmed(self, *arguments, **options):
            do_harm(self.state.global_step + 1)
            return step(self, *arguments, **options)

        Trainer.training_step = harmed
    from hf_efficient.train import main

    return main()


def _launch() -> None:
    from hf_efficient.cli.app import main
    from hf_efficient.launch import command

    command.accelerate_command = functools.partial(command.accelerate_command, module="planted")
    main()


if __name__ == "__main__":
    sys.exit(_train() if "HF_EFFICIENT_STATUS_FILE" in os.environ else _launch())
