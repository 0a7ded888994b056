"""FLOPs of a training step in a few multiplications.

The FLOPs of a forward and backward (``pass_flops``) are linear in the positions, in the pairs of query and key of each
kind of layer, and in the positions that the LM head projects. The factors follow from the model alone and are worked
out once; a step costs a multiplication for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hf_efficient.estimate.flops import Checkpointing, pass_flops
from hf_efficient.estimate.model_shape import ModelShape
from hf_efficient.estimate.trained import Trained
from hf_efficient.estimate.workload import Amounts, Workload

Kernel = Literal["square", "sdpa", "documents"]
"""Which pairs the attention kernel computes: all of a row (``eager``); all of a row where it is given a mask, else the
causal ones (``sdpa``); those of the documents alone (FlashAttention, FlexAttention)."""

Head = Literal["everywhere", "shifted", "scored"]
"""Which positions the LM head projects: all; all but the last of each row, of which the loss needs those that bear it;
those that bear a loss alone."""


@dataclass(frozen=True)
class Coefficients:
    """FLOPs per unit.

    Attributes:
        per_token: for a position that passes through the layers.
        per_pair: for a pair of query and key, in all layers of a sliding window together.
        per_head_token: for a position that the LM head projects.
    """

    per_token: int
    per_pair: Mapping[int | None, int]
    per_head_token: int

    def flops(self, amounts: Amounts) -> int:
        """FLOPs of these amounts, which hold the pairs of every window."""
        total = self.per_token * amounts.tokens + self.per_head_token * amounts.head_tokens
        for window, each in self.per_pair.items():
            total += each * amounts.pairs[window]
        return total

    def __add__(self, other: Coefficients) -> Coefficients:
        windows = {**self.per_pair, **other.per_pair}
        return Coefficients(
            self.per_token + other.per_token,
            {window: self.per_pair.get(window, 0) + other.per_pair.get(window, 0) for window in windows},
            self.per_head_token + other.per_head_token,
        )


def coefficients(
    shape: ModelShape,
    trained: Trained,
    *,
    checkpointing: Checkpointing | None = None,
    checkpointed_layers: Collection[int] | None = None,
    head_recomputed: bool = False,
    forward_alone: bool = False,
) -> Coefficients:
    """The factors of a model; the arguments are those of ``pass_flops``.

    ``forward_alone``: without the backward, which leaves of ``trained`` the adapters' products.
    """
    windows = tuple(dict.fromkeys(shape.windows))

    def of(amounts: Amounts) -> int:
        flops = pass_flops(
            shape,
            trained,
            amounts,
            checkpointing=checkpointing,
            checkpointed_layers=checkpointed_layers,
            head_recomputed=head_recomputed,
        )
        return flops.forward if forward_alone else flops.total

    nothing = dict.fromkeys(windows, 0)
    return Coefficients(
        per_token=of(Amounts(1, nothing, 0)),
        per_pair={window: of(Amounts(0, {**nothing, window: 1}, 0)) for window in windows},
        per_head_token=of(Amounts(0, nothing, 1)),
    )


class MicroBatch(NamedTuple):
    """What FLOPs depend on in a batch.

    Attributes:
        rows: how many.
        row_length: positions of each, padding included.
        documents: tokens of each document, none of them 0.
        scored: positions whose prediction bears a loss; None where it was not asked for, or is not known.
    """

    rows: int
    row_length: int
    documents: Sequence[int]
    scored: int | None = None


@dataclass(frozen=True)
class WorkFormula:
    """The FLOPs of a batch.

    Attributes:
        model: what the mathematics needs.
        hardware: what is computed; None where that is not known.
        kernel: of the attention.
        head: of the language model.
        always_masked: whether SDPA is given a mask for every batch (under ``torch.compile``).
    """

    model: Coefficients
    hardware: Coefficients | None
    kernel: Kernel
    head: Head = "everywhere"
    always_masked: bool = False

    @property
    def needs_scored(self) -> bool:
        """Whether ``MicroBatch.scored`` must be known."""
        return self.head != "everywhere"

    def flops(self, batch: MicroBatch) -> tuple[int, int | None] | None:
        """The model's and the hardware's; None where the batch does not tell."""
        if self.needs_scored and batch.scored is None:
            return None
        work = self._workload(batch)
        model = self.model.flops(work.needed(self.model.per_pair))
        if self.hardware is None:
            return model, None
        return model, self.hardware.flops(work.computed(self.hardware.per_pair))

    def _workload(self, batch: MicroBatch) -> Workload:
        masked = self.kernel == "square"
        if self.kernel == "sdpa":
            padded = sum(batch.documents) < batch.rows * batch.row_length
            masked = self.always_masked or padded or len(batch.documents) > batch.rows
        head = batch.scored if self.head == "scored" else None
        if self.head == "shifted":
            head = batch.rows * (batch.row_length - 1)
        return Workload(
            documents=Counter(batch.documents),
            rows={batch.row_length: batch.rows},
            masked_square=masked,
            head_tokens=head,
            needed_head_tokens=batch.scored if self.needs_scored else None,
            square_windows=self.kernel == "sdpa",
        )
