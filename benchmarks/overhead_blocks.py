"""One block of steps of one arm, timed by a clock that belongs to none of them.

A block trains a fresh copy of the model with a fresh trainer, and its first steps are not measured. Blocks of a trainer
that records in the background end with that trainer, so that its threads do not run beside another arm's block.

Trainers that take turns, a step each, in one thread: how a difference of a percent is seen on a drifting machine.

Every trainer runs in a greenlet of its own. At the end of each of its optimizer steps it hands over to the next: the
steps that are compared are a second apart, not a minute. A turn holds all that a trainer does from the end of one
step to the end of the next.

Arms in processes of their own, for instrumentation that patches a whole process and cannot be taken off again.

TraceML replaces ``nn.Module.__call__``, ``Tensor.to`` and others for the life of its process, and its launcher starts
the script through torchrun, under which the Trainer wraps the model for one rank of data parallelism. So each arm gets
a fresh process, the arms alternate, and TraceML is compared with what its documentation names as the baseline: the
same launcher with ``--disable-traceml``.

    python overhead_blocks.py CASE ARM SKIP STEPS FILE     trains one block and writes it to FILE as JSON
"""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from greenlet import greenlet
from overhead_cases import Case
from overhead_summary import alternating_orders
from shared import run_to_end, traceml_command, traceml_summary
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.profilers.synchronisations import counted_synchronisations

ARMS = ("plain", "again", "efficient")
"""``transformers.Trainer``; the same once more, for the noise of the measurement; ``EfficientTrainer`` as it comes."""
STEPS_TOGETHER = 10
"""Steps that make one figure; where a log is written every ten, each figure holds one."""


