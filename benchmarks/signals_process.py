"""`hf-efficient train` that waits in a phase until it was asked to stop: ``signals.py`` runs this module in its place.

``SIGNALS_PHASE`` names the phase, in which rank 0, after two steps, makes the file ``in`` in the folder
``SIGNALS_MARKS``. It stays there for half a second after there is a file ``asked``; before the training (``start``) for
a minute, since a signal ends the run in it.
"""

import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEFORE, AFTER = "start", ("optimizer", "log")
PHASES = ("data", "forward", "backward", "evaluation", "save")


def _before(owner: Any, name: str, action: Callable[[Any], object]) -> None:
    run = getattr(owner, name)

    @functools.wraps(run)
    def stays(*arguments: Any, **options: Any) -> Any:
        action(arguments[0] if arguments else None)
        return run(*arguments, **options)

    setattr(owner, name, stays)


def stay_in(phase: str, marks: Path) -> None:
    """Wait there once."""
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from transformers import Trainer

    from hf_efficient.launch import build

    trainers: list[Any] = []

    def stay(_: Any) -> None:
        begun = phase == BEFORE or (trainers and trainers[0].state.global_step >= 2)
        if begun and os.environ.get("RANK", "0") == "0" and not (marks / "in").exists():
            (marks / "in").touch()
            while not (marks / "asked").exists():
                time.sleep(0.01)
            time.sleep(60 if phase == BEFORE else 0.5)

    _before(Trainer, "training_step", trainers.append)
    places = {
        BEFORE: (build, "load_base"),
        "data": (Trainer, "get_batch_samples"),
        "forward": (Trainer, "compute_loss"),
        "backward": (Accelerator, "backward"),
        "optimizer": (AcceleratedOptimizer, "step"),
        "log": (Trainer, "log"),
        "evaluation": (Trainer, "prediction_step"),
        "save": (Trainer, "_save_rng_state"),
    }
    _before(*places[phase], stay)


def _launch() -> None:
    from hf_efficient.cli.app import main
    from hf_efficient.launch import command

    command.accelerate_command = functools.partial(command.accelerate_command, module="signals_process")
    main()


def _train() -> int:
    stay_in(os.environ["SIGNALS_PHASE"], Path(os.environ["SIGNALS_MARKS"]))
    from hf_efficient.train import main

    return main()


if __name__ == "__main__":
    if "HF_EFFICIENT_STATUS_FILE" not in os.environ:
        _launch()
    sys.exit(_train())
