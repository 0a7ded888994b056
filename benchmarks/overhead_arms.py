"""How the arms of the overhead are run against each other: step by step in turn, or in a process each.

Trainers that take turns, a step each, in one thread: how a difference of a percent is seen on a drifting machine. Every
trainer runs in a greenlet of its own. At the end of each of its optimizer steps it hands over to the next: the steps
that are compared are a second apart, not a minute. A turn holds all that a trainer does from the end of one step to the
end of the next.

Processes are for instrumentation that patches a whole process and cannot be taken off again. TraceML replaces
``nn.Module.__call__``, ``Tensor.to`` and others for the life of its process, and its launcher starts the script through
torchrun, under which the Trainer wraps the model for one rank of data parallelism. So each arm gets a fresh process,
the arms alternate, and TraceML is compared with what its documentation names as the baseline: the same launcher with
``--disable-traceml``.
"""

import contextlib
import copy
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from greenlet import greenlet
from overhead_blocks import STEPS_TOGETHER, Block, silence, trainer_of
from overhead_cases import Case
from shared import run_to_end, traceml_command, traceml_summary
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.estimate.statistics import alternating_orders

BLOCKS_OF_TURNS = 30


class HandOver(TrainerCallback):
    """Ends the turn of its trainer with each optimizer step."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The optimizer has stepped."""
        around = greenlet.getcurrent().parent
        if around is None:
            raise RuntimeError("HandOver: the trainer does not run in a greenlet; start it by run_turns")
        around.switch()


def run_turns(case: Case, arms: Sequence[str], model: Any, skip: int, steps: int) -> dict[str, list[Block]]:
    """Train a copy of the model by each arm, step by step in turn.

    Returns:
        Per arm about thirty blocks of neighbouring steps; those of the same place were taken within the same seconds.
        What a log costs is in a block's mean, and not in its median.

    Args:
        case: how it is trained, on the CPU: a GPU would go on with one trainer's step in the turn of another.
        arms: of ``ARMS``.
        model: is copied, so that it stays as it is.
        skip: steps of each arm that are not measured, at least 1.
        steps: steps that are, a multiple of ten.

    Raises:
        ValueError: the case is for a GPU, or the steps are not as said.
    """
    if case.device != "cpu" or skip < 1 or steps < STEPS_TOGETHER or steps % STEPS_TOGETHER:
        raise ValueError(f"{case.name} on {case.device}, skip {skip}, steps {steps}: see run_turns")
    turns: dict[str, list[tuple[int, int]]] = {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory() as folder, silence():
        trainings = {arm: _training(case, arm, model, f"{folder}/{arm}", skip + steps) for arm in arms}
        for order in alternating_orders(arms, skip + steps):
            for arm in order:
                wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
                trainings[arm].switch()
                turns[arm].append((time.perf_counter_ns() - wall_ns, time.process_time_ns() - cpu_ns))
        for training in trainings.values():
            training.switch()  # from its last step to its end
    return {arm: _blocks(arm, turns[arm][skip:]) for arm in arms}


def _training(case: Case, arm: str, model: Any, folder: str, steps: int) -> greenlet:
    trainer = trainer_of(case, arm, copy.deepcopy(model), folder, steps, [HandOver()])
    return greenlet(trainer.train)


def _blocks(arm: str, turns: Sequence[tuple[int, int]]) -> list[Block]:
    together = max(1, len(turns) // BLOCKS_OF_TURNS)
    found = []
    for first in range(0, len(turns) - together + 1, together):
        wall, cpu = ([ns / 1e3 for ns in one] for one in zip(*turns[first : first + together], strict=True))
        mean = statistics.fmean(wall)
        found.append(Block(arm, together, statistics.median(wall), mean, statistics.fmean(cpu), None, None, ()))
    return found


@contextlib.contextmanager
def counted_synchronisations() -> Iterator[Counter[str]]:
    """A counter that holds, when the block has ended, ``file:line`` of whoever waited for a CUDA device and how often.
    CUDA's own debug mode warns at waits inside torch (``.item()``, ``nonzero``); calls of ``synchronize`` are counted
    beside it."""
    found: Counter[str] = Counter()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught, contextlib.ExitStack() as undo:
        warnings.simplefilter("always")
        owners: tuple[Any, ...] = (torch.cuda, torch.cuda.Stream, torch.cuda.Event)
        for owner in owners:
            undo.callback(setattr, owner, "synchronize", owner.synchronize)
            owner.synchronize = _counting(owner.synchronize, found)
        undo.callback(torch.cuda.set_sync_debug_mode, before)
        torch.cuda.set_sync_debug_mode("warn")
        yield found
    waits = (one for one in caught if "called a synchronizing CUDA operation" in str(one.message))
    found.update(f"{one.filename}:{one.lineno}" for one in waits)


def _counting(synchronize: Callable[..., Any], found: Counter[str]) -> Callable[..., Any]:
    def counting(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        found[f"{caller.f_code.co_filename}:{caller.f_lineno}"] += 1
        return synchronize(*args, **kwargs)

    return counting


class SynchronisationCount(TrainerCallback):
    """Counts from the end of one optimizer step to the end of a later one.

    Attributes:
        found: ``file:line`` and how often, once the later step has ended.
    """

    def __init__(self, first: int, last: int) -> None:
        """Count the steps after ``first``, up to and with ``last``."""
        self._first, self._last = first, last
        self._counting = contextlib.ExitStack()
        self.found: Counter[str] = Counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Start, or stop."""
        if state.global_step == self._first:
            self.found = self._counting.enter_context(counted_synchronisations())
        elif state.global_step == self._last:
            self._counting.close()


PROCESS_ARMS = ("plain", "efficient", "launcher", "traceml")
"""``Trainer``; ``EfficientTrainer``; ``Trainer`` under ``traceml run --disable-traceml``, and under ``traceml run``."""
_SCRIPT = Path(__file__).resolve().with_name("overhead_blocks.py")
_SECONDS = 1800
_RUN_NAME = "overhead"


def train_in_process(case: str, arm: str, skip: int, steps: int) -> dict[str, Any]:
    """A block in a fresh process, as ``Block.to_json`` gives it; TraceML's also tells ``steps_traced``.

    Raises:
        RuntimeError: the process failed, or TraceML did not trace its steps; tells the end of what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        result, logs = Path(folder, "block.json"), Path(folder, "logs")
        script = [str(_SCRIPT), case, arm, str(skip), str(steps), str(result)]
        command = [sys.executable, *script] if arm in ("plain", "efficient") else _traceml(arm, logs, script)
        returncode, printed = run_to_end(command, folder, _SECONDS)
        if returncode != 0 or not result.is_file():
            raise RuntimeError(f"the process of {arm} ended with {returncode}: {printed[-2000:]}")
        block: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        if arm == "traceml":
            block["steps_traced"] = _steps_traced(logs)
            if block["steps_traced"] != skip + steps:
                raise RuntimeError(f"TraceML traced {block['steps_traced']} of {skip + steps} steps")
        return block


def _traceml(arm: str, logs: Path, script: list[str]) -> list[str]:
    return traceml_command(script, logs, _RUN_NAME, traced=arm == "traceml")


def _steps_traced(logs: Path) -> int:
    """From TraceML's own summary, so that what is called its cost is not that of an instrumentation that is off."""
    summary = traceml_summary(logs, _RUN_NAME)
    return int(summary["step_time"]["metadata"]["training_total_steps"] or 0)
