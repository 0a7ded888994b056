"""One block of steps of one arm, timed by a clock that belongs to none of them.

A block trains a fresh copy of the model with a fresh trainer, and its first steps are not measured. Blocks of a trainer
that records in the background end with that trainer, so that its threads do not run beside another arm's block.

    python overhead_blocks.py CASE ARM SKIP STEPS FILE     trains one block and writes it to FILE as JSON

As a script this is the process of one arm: it imports nothing of hf_efficient but what the arm itself uses.
"""

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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from overhead_cases import Case
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

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


def main() -> None:
    """Train the block that the command line names."""
    from overhead_cases import CASES

    name, arm, skip, steps, result = sys.argv[1:]
    case = CASES[name]
    block = run_block(case, arm, prepared_model(case), int(skip), int(steps))
    Path(result).write_text(json.dumps(block.to_json()), encoding="utf-8")


if __name__ == "__main__":
    main()
