"""FLOPs of a training step, counted product by product, LoRA-correct.

A product of ``tokens x inputs`` with ``inputs x outputs`` is ``2 * tokens * inputs * outputs`` FLOPs: a multiplication
and an addition per term (torch's ``FlopCounterMode`` counts the same). Its backward has two products of that size:

- the gradient of its input, computed where something before it is trained;
- the gradient of its weight, computed where the weight is trained.

So a trained model costs 6 FLOPs per parameter and token, and one with frozen weights about 4. Which gradients the
backward computes follows from where the first trained parameter lies, as autograd decides it: below it nothing asks
for a gradient, and the products there cost their forward alone.

Not counted, as everywhere in the field: norms, activations, softmax, rotary embeddings, the loss, dropout, the
optimizer, and unpacking 4-bit weights. They are additions and multiplications of vectors, below a percent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from hf_efficient.estimate.model_shape import Linear, ModelShape, linears_of_layer
from hf_efficient.estimate.trained import Trained, head_linear
from hf_efficient.estimate.workload import Amounts, Workload

Checkpointing = Literal["none", "non_reentrant", "reentrant"]
"""Activation checkpointing of whole decoder layers: torch's two ways (transformers' default is non-reentrant)."""


@dataclass(frozen=True)
class StepFlops:
    """FLOPs by purpose. They add up: over layers, micro-batches, steps.

    Attributes:
        forward: matrix products of the forward, attention included.
        input_gradient: gradients of activations, attention's included.
        weight_gradient: gradients of weights.
        recompute: products done a second time in the backward.
    """

    forward: int = 0
    input_gradient: int = 0
    weight_gradient: int = 0
    recompute: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.forward + self.input_gradient + self.weight_gradient + self.recompute

    def __add__(self, other: StepFlops) -> StepFlops:
        return StepFlops(
            self.forward + other.forward,
            self.input_gradient + other.input_gradient,
            self.weight_gradient + other.weight_gradient,
            self.recompute + other.recompute,
        )


def linear_flops(
    linear: Linear, tokens: int, *, input_gradient: bool, weight_gradient: bool, rank: int = 0
) -> StepFlops:
    """A projection and its adapter.

    With ``f = 2 * tokens * active * inputs * outputs``: forward ``f``, each gradient that is asked for another ``f``.
    An adapter of rank ``r`` adds ``x A`` (``a = 2 * tokens * inputs * r``) and ``(x A) B`` (``b = 2 * tokens * r *
    outputs``): forward ``a + b``; both weight gradients, ``a + b``; the gradient of ``x A``, ``b``, always, for A lies
    below it; and that of ``x``, ``a``, where it is asked for.

    Hand-worked: 10 tokens, 3 -> 5, rank 2, frozen, input asks for no gradient: f = 300, a = 120, b = 200;
    forward 620, weight gradients 320, input gradients 200. Asked for: input gradients 300 + 120 + 200 = 620.

    Args:
        linear: the projection.
        tokens: positions that pass through it.
        input_gradient: whether its input asks for a gradient.
        weight_gradient: whether its own weight is trained.
        rank: rank of its adapter; 0 without.
    """
    base = 2 * tokens * linear.active * linear.inputs * linear.outputs
    down, up = 2 * tokens * linear.inputs * rank, 2 * tokens * rank * linear.outputs
    return StepFlops(
        forward=base + down + up,
        input_gradient=up + (base + down if input_gradient else 0),
        weight_gradient=down + up + (base if weight_gradient else 0),
    )


def attention_flops(features: int, pairs: int, scores_gradient: tuple[bool, bool], values_gradient: bool) -> StepFlops:
    """Scores and weighted values of one layer.

    Each pair of query and key costs ``2 * features`` for its score and as much for weighing the value, over all query
    heads (shared key heads are repeated, not saved). The backward of the scores computes the query's gradient, the
    key's, or both; that of the weighing computes the value's and, where the scores ask, the weights'.

    Hand-worked: 8 features, 10 pairs: one product is 160; forward 320; all gradients 640.

    Args:
        features: ``heads * head_dim``.
        pairs: pairs of query and key computed.
        scores_gradient: whether queries, and whether keys, ask for a gradient.
        values_gradient: whether values do.
    """
    product = 2 * features * pairs
    products = sum(scores_gradient) + any(scores_gradient) + values_gradient
    return StepFlops(forward=2 * product, input_gradient=products * product)


def training_flops(
    shape: ModelShape, trained: Trained, work: Workload, *, checkpointing: Checkpointing = "none"
) -> tuple[StepFlops, StepFlops]:
    """Forward and backward of the sequences in ``work``.

    Returns:
        The model's FLOPs (what the mathematics needs: no padding, causal pairs within documents alone, nothing twice;
        divide by time and peak for MFU) and the hardware's (what is computed: padding, masked pairs, recompute; HFU).
    """
    windows = frozenset(shape.windows)
    computed, again = work.computed(windows), work.head_recomputed
    return (
        pass_flops(shape, trained, work.needed(windows)),
        pass_flops(shape, trained, computed, checkpointing=checkpointing, head_recomputed=again),
    )


def pass_flops(
    shape: ModelShape,
    trained: Trained,
    amounts: Amounts,
    *,
    checkpointing: Checkpointing | None = None,
    checkpointed_layers: Collection[int] | None = None,
    head_recomputed: bool = False,
) -> StepFlops:
    """One forward and backward.

    Args:
        shape: the model.
        trained: what is trained of it; nothing at all costs the forward alone.
        amounts: the positions and pairs.
        checkpointing: of the activations; None asks for the model's FLOPs, without a gradient that is only asked for
            so that checkpointing works.
        checkpointed_layers: the layers that it is on for; None for all.
        head_recomputed: see ``Workload``.
    """
    total = StepFlops()
    # A gradient that is only asked for so that checkpointing works is computed, but not needed.
    flows = trained.everything or trained.embedding or (trained.input_gradient and checkpointing is not None)
    alike: dict[tuple[int | None, bool, int, bool, Checkpointing], _LayerCost] = {}
    for layer in range(shape.layers):
        window, ranks = shape.windows[layer], trained.ranks_of_layer(layer)
        off = checkpointing is None or (checkpointed_layers is not None and layer not in checkpointed_layers)
        way: Checkpointing = "none" if off or checkpointing is None else checkpointing
        key = (window, shape.is_mixture(layer), id(ranks) if ranks else 0, flows, way)
        if key not in alike:
            alike[key] = _layer(shape, trained, layer, amounts.tokens, amounts.pairs[window], flows, way)
        total += alike[key].flops
        flows = alike[key].flows
    head = linear_flops(
        head_linear(shape),
        amounts.head_tokens,
        input_gradient=flows,
        weight_gradient=trained.everything or trained.head,
        rank=trained.head_rank,
    )
    return total + head + StepFlops(recompute=head.forward if head_recomputed else 0)


@dataclass(frozen=True)
class _LayerCost:
    """FLOPs of a layer, and whether its output asks for a gradient."""

    flops: StepFlops
    flows: bool


def _layer(
    shape: ModelShape,
    trained: Trained,
    layer: int,
    tokens: int,
    pairs: int,
    flows: bool,
    checkpointing: Checkpointing,
) -> _LayerCost:
    """One layer, in the order of its computation; ``flows`` tells whether its input asks for a gradient."""
    walk = _Walk(linears_of_layer(shape, layer), trained.ranks_of_layer(layer), trained.everything, tokens)
    if shape.fused:
        queries = keys = values = walk.through("qkv_proj", flows)
    else:
        queries, keys, values = (walk.through(name, flows) for name in ("q_proj", "k_proj", "v_proj"))
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
        stops_early = checkpointing == "non_reentrant" and not _recomputes_last(shape, layer)
        recompute = walk.flops.forward - (walk.last if stops_early else 0)
    return _LayerCost(walk.flops + StepFlops(recompute=recompute), flowed)


class _Walk:
    """Adds up a layer's projections and follows which outputs ask for a gradient."""

    def __init__(
        self, linears: Mapping[str, Linear], ranks: Mapping[str, int], weights_trained: bool, tokens: int
    ) -> None:
        self.linears = linears
        self.flops = StepFlops()
        self.last = 0
        """FLOPs of the forward's latest product."""
        self._ranks, self._weights_trained, self._tokens = ranks, weights_trained, tokens

    def through(self, name: str, asks: bool) -> bool:
        """A projection whose input asks for a gradient or not; returns whether its output does."""
        linear, rank = self.linears[name], self._ranks.get(name, 0)
        self.flops += linear_flops(
            linear, self._tokens, input_gradient=asks, weight_gradient=self._weights_trained, rank=rank
        )
        self.last = 2 * self._tokens * linear.outputs * (rank or linear.active * linear.inputs)
        return asks or self._weights_trained or rank > 0


def _recomputes_last(shape: ModelShape, layer: int) -> bool:
    """Whether the layer's last product is done again under non-reentrant checkpointing.

    That recompute stops at the last tensor that the backward needs. A norm after the MLP, or the weighing of experts,
    needs the product's result; a plain residual addition needs nothing.
    """
    return shape.normed_outputs or shape.is_mixture(layer)
