"""FLOPs of a training step, counted product by product, LoRA-correct.

A product of ``tokens x inputs`` with ``inputs x outputs`` is ``2 * tokens * inputs * outputs`` FLOPs: a multiplication
and an addition per term (torch's ``FlopCounterMode`` counts the same). Its backward has two products of that size:

- the gradient of its input, computed where something before it is trained;
- the gradient of its weight, computed where the weight is trained.

So a trained model costs 6 FLOPs per parameter and token, and one with frozen weights about 4. Below the first trained
parameter autograd asks for no gradient, and products cost their forward alone.

Not counted: norms, activations, softmax, rotary embeddings, loss, dropout, optimizer, and unpacking 4-bit weights:
vector operations, below a percent.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from hf_efficient.estimate.model_shape import Linear, ModelShape, Trained, head_linear, linears_of_layer


class Amounts(NamedTuple):
    """What FLOPs are linear in. ``pairs``: of query and key in a layer, by its sliding window, or None without one."""

    tokens: int
    pairs: Mapping[int | None, int]
    head_tokens: int


def causal_pairs(lengths: Mapping[int, int], window: int | None = None) -> int:
    """Pairs of query and key that causal attention needs. Token ``i`` (from 1) of a document attends to itself and all
    before it, ``i`` keys, or ``min(i, window)`` under a sliding window (transformers counts the token itself as one of
    the window's). A document of ``n`` tokens thus needs ``n (n + 1) / 2`` pairs, or with ``n > window``:
    ``window (window + 1) / 2 + (n - window) * window``. ``lengths``: tokens of a document to how many are that long."""
    total = 0
    for length, count in lengths.items():
        seen = length if window is None else min(length, window)
        total += count * (seen * (seen + 1) // 2 + (length - seen) * seen)
    return total


Checkpointing = Literal["none", "non_reentrant", "reentrant"]
"""Activation checkpointing of whole decoder layers: torch's two ways (transformers' default is non-reentrant)."""


@dataclass(frozen=True)
class StepFlops:
    """FLOPs by purpose, which add up over layers, micro-batches and steps; ``recompute`` is of the backward."""

    forward: int = 0
    input_gradient: int = 0
    weight_gradient: int = 0
    recompute: int = 0

    @property
    def total(self) -> int:
        return self.forward + self.input_gradient + self.weight_gradient + self.recompute

    def __add__(self, other: StepFlops) -> StepFlops:
        return StepFlops(*map(operator.add, vars(self).values(), vars(other).values()))


def linear_flops(
    linear: Linear, tokens: int, *, input_gradient: bool, weight_gradient: bool, rank: int = 0
) -> StepFlops:
    """A projection and its adapter. With ``f = 2 * tokens * active * inputs * outputs``: forward ``f``, each gradient
    that is asked for another ``f``. An adapter of rank ``r`` adds ``x A`` (``a = 2 * tokens * inputs * r``) and
    ``(x A) B`` (``b = 2 * tokens * r * outputs``): forward ``a + b``; both weight gradients, ``a + b``; the gradient of
    ``x A``, ``b``, always, for A lies below it; and that of ``x``, ``a``, where it is asked for."""
    base = 2 * tokens * linear.active * linear.inputs * linear.outputs
    down, up = 2 * tokens * linear.inputs * rank, 2 * tokens * rank * linear.outputs
    return StepFlops(
        forward=base + down + up,
        input_gradient=up + (base + down if input_gradient else 0),
        weight_gradient=down + up + (base if weight_gradient else 0),
    )


def attention_flops(features: int, pairs: int, scores_gradient: tuple[bool, bool], values_gradient: bool) -> StepFlops:
    """Scores and weighted values of one layer. Each pair of query and key costs ``2 * features`` for its score and as
    much for weighing the value, over all query heads (shared key heads are repeated, not saved). The backward of the
    scores computes the query's gradient, the key's, or both; that of the weighing the value's, and the scores'."""
    product = 2 * features * pairs
    products = sum(scores_gradient) + any(scores_gradient) + values_gradient
    return StepFlops(forward=2 * product, input_gradient=products * product)


def pass_flops(
    shape: ModelShape,
    trained: Trained,
    amounts: Amounts,
    *,
    checkpointing: Checkpointing | None = None,
    checkpointed_layers: Collection[int] | None = None,
    head_recomputed: bool = False,
) -> StepFlops:
    """One forward and backward. ``checkpointing``: None asks for the model's FLOPs, without a gradient only for it."""
    total = StepFlops()
    # A gradient that is only asked for so that checkpointing works is computed, but not needed.
    flows = trained.embedding or (trained.input_gradient and checkpointing is not None)
    for layer in range(shape.layers):
        way = checkpointing if checkpointed_layers is None or layer in checkpointed_layers else None
        flops, flows = _layer(shape, trained, layer, amounts, flows, way)
        total += flops
    tokens, rank = amounts.head_tokens, trained.head_rank
    head = linear_flops(head_linear(shape), tokens, input_gradient=flows, weight_gradient=trained.head, rank=rank)
    return total + head + StepFlops(recompute=head.forward if head_recomputed else 0)