@dataclass(frozen=True)
class Block:
    """What a block took.

    Attributes:
        arm: who trained.
        steps: how many optimizer steps were measured.
        wall_us: microseconds per step: the mean over ten steps; of all these tens the median, so
            that a burst of somebody else's work does not count. All that happens from the end of one step to the end
            of the next does.
        mean_wall_us: microseconds per step, the mean over all of them.
        cpu_us: microseconds of CPU time per step, the mean, of all threads of the process.
        background_cpu_us: of these, what other threads than the training one took; None where torch computes with
            several, which cannot be told apart from those of the instrumentation.
        outside_seconds: what building the trainer and ``train()`` took outside the loop: before its first step ended
            and after its last did; None where trainers take turns.
        threads_left: threads that the block started and that still ran after it.
    """

    arm: str
    steps: int
    wall_us: float
    mean_wall_us: float
    cpu_us: float
    background_cpu_us: float | None
    outside_seconds: float | None
    threads_left: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class StepClock(TrainerCallback):
    """Reads the clocks at the end of every optimizer step.

    On a GPU it waits for the device at the two ends of what is measured, and nowhere between: the steps between
    overlap as they do without it, and their sum is exact.
    """

    def __init__(self, skip: int, steps: int, device: str) -> None:
        """Measure ``steps`` steps, a multiple of ten, after the first ``skip``, at least 1; on ``cpu`` or ``cuda``."""
        if skip < 1 or steps < 1 or steps % STEPS_TOGETHER:
            raise ValueError(f"skip {skip}, steps {steps}: write at least 1, and a multiple of {STEPS_TOGETHER}")
        self._skip, self._last, self._device = skip, skip + steps, device
        self.wall_ns: list[int] = []
        self._cpu_ns: list[tuple[int, int]] = []

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The optimizer has stepped."""
        if self._device == "cuda" and state.global_step in (self._skip, self._last):
            torch.cuda.synchronize()
        self.wall_ns.append(time.perf_counter_ns())
        if state.global_step in (self._skip, self._last):
            self._cpu_ns.append((time.process_time_ns(), time.thread_time_ns()))

    def tens_us(self) -> list[float]:
        """Microseconds per step of each ten measured steps."""
        ends = self.wall_ns[self._skip - 1 :: STEPS_TOGETHER]
        return [(end - start) / STEPS_TOGETHER / 1e3 for start, end in itertools.pairwise(ends)]

    def cpu_us(self) -> tuple[float, float]:
        """Microseconds of CPU time per measured step: of the process, and of the thread that trains."""
        (process_start, thread_start), (process_end, thread_end) = self._cpu_ns
        steps = (self._last - self._skip) * 1e3
        return (process_end - process_start) / steps, (thread_end - thread_start) / steps

    def outside_ns(self, started_ns: int, ended_ns: int) -> int:
        """What of the time between these two readings lies outside all steps but the first."""
        return (ended_ns - started_ns) - (self.wall_ns[-1] - self.wall_ns[0])


def prepared_model(case: Case) -> Any:
    """The model of a case, and this process made ready for its blocks."""
    if case.threads is not None:
        torch.set_num_threads(case.threads)
    with silence():
        model = case.build()
    gc.collect()
    gc.freeze()  # or every collection between blocks walks all that the libraries hold
    return model


def run_block(
    case: Case, arm: str, model: Any, skip: int, steps: int, callbacks: Sequence[TrainerCallback] = ()
) -> Block:
    """Train ``skip + steps`` steps of a copy of the model.

    Args:
        case: how it is trained.
        arm: one of ``ARMS``, or another name for the plain ``Trainer`` under instrumentation from outside.
        model: is copied, so that it stays as it is.
        skip: steps that are not measured.
        steps: steps that are.
        callbacks: more callbacks for the trainer, behind the clock.
    """
    threads = {thread.ident for thread in threading.enumerate()}
    clock = StepClock(skip, steps, case.device)
    with tempfile.TemporaryDirectory() as folder, silence():
        mine = copy.deepcopy(model)
        if case.device == "cuda":
            mine.to("cuda")
            torch.cuda.synchronize()
        gc.collect()
        started_ns = time.perf_counter_ns()
        trainer_of(case, arm, mine, folder, skip + steps, [clock, *callbacks]).train()
        if case.device == "cuda":
            torch.cuda.synchronize()
        ended_ns = time.perf_counter_ns()
    tens = clock.tens_us()
    process_us, thread_us = clock.cpu_us()
    return Block(
        arm=arm,
        steps=steps,
        wall_us=statistics.median(tens),
        mean_wall_us=statistics.mean(tens),
        cpu_us=process_us,
        background_cpu_us=process_us - thread_us if torch.get_num_threads() == 1 else None,
        outside_seconds=clock.outside_ns(started_ns, ended_ns) / 1e9,
        threads_left=tuple(sorted(one.name for one in threading.enumerate() if one.ident not in threads)),
    )


def trainer_of(
    case: Case, arm: str, model: Any, folder: str, steps: int, callbacks: Sequence[TrainerCallback]
) -> Trainer:
    """The trainer of an arm, for so many steps."""
    return _trainer_class(arm)(
        model=model,
        args=_arguments(case, folder, steps),
        train_dataset=_rows(case, steps * case.batch),
        callbacks=list(callbacks),
    )


def _trainer_class(arm: str) -> type[Trainer]:
    if arm != "efficient":
        return Trainer
    from hf_efficient.trainer import EfficientTrainer

    return EfficientTrainer


def _arguments(case: Case, folder: str, steps: int) -> TrainingArguments:
    return TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=case.batch,
        learning_rate=1e-4,
        logging_steps=case.logging_steps,
        save_strategy="no",
        report_to=[],
        dataloader_pin_memory=case.device == "cuda",
        gradient_checkpointing=False,
        **case.arguments,
    )


def _rows(case: Case, count: int) -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(0)
    distinct = torch.randint(3, case.vocabulary, (min(count, 64), case.tokens), generator=generator).tolist()
    rows = [{"input_ids": ids, "attention_mask": [1] * case.tokens, "labels": ids} for ids in distinct]
    return [rows[index % len(rows)] for index in range(count)]


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Progress bars and logs are written, but to nowhere: their cost is there, a terminal's is not."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,  # noqa: PTH123  os.devnull is no path of a file
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


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
        Per arm a ``Block`` for each step; those of the same place were taken within the same seconds. What a log costs
        is thus in one pair of ten, and not in their median.

    Args:
        case: how it is trained, on the CPU: a GPU would go on with one trainer's step in the turn of another.
        arms: of ``overhead_blocks.ARMS``.
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
    return [Block(arm, 1, wall_ns / 1e3, wall_ns / 1e3, cpu_ns / 1e3, None, None, ()) for wall_ns, cpu_ns in turns]


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
_SCRIPT = Path(__file__).resolve()
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


def main() -> None:
    """Train the block that the command line names."""
    from overhead_cases import CASES

    name, arm, skip, steps, result = sys.argv[1:]
    case = CASES[name]
    block = run_block(case, arm, prepared_model(case), int(skip), int(steps))
    Path(result).write_text(json.dumps(block.to_json()), encoding="utf-8")


if __name__ == "__main__":
    main()
