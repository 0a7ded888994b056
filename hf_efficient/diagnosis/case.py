"""What the rules see of a run: its account, its settings, and its steps as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_efficient.estimate.percentiles import warm_up_count
from hf_efficient.records import RunAccount
from hf_efficient.records.findings import Cost, Gain
from hf_efficient.records.series import RunSeries

__all__ = ["Case", "Pause", "StepColumns"]

Column = npt.NDArray[np.float64]

FEWEST_STEPS = 8


@dataclass(frozen=True)
class StepColumns:
    """Steps of one rank, a row per optimizer step, in the order written; NaN: not known.

    Attributes:
        segment: number of the ``train()`` call.
        step: the Trainer's number.
        wall_seconds: with evaluation and checkpointing.
        phase_seconds: by phase; 0 where it did not occur.
        device_seconds: by phase on the device; empty without device events.
        micro_batches, rows, processed, non_padding, loss_bearing: sums over the step's micro-batches.
        loader: by name, what is known of the data loader (see ``StepLoader``); empty where nothing is.
        cpu_seconds: CPU time of the process; NaN in a run of one process.
        waited_seconds: by opaque phase, the time in it in which the rank waited for others; empty where it never did.
        loss, learning_rate, grad_norm: as logged.
        peak_allocated_bytes, peak_reserved_bytes, allocation_retries: of the device.
    """

    segment: Column
    step: Column
    wall_seconds: Column
    phase_seconds: Mapping[str, Column]
    device_seconds: Mapping[str, Column]
    micro_batches: Column
    rows: Column
    processed: Column
    non_padding: Column
    loss_bearing: Column
    loader: Mapping[str, Column]
    cpu_seconds: Column
    loss: Column
    learning_rate: Column
    grad_norm: Column
    peak_allocated_bytes: Column
    peak_reserved_bytes: Column
    allocation_retries: Column
    waited_seconds: Mapping[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.step)

    def phase(self, name: str) -> Column:
        """Seconds of a phase, step by step."""
        return self.phase_seconds.get(name, np.zeros(len(self)))

    def own(self, name: str) -> Column:
        """Seconds of a phase, step by step, without those in which it is known that the rank waited for others."""
        waited = self.waited_seconds.get(name)
        return self.phase(name) if waited is None else self.phase(name) - np.nan_to_num(waited)

    @cached_property
    def step_seconds(self) -> Column:
        """Wall without evaluation and checkpointing."""
        return self.wall_seconds - self.phase("evaluation") - self.phase("checkpointing")

    @cached_property
    def compute_seconds(self) -> Column:
        """Forward, backward and what waits for the device in between."""
        named = ("forward", "backward", "device_wait", "forward_backward")
        return np.sum([self.phase(name) for name in named], axis=0)

    @cached_property
    def steady(self) -> npt.NDArray[np.bool_]:
        """Which steps are not of the warm-up of their ``train()`` call."""
        found = np.ones(len(self), dtype=bool)
        for segment in np.unique(self.segment):
            places = np.flatnonzero(self.segment == segment)
            found[places[: warm_up_count(len(places))]] = False
        return found


@dataclass(frozen=True)
class Pause:
    """An evaluation or a save.

    Attributes:
        step: optimizer steps done before it.
        seconds: wall.
    """

    step: int
    seconds: float


@dataclass(frozen=True)
class Case:
    """A run to be diagnosed.

    Attributes:
        directory: the folder of its records, for messages.
        account: where everything went.
        steps: by rank; at most the last that 16 MiB of records hold.
        facts: what the run said of itself, by topic; later processes over earlier ones.
        evaluations, saves: inside and outside the training loop.
        series: over its time; None where only ``run.json`` was kept.
        recipe: its values by dotted key; None without one.
    """

    directory: str
    account: RunAccount
    steps: Mapping[int, StepColumns]
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evaluations: Sequence[Pause] = ()
    saves: Sequence[Pause] = ()
    series: RunSeries | None = None
    recipe: Mapping[str, Any] | None = None

    @property
    def first(self) -> StepColumns | None:
        """The steps of rank 0; None without any."""
        found = self.steps.get(0)
        return found if found is not None and len(found) else None

    @property
    def is_short(self) -> bool:
        """Whether so few steps are recorded that a share of their time says little."""
        return self.account.steps.count < FEWEST_STEPS

    @cached_property
    def loop_seconds(self) -> float:
        """Of the training loop of rank 0, evaluations and saves included."""
        first = self.first
        if first is None:
            return 0.0
        held = float(first.wall_seconds.sum())
        recorded = self.account.steps.count
        return held * recorded / len(first) if recorded > len(first) else held

    def phase_seconds(self, name: str) -> float:
        """Of a phase within the training loop, on rank 0."""
        first = self.first
        if first is None:
            return 0.0
        return float(first.phase(name).sum()) * max(1.0, self.account.steps.count / len(first))

    def argument(self, name: str, default: Any = None) -> Any:
        """A field of the run's ``TrainingArguments``; the default where it is not known."""
        return self.settings("arguments").get(name, default)

    def settings(self, part: str) -> Mapping[str, Any]:
        """A part of the topic ``settings``, as ``callbacks/settings.py`` states it; empty where it is not known."""
        found = self.facts.get("settings", {}).get(part)
        return found if isinstance(found, Mapping) else {}

    @property
    def on_cuda(self) -> bool:
        """Whether it trained on a CUDA device."""
        return self.settings("device").get("type") == "cuda"

    @property
    def is_of_preferences(self) -> bool:
        """Whether it trained on pairs of answers: its arguments are a ``DPOConfig``'s."""
        return self.argument("precompute_ref_log_probs") is not None

    @property
    def can_be_grouped(self) -> bool:
        """Whether examples of like length could be put together, and are not.

        A stream has no sampler that could; and transformers' finds no length in a pair of answers.
        """
        is_stream = bool(self.facts.get("loader", {}).get("iterable"))
        return (
            not is_stream
            and not self.is_of_preferences
            and self.argument("train_sampling_strategy") != "group_by_length"
        )

    def share(self, seconds: float) -> float:
        """Of the training loop's time."""
        return seconds / self.loop_seconds if self.loop_seconds > 0 else 0.0

    def usd(self, seconds: float | None) -> float | None:
        """What so much of the run's time costs; None where its price is not known."""
        price = self.account.money.price_usd_per_hour
        return None if price is None or seconds is None else seconds * price / 3600

    def cost(self, seconds: float | None = None, held_bytes: int | None = None) -> Cost:
        """A cost over the run."""
        return Cost(seconds, held_bytes, self.usd(seconds))

    def gain(self, seconds: float, basis: str, held_bytes: int | None = None) -> Gain:
        """What is gained over the run where so much of the loop's time is saved for the same tokens.

        Args:
            seconds: not more than the loop took.
            basis: how it was predicted.
            held_bytes: of memory, where that is gained too.
        """
        saved = max(0.0, min(seconds, self.loop_seconds))
        return Gain(self.share(saved), saved, held_bytes, self.usd(saved), basis)
