"""`hf-efficient train` whose training processes kill themselves: ``kills.py`` runs this module in its place.

``KILLS`` is a JSON list of ``[PLACE, STEP, RANK]``, of which each start of the processes takes the first that was not
done yet; ``KILLS_MARKS`` is the folder in which a process writes, before it dies, which checkpoints were whole then.
"""

import functools
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PLACES = ("forward", "backward", "any moment", "between two files", "half a file", "before the manifest", "pruning")
"""Where a process is killed; ``any moment``: by a timer that nothing in the process knows of."""

_LONGEST_SECONDS = 0.05  # a few steps of the tiny model; a longer wait can outlive the run


def _mark(number: int, place: str, step: int, output: Path) -> Path:
    from hf_efficient.run_dir.checkpoints import checkpoints, fault_of, step_of

    whole = [step_of(path) for path in checkpoints(output) if fault_of(path, hashes=True) is None]
    path = Path(os.environ["KILLS_MARKS"], f"{number}.json")
    path.write_text(json.dumps({"place": place, "step": step, "whole": whole}), encoding="utf-8")
    return path


class Harm:
    """One kill, of this process."""

    def __init__(self, number: int, place: str, step: int) -> None:
        self.number, self.place, self.step = number, place, step
        self.trainer: Any = None
        self.random = random.Random(number)

    def do(self) -> None:
        _mark(self.number, self.place, self.trainer.state.global_step, Path(self.trainer.args.output_dir))
        os.kill(os.getpid(), signal.SIGKILL)

    def is_due(self) -> bool:
        return self.trainer is not None and self.trainer.state.global_step >= self.step

    def before(self, owner: Any, name: str, place: str, then: Callable[..., bool] | None = None) -> None:
        """Die before ``owner.name`` runs, once the step is reached; ``then`` does something to the arguments first, and
        says whether it is this call."""
        run = getattr(owner, name)

        @functools.wraps(run)
        def harmed(*args: Any, **kwargs: Any) -> Any:
            if self.place == place and self.is_due() and (then is None or then(*args, **kwargs)):
                self.do()
            return run(*args, **kwargs)

        setattr(owner, name, harmed)


def plant(harm: Harm) -> None:
    """Wait for the moment in each of the places."""
    import torch
    from transformers import Trainer

    from hf_efficient.run_dir import checkpoints as held

    step = Trainer.training_step

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if harm.trainer is None:
            harm.trainer = self
        if harm.place == "any moment" and harm.is_due():
            harm.place = "waits for its timer"
            threading.Timer(harm.random.uniform(0, _LONGEST_SECONDS), _at_any_moment, [harm]).start()
        if harm.place == "backward" and harm.is_due():
            next(one for one in self.model.parameters() if one.requires_grad).register_hook(lambda _: harm.do())
        return step(self, *args, **kwargs)

    def half(state: Any, file: Any, *args: Any, **kwargs: Any) -> bool:
        """Of the optimizer's state, or of another one that is large."""
        if isinstance(state, Mapping) and isinstance(file, (str, os.PathLike)):
            Path(file).write_bytes(os.urandom(1000))
            return True
        return False

    def some(path: Path) -> bool:
        next(one for one in sorted(path.iterdir()) if one.is_file()).unlink()
        return True

    Trainer.training_step = watched  # type: ignore[method-assign]
    harm.before(Trainer, "compute_loss", "forward")
    harm.before(Trainer, "_save_rng_state", "between two files")
    harm.before(torch, "save", "half a file", half)
    harm.before(held, "end_manifest", "before the manifest")
    harm.before(held, "discard", "pruning", some)


def _at_any_moment(harm: Harm) -> None:
    harm.place = "any moment"
    harm.do()


def _train() -> int:
    kills, marks = json.loads(os.environ["KILLS"]), Path(os.environ["KILLS_MARKS"])
    number = len(list(marks.glob("*.json")))
    if number < len(kills) and kills[number][2] == int(os.environ.get("RANK", "0")):
        plant(Harm(number, *kills[number][:2]))
    from hf_efficient.train import main

    return main()


def _launch() -> None:
    from hf_efficient.cli.app import main
    from hf_efficient.launch import command, restart

    restart._FIRST_PAUSE_SECONDS = 0.1
    command.accelerate_command = functools.partial(command.accelerate_command, module="kills_process")
    main()


if __name__ == "__main__":
    if "HF_EFFICIENT_STATUS_FILE" not in os.environ:
        _launch()
    sys.exit(_train())
