"""`hf-efficient train` whose processes come to harm: they run this module in the place of ``hf_efficient.train``.

``PLANTED`` says which: ``RANK:STEP:TIMES:HARM``; ``PLANTED_MARKS`` names a folder that counts how often it was done;
``PLANTED_SLEEP`` is so many seconds that every forward takes longer.
"""

import functools
import os
import signal
import sys
import time
from pathlib import Path

__all__ = ["do_harm"]

_SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM}


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
            if harm == "memory":
                import torch

                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            raise IndexError("planted")


def _train() -> int:
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
