"""A record per optimizer step, and its tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_efficient.records.phases import SCHEMA_VERSION

__all__ = ["StepRecord", "TokenCounts"]


@dataclass(frozen=True)
class TokenCounts:
    """Tokens counted three ways; None where a batch does not tell.

    Attributes:
        processed: positions the model computed, padding included.
        non_padding: positions that are not padding.
        loss_bearing: positions with a label (``labels != -100``; for preference data the completion's
            tokens).
    """

    processed: int | None = None
    non_padding: int | None = None
    loss_bearing: int | None = None


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step on one rank.

    The records of a segment tile its training loop: a step starts where the trailing work of the previous one
    ended, and holds its own data wait and the logging, evaluation and checkpointing that follow its update.
    The first record also holds an evaluation that ran before the first step.

    Attributes:
        segment: number of the ``train()`` call in this file, from 0; a resumed run counts on.
        rank: index of the process.
        step: the Trainer's ``global_step`` after the update, from 1.
        epoch: epochs done after the update; None where the Trainer does not know.
        wall_seconds: host time from start to end of the record.
        started_at_seconds: start of the record, counted from the start of the segment's ``train()`` call.
        phase_seconds: exclusive host seconds per phase that occurred (never ``unattributed``, which is
            derived).
        micro_batches: batches fetched for the step.
        tokens: sums over the step's micro-batches on this rank.
        loss: what the Trainer itself logged after this step (the mean since its last log); None where it did
            not.
    """

    segment: int
    rank: int
    step: int
    epoch: float | None
    wall_seconds: float
    started_at_seconds: float
    phase_seconds: Mapping[str, float]
    micro_batches: int
    tokens: TokenCounts = field(default_factory=TokenCounts)
    loss: float | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def unattributed_seconds(self) -> float:
        """``wall_seconds`` minus the sum of the phases, exact to the nanosecond that the clock counts in."""
        return round(self.wall_seconds - math.fsum(self.phase_seconds.values()), 9)

    def to_json(self) -> dict[str, Any]:
        """The record as strict JSON holds it (a loss that is not finite becomes ``"nan"`` or ``"inf"``)."""
        loss = self.loss if self.loss is None or math.isfinite(self.loss) else str(self.loss)
        return {
            "schema_version": self.schema_version,
            "segment": self.segment,
            "rank": self.rank,
            "step": self.step,
            "epoch": self.epoch,
            "wall_seconds": self.wall_seconds,
            "started_at_seconds": self.started_at_seconds,
            "phase_seconds": dict(self.phase_seconds),
            "unattributed_seconds": self.unattributed_seconds,
            "micro_batches": self.micro_batches,
            "tokens": {
                "processed": self.tokens.processed,
                "non_padding": self.tokens.non_padding,
                "loss_bearing": self.tokens.loss_bearing,
            },
            "loss": loss,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepRecord:
        """The record that ``to_json`` wrote.

        Raises:
            ValueError: a key is missing or of the wrong type, or the record is of a newer schema.
        """
        try:
            version = int(data["schema_version"])
            if version > SCHEMA_VERSION:
                raise ValueError(
                    f"schema_version {version} is newer than {SCHEMA_VERSION}, which is read here: upgrade hf-efficient"
                )
            tokens = data["tokens"]
            return cls(
                segment=int(data["segment"]),
                rank=int(data["rank"]),
                step=int(data["step"]),
                epoch=None if data["epoch"] is None else float(data["epoch"]),
                wall_seconds=float(data["wall_seconds"]),
                started_at_seconds=float(data["started_at_seconds"]),
                phase_seconds={str(name): float(value) for name, value in data["phase_seconds"].items()},
                micro_batches=int(data["micro_batches"]),
                tokens=TokenCounts(tokens["processed"], tokens["non_padding"], tokens["loss_bearing"]),
                loss=None if data["loss"] is None else float(data["loss"]),
                schema_version=version,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a step record: {type(error).__name__}: {error}") from error