def _layer(
    shape: ModelShape, trained: Trained, layer: int, amounts: Amounts, flows: bool, checkpointing: Checkpointing | None
) -> tuple[StepFlops, bool]:
    """One layer, in the order of its computation, and whether its output asks for a gradient (``flows``: its input)."""
    walk = _Walk(linears_of_layer(shape, layer), trained.ranks_of_layer(layer), trained.everything, amounts.tokens)
    if shape.fused:
        queries = keys = values = walk.through("qkv_proj", flows)
    else:
        queries, keys, values = (walk.through(name, flows) for name in ("q_proj", "k_proj", "v_proj"))
    pairs = amounts.pairs[shape.windows[layer]]
    walk.flops += attention_flops(shape.query_features, pairs, (queries, keys), values)
    flows |= walk.through("o_proj", queries or keys or values)
    flowed = flows
    if shape.is_mixture(layer):
        flowed |= walk.through("router", flows)
        flowed |= walk.through("experts.down_proj", walk.through("experts.gate_up_proj", flows))
    if not shape.is_mixture(layer) or shape.shared_intermediate:
        ups = ("gate_up_proj",) if shape.fused else ("gate_proj", "up_proj")
        asked = [walk.through(name, flows) for name in ups]
        flowed |= walk.through("down_proj", any(asked))
    if "shared_expert_gate" in walk.linears:
        flowed |= walk.through("shared_expert_gate", flows)
    recompute = 0
    # A layer that nothing flows back through keeps nothing and recomputes nothing.
    if checkpointing in ("non_reentrant", "reentrant") and flowed:
        # Non-reentrant checkpointing stops at the last tensor that the backward needs: a norm after the MLP, or the
        # weighing of experts, needs the layer's last product; a residual addition does not.
        needs_last = shape.normed_outputs or shape.is_mixture(layer)
        stops_early = checkpointing == "non_reentrant" and not needs_last
        recompute = walk.flops.forward - (walk.last if stops_early else 0)
    return walk.flops + StepFlops(recompute=recompute), flowed


@dataclass
class _Walk:
    """Adds up a layer's projections and follows which outputs ask for a gradient."""

    linears: Mapping[str, Linear]
    ranks: Mapping[str, int]
    trained: bool
    tokens: int
    flops: StepFlops = StepFlops()
    last: int = 0

    def through(self, name: str, asks: bool) -> bool:
        linear, rank = self.linears[name], self.ranks.get(name, 0)
        self.flops += linear_flops(linear, self.tokens, input_gradient=asks, weight_gradient=self.trained, rank=rank)
        self.last = 2 * self.tokens * linear.outputs * (rank or linear.active * linear.inputs)
        return asks or self.trained or rank > 0


