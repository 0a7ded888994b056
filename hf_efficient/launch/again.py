"""A launch that is started again by itself after a crash: how often, after which pause, and after which ends not.

torch's elastic agent, which ``distributed.max_restarts`` asks of several processes, starts the processes of one launch
again. This starts the launch itself, so that it also helps one process, and a launcher that is killed.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_efficient.errors import SetupError
from hf_efficient.recipe.schema import Recipe
from hf_efficient.run_dir.checkpoints import checkpoints, fault_of, step_of
from hf_efficient.text import counted

TRIES = 5  # starts in a row that bring no new checkpoint, after which ``--keep-going`` gives up

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 5.0, 300.0
_FAULTS = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
_AGENT_FLAGS = {"--multi_gpu", "--use_deepspeed", "--use_fsdp"}
"""Of accelerate's launcher: with one of them it starts processes by torch's elastic agent."""
_CRASHES = {1, *(128 + getattr(signal, name).value for name in _FAULTS if hasattr(signal, name))}
"""Exit codes of faults not foreseen and of killed processes; others ended as asked, or are for the user to correct."""


@dataclass
class Starts:
    """``most``: failures that are started again, in a row without a new checkpoint or, with ``in_all``, altogether."""

    directory: Path
    most: int
    in_all: bool = False
    failed: int = 0
    step: int = 0  # of the newest checkpoint after the last failure

    def pause_after(self, code: int) -> float | None:
        """Seconds until the next start; None where there is none."""
        if code not in _CRASHES:
            return None
        whole = (step_of(path) for path in reversed(checkpoints(self.directory)) if fault_of(path) is None)
        newest = next(whole, 0)
        if newest > self.step and not self.in_all:
            self.failed = 0
        self.step = newest
        self.failed += 1
        if self.failed > self.most:
            return None
        return float(min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (self.failed - 1)))

    def words(self, pause: float) -> str:
        where = f"from checkpoint-{self.step}" if self.step else "from the first step"
        kind = "" if self.in_all else " in a row without a new checkpoint"
        tries = f"failure {self.failed} of at most {self.most}{kind}"
        return f"Starting again in {counted(round(pause), 'second')}, {where} ({tries})"


def starts_of(recipe: Recipe, command: Sequence[str], *, keep_going: bool) -> Starts:
    """For ``--keep-going``; without it for ``distributed.max_restarts`` where ``command`` starts one process, without
    an elastic agent. ``SetupError``: several machines, which only their agents can start together."""
    directory = Path(recipe.output_dir).expanduser()
    if not keep_going:
        alone = not _AGENT_FLAGS.intersection(command)
        return Starts(directory, recipe.distributed.max_restarts if alone else 0, in_all=True)
    if recipe.distributed.nodes > 1:
        raise SetupError(
            f"--keep-going: starts the processes of one machine, and distributed.nodes is {recipe.distributed.nodes}. "
            "Write distributed.max_restarts, with which the machines start together."
        )
    return Starts(directory, TRIES)


def next_tail(tail: Sequence[str], recipe: Recipe, step: int) -> list[str]:
    """It resumes, and never replaces. A checkpoint that the recipe names counts until the run has one of its own."""
    kept = [word for word in tail if word not in ("--overwrite", "--resume")]
    if not recipe.train.get("resume_from_checkpoint"):
        return [*kept, "--resume"]
    return [*kept, "train.resume_from_checkpoint=null", "--resume"] if step else [*kept, "--overwrite"]
