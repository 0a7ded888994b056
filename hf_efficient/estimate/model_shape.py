"""The dimensions of a decoder that its parameters and FLOPs follow from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Linear:
    """One matrix product of a layer, ``inputs -> outputs``, by the name of its module.

    Attributes:
        name: the module's own name (``q_proj``).
        inputs: features in.
        outputs: features out.
        bias: whether a bias of ``outputs`` values is added.
        copies: how many weights of this shape the layer holds (the experts of a mixture).
        active: how many of them a token passes through.
        is_module: whether it is a ``torch.nn.Linear``; routers and experts are bare parameters, which an adapter
            on ``all-linear`` does not reach.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    copies: int = 1
    active: int = 1
    is_module: bool = True

    @property
    def parameters(self) -> int:
        """Values held: ``copies * (inputs * outputs + outputs where there is a bias)``."""
        return self.copies * (self.inputs * self.outputs + (self.outputs if self.bias else 0))


@dataclass(frozen=True)
class ModelShape:
    """A causal language model of the Llama kind and its relatives.

    Attributes:
        model_type: the configuration's ``model_type``.
        layers: decoder layers.
        hidden: width of the residual stream.
        intermediate: width of a dense MLP.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: features per head; ``heads * head_dim`` need not be ``hidden``.
        vocabulary: rows of the embedding.
        tied_embeddings: whether the LM head is the embedding itself.
        windows: the sliding window of each layer in tokens; None where a layer sees everything before it.
        qkv_bias: bias on the query, key and value projections.
        output_bias: bias on the attention's output projection.
        mlp_bias: bias on the MLP's projections.
        qk_norm: features of the norm on queries and of that on keys; (0, 0) without.
        norms_per_layer: norms of ``hidden`` features in a layer: 2, or 4 where the blocks' outputs are normed too.
        normed_outputs: whether the MLP's output passes a norm before it joins the residual stream.
        fused: whether query, key and value, and gate and up, are one module each.
        experts: experts of a mixture layer; None for a dense model.
        active_experts: experts that a token passes through.
        expert_intermediate: width of an expert.
        shared_intermediate: width of the expert that every token passes through; None without.
        dense_layers: indices of the layers of a mixture model that have a dense MLP.
    """

    model_type: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied_embeddings: bool
    windows: tuple[int | None, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: tuple[int, int] = (0, 0)
    norms_per_layer: int = 2
    normed_outputs: bool = False
    fused: bool = False
    experts: int | None = None
    active_experts: int | None = None
    expert_intermediate: int | None = None
    shared_intermediate: int | None = None
    dense_layers: frozenset[int] = frozenset()

    @property
    def query_features(self) -> int:
        """Features of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key_features(self) -> int:
        """Features of all key heads together; the values have as many."""
        return self.kv_heads * self.head_dim

    def is_mixture(self, layer: int) -> bool:
        """Whether a layer routes its tokens to experts."""
        return self.experts is not None and layer not in self.dense_layers

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | Any) -> ModelShape:
        """The shape that a transformers configuration describes.

        Args:
            config: the configuration object, or its mapping (``config.to_dict()``).

        Raises:
            ModelError: the architecture is not one whose parameters are known exactly here, or the configuration
                lacks a dimension.
        """
        from hf_efficient.estimate.architectures import shape_of

        return shape_of(config)


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters by part; ``total`` counts a tied head once.

    Attributes:
        embedding: the token embedding.
        attention: projections and their biases, without the norms on queries and keys.
        mlp: dense MLPs, experts and routers.
        norms: all norms, those on queries and keys included.
        head: the LM head; 0 where it is the embedding.
    """

    embedding: int
    attention: int
    mlp: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        """All parameters that the model stores."""
        return self.embedding + self.attention + self.mlp + self.norms + self.head


def linears_of_layer(shape: ModelShape, layer: int) -> dict[str, Linear]:
    """The matrix products of a layer by name, in the order of computation; attention first, then the MLP."""
    return {linear.name: linear for linear in (*_attention(shape), *_mlp(shape, layer))}


def parameter_counts(shape: ModelShape) -> ParameterCounts:
    """Parameters by part.

    The embedding is ``vocabulary * hidden`` and so is an untied head. A projection is ``inputs * outputs`` plus
    its bias. A layer's norms are ``norms_per_layer * hidden`` plus those on queries and keys, and one norm of
    ``hidden`` values stands before the head.

    Hand-worked, Llama-3.1-8B (32 layers, hidden 4096, MLP 14336, 32 and 8 heads of 128, vocabulary 128256, untied):
    embedding and head 525,336,576 each; attention per layer 4096 * (4096 + 1024 + 1024 + 4096) = 41,943,040; MLP per
    layer 3 * 4096 * 14336 = 176,160,768; norms 65 * 4096 = 266,240; total 8,030,261,248.
    """
    table = shape.vocabulary * shape.hidden
    attention = sum(linear.parameters for linear in _attention(shape)) * shape.layers
    mlp = sum(linear.parameters for layer in range(shape.layers) for linear in _mlp(shape, layer))
    norms = shape.layers * (shape.norms_per_layer * shape.hidden + sum(shape.qk_norm)) + shape.hidden
    return ParameterCounts(table, attention, mlp, norms, 0 if shape.tied_embeddings else table)


def _attention(shape: ModelShape) -> list[Linear]:
    query, key = shape.query_features, shape.key_features
    output = Linear("o_proj", query, shape.hidden, shape.output_bias)
    if shape.fused:
        return [Linear("qkv_proj", shape.hidden, query + 2 * key, shape.qkv_bias), output]
    return [
        Linear("q_proj", shape.hidden, query, shape.qkv_bias),
        Linear("k_proj", shape.hidden, key, shape.qkv_bias),
        Linear("v_proj", shape.hidden, key, shape.qkv_bias),
        output,
    ]


def _mlp(shape: ModelShape, layer: int) -> list[Linear]:
    hidden, width = shape.hidden, shape.intermediate
    if shape.is_mixture(layer):
        return _mixture(shape)
    if shape.fused:
        ups = [Linear("gate_up_proj", hidden, 2 * width, shape.mlp_bias)]
    else:
        ups = [Linear(name, hidden, width, shape.mlp_bias) for name in ("gate_proj", "up_proj")]
    return [*ups, Linear("down_proj", width, hidden, shape.mlp_bias)]


def _mixture(shape: ModelShape) -> list[Linear]:
    experts, active, width = shape.experts, shape.active_experts, shape.expert_intermediate
    if experts is None or active is None or width is None:
        raise ValueError("a mixture has experts, active_experts and expert_intermediate, all three")
    parts = [
        Linear("router", shape.hidden, experts, is_module=False),
        Linear("experts.gate_up_proj", shape.hidden, 2 * width, copies=experts, active=active, is_module=False),
        Linear("experts.down_proj", width, shape.hidden, copies=experts, active=active, is_module=False),
    ]
    if shape.shared_intermediate:
        shared = shape.shared_intermediate
        parts += [
            Linear("gate_proj", shape.hidden, shared),
            Linear("up_proj", shape.hidden, shared),
            Linear("down_proj", shared, shape.hidden),
            Linear("shared_expert_gate", shape.hidden, 1),
        ]
    return parts