Kernel = Literal["square", "sdpa", "documents"]
"""Which pairs the attention kernel computes: all of a row (``eager``); all of a row where it is given a mask, else the
causal ones (``sdpa``); those of the documents alone (FlashAttention, FlexAttention)."""

Head = Literal["everywhere", "shifted", "scored"]
"""Which positions the LM head projects: all; all but the last of each row; target tokens alone."""


@dataclass(frozen=True)
class Coefficients:
    """FLOPs per unit of ``Amounts``: ``pass_flops`` is linear in them."""

    per_token: int
    per_pair: Mapping[int | None, int]
    per_head_token: int

    def flops(self, amounts: Amounts) -> int:
        pairs = sum(each * amounts.pairs[window] for window, each in self.per_pair.items())
        return self.per_token * amounts.tokens + self.per_head_token * amounts.head_tokens + pairs

    def __add__(self, other: Coefficients) -> Coefficients:
        windows = {**self.per_pair, **other.per_pair}
        return Coefficients(
            self.per_token + other.per_token,
            {window: self.per_pair.get(window, 0) + other.per_pair.get(window, 0) for window in windows},
            self.per_head_token + other.per_head_token,
        )


def coefficients(shape: ModelShape, trained: Trained, *, forward_alone: bool = False, **how: Any) -> Coefficients:
    """The factors of a model; ``how``: keywords of ``pass_flops``. ``forward_alone`` leaves out the backward."""

    def of(amounts: Amounts) -> int:
        flops = pass_flops(shape, trained, amounts, **how)
        return flops.forward if forward_alone else flops.total

    nothing: dict[int | None, int] = dict.fromkeys(shape.windows, 0)
    return Coefficients(
        per_token=of(Amounts(1, nothing, 0)),
        per_pair={window: of(Amounts(0, {**nothing, window: 1}, 0)) for window in nothing},
        per_head_token=of(Amounts(0, nothing, 1)),
    )


class MicroBatch(NamedTuple):
    """What FLOPs depend on in a batch: padded positions of a row, tokens of documents, target tokens where known."""

    rows: int
    row_length: int
    documents: Sequence[int]
    scored: int | None = None


@dataclass(frozen=True)
class WorkFormula:
    """The FLOPs of a batch; ``always_masked``: SDPA is given a mask for every batch (under ``torch.compile``)."""

    model: Coefficients
    hardware: Coefficients | None
    kernel: Kernel
    head: Head = "everywhere"
    always_masked: bool = False

    @property
    def needs_scored(self) -> bool:
        return self.head != "everywhere"

    def flops(self, batch: MicroBatch) -> tuple[int, int | None] | None:
        """The model's and the hardware's; None where the batch leaves it unknown."""
        if self.needs_scored and batch.scored is None:
            return None
        documents, tokens = Counter(batch.documents), sum(batch.documents)
        pairs = {window: causal_pairs(documents, window) for window in self.model.per_pair}
        head = batch.scored if self.needs_scored and batch.scored is not None else tokens
        model = self.model.flops(Amounts(tokens, pairs, head))
        if self.hardware is None:
            return model, None
        return model, self.hardware.flops(self._computed(batch, self.hardware.per_pair))

    def _computed(self, batch: MicroBatch, windows: Iterable[int | None]) -> Amounts:
        """Padding included; a kernel with a mask fills the square of a row. SDPA needs one for a shorter window."""
        documents, length, positions = Counter(batch.documents), batch.row_length, batch.rows * batch.row_length
        has_mask = sum(batch.documents) < positions or len(batch.documents) > batch.rows
        masked = self.kernel == "square" or (self.kernel == "sdpa" and (self.always_masked or has_mask))
        pairs: dict[int | None, int] = {}
        for window in windows:
            needs_mask = self.kernel == "sdpa" and window is not None and length >= window
            pairs[window] = positions * length if masked or needs_mask else causal_pairs(documents, window)
        head = {"everywhere": positions, "shifted": positions - batch.rows, "scored": batch.scored or 0}[self.head]
        return Amounts(positions, pairs, head)
