"""The dimensions of a decoder, which of its parameters a run trains, and which configurations are known.

A configuration of another architecture is refused: a guess that is 2% wrong looks like a measurement.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_efficient.errors import ModelError


@dataclass(frozen=True)
class Linear:
    """One matrix product of a layer, ``inputs -> outputs``, by the name of its module. ``copies``, ``active``: weights
    of this shape in the layer (experts of a mixture), and those that a token uses. ``is_module``: it is a
    ``torch.nn.Linear``; ``all-linear`` does not reach bare parameters (routers, experts)."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    copies: int = 1
    active: int = 1
    is_module: bool = True

    @property
    def parameters(self) -> int:
        return self.copies * (self.inputs * self.outputs + (self.outputs if self.bias else 0))


@dataclass(frozen=True)
class ModelShape:
    """A causal language model of the Llama kind and its relatives. ``head_dim``: features per head; ``heads *
    head_dim`` need not be ``hidden``. ``windows``: the sliding window of each layer in tokens; None where a layer sees
    everything before it. ``qk_norm``: features of the norm on queries and of that on keys; (0, 0) without.
    ``norms_per_layer``: of ``hidden`` features: 2, or 4 where the blocks' outputs are normed too. ``fused``: query, key
    and value, and gate and up, are one module each. ``shared_intermediate``: width of the expert that every token
    passes through. ``dense_layers``: of a mixture, those with a dense MLP."""

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
    experts: int = 0
    active_experts: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    dense_layers: frozenset[int] = frozenset()

    @property
    def query_features(self) -> int:
        return self.heads * self.head_dim

    def is_mixture(self, layer: int) -> bool:
        return self.experts > 0 and layer not in self.dense_layers


def linears_of_layer(shape: ModelShape, layer: int) -> dict[str, Linear]:
    """The matrix products of a layer by name, in the order of computation; attention first, then the MLP."""
    return {linear.name: linear for linear in (*_attention(shape), *_mlp(shape, layer))}


def parameter_count(shape: ModelShape) -> int:
    """All parameters, a tied head counted once. The embedding is ``vocabulary * hidden`` and so is an untied head. A
    projection is ``inputs * outputs`` plus its bias. A layer's norms are ``norms_per_layer * hidden`` plus those on
    queries and keys, and one norm of ``hidden`` values stands before the head."""
    tables = shape.vocabulary * shape.hidden * (1 if shape.tied_embeddings else 2)
    linears = (one for layer in range(shape.layers) for one in linears_of_layer(shape, layer).values())
    norms = shape.layers * (shape.norms_per_layer * shape.hidden + sum(shape.qk_norm)) + shape.hidden
    return tables + sum(one.parameters for one in linears) + norms


def _attention(shape: ModelShape) -> list[Linear]:
    query, key = shape.query_features, shape.kv_heads * shape.head_dim  # the values have as many as the keys
    output = Linear("o_proj", query, shape.hidden, shape.output_bias)
    if shape.fused:
        return [Linear("qkv_proj", shape.hidden, query + 2 * key, shape.qkv_bias), output]
    widths = {"q_proj": query, "k_proj": key, "v_proj": key}
    return [*(Linear(name, shape.hidden, width, shape.qkv_bias) for name, width in widths.items()), output]


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
    parts = [
        Linear("router", shape.hidden, experts, is_module=False),
        Linear("experts.gate_up_proj", shape.hidden, 2 * width, copies=experts, active=active, is_module=False),
        Linear("experts.down_proj", width, shape.hidden, copies=experts, active=active, is_module=False),
    ]
    if shared := shape.shared_intermediate:
        parts += [
            Linear("gate_proj", shape.hidden, shared),
            Linear("up_proj", shape.hidden, shared),
            Linear("down_proj", shared, shape.hidden),
            Linear("shared_expert_gate", shape.hidden, 1),
        ]
    return parts


HEAD = "lm_head"
EMBEDDING = "embed_tokens"


@dataclass(frozen=True)
class Trained:
    """Full training, or low-rank adapters on a frozen base. ``ranks``: for each layer, name of a projection to the rank
    of its adapter (``{"q_proj": 16}``). ``embedding``, ``head``: trained itself (``modules_to_save``); a tied head is
    if the embedding is. ``input_gradient``: the embedding's output asks for a gradient although nothing before it is
    trained (``enable_input_require_grads``, for a frozen base under activation checkpointing)."""

    everything: bool = False
    ranks: tuple[Mapping[str, int], ...] = ()
    head_rank: int = 0
    embedding: bool = False
    head: bool = False
    input_gradient: bool = False

    @classmethod
    def full(cls) -> Trained:
        return cls(everything=True, embedding=True, head=True)

    @classmethod
    def of_modules(
        cls,
        shape: ModelShape,
        ranks: Mapping[str, int],
        *,
        modules_to_save: Iterable[str] = (),
        input_gradient: bool = False,
    ) -> Trained:
        """LoRA or QLoRA as it was built: every adapter by the dotted name of its module, a linear layer of the shape.
        ``ModelError``: a module other than the embedding and the head is trained in full."""
        layers: list[dict[str, int]] = [{} for _ in range(shape.layers)]
        head_rank = 0
        for module, rank in ranks.items():
            layer = layer_of(module)
            if layer is None:
                head_rank = rank
            else:
                layers[layer][module.rsplit(".", 1)[-1]] = rank
        saved = {name.rsplit(".", 1)[-1] for name in modules_to_save}
        if unknown := sorted(saved - {EMBEDDING, HEAD}):
            what, known = "module trained in full", f"{EMBEDDING}, {HEAD}"
            raise ModelError(f"{unknown[0]}: no {what} whose FLOPs are known in this model; known are {known}.")
        return cls(
            ranks=tuple(layers),
            head_rank=head_rank,
            embedding=EMBEDDING in saved,
            head=HEAD in saved or (EMBEDDING in saved and shape.tied_embeddings),
            input_gradient=input_gradient,
        )

    def ranks_of_layer(self, layer: int) -> Mapping[str, int]:
        return self.ranks[layer] if self.ranks else {}


def layer_of(name: str) -> int | None:
    """The index of the decoder layer that holds a module of this dotted name; None outside of them."""
    found = re.search(r"(?:^|\.)layers\.(\d+)(?:\.|$)", name)
    return int(found[1]) if found else None


def head_linear(shape: ModelShape) -> Linear:
    return Linear(HEAD, shape.hidden, shape.vocabulary)


Extras = dict[str, Any]


class _Config:
    """Reads a mapping and an object alike; a missing name has a default or is an error."""

    def __init__(self, config: Mapping[str, Any] | Any) -> None:
        self._get = config.get if isinstance(config, Mapping) else functools.partial(getattr, config)

    def get(self, name: str, default: Any = None) -> Any:
        held = self._get(name, None)
        return default if held is None else held

    def need(self, name: str) -> int:
        value = self.get(name)
        if not isinstance(value, int) or value < 1:
            raise ModelError(f"{name}: the model's configuration holds {value!r}, not a positive number. {_WHOLE}")
        return value

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if not isinstance(value, bool):
            raise ModelError(f"{name}: the model's configuration holds {value!r}, not true or false. {_WHOLE}")
        return value

    def head_dim(self) -> int:
        return int(self.get("head_dim", self.need("hidden_size") // self.need("num_attention_heads")))


_WHOLE = "A config.json leaves out its class's defaults: load it with AutoConfig and pass that, or its to_dict()."


def shape_of(config: Mapping[str, Any] | Any) -> ModelShape:
    """The shape that a transformers configuration, or its mapping (``config.to_dict()``), describes. Raises
    ``ModelError``: the architecture is not known exactly here, or the configuration lacks a dimension."""
    read = _Config(config)
    model_type = str(read.get("model_type", ""))
    extras = ARCHITECTURES.get(model_type)
    if extras is None:
        named = f"model_type {model_type!r}" if model_type else "a configuration without model_type"
        hint = " Pass its text_config where that is one of them." if read.get("text_config") is not None else ""
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(f"{named}: its parameters and FLOPs are not known here. Known are {known}.{hint}")
    heads, layers = read.need("num_attention_heads"), read.need("num_hidden_layers")
    window, kinds = read.get("sliding_window") or None, read.get("layer_types", ("sliding_attention",) * layers)
    windows = tuple(window if kind == "sliding_attention" else None for kind in kinds)
    bias = bool(read.get("attention_bias"))
    shape: Extras = {
        "model_type": model_type,
        "layers": layers,
        "hidden": read.need("hidden_size"),
        "intermediate": read.need("intermediate_size"),
        "heads": heads,
        "kv_heads": read.get("num_key_value_heads", heads),
        "head_dim": read.head_dim(),
        "vocabulary": read.need("vocab_size"),
        "tied_embeddings": read.flag("tie_word_embeddings"),
        "windows": windows,
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": bool(read.get("mlp_bias")),
    }
    return ModelShape(**{**shape, **extras(read)})


def _nothing(_: _Config) -> Extras:
    return {}


def _qwen3(read: _Config) -> Extras:
    return {"qk_norm": (read.head_dim(), read.head_dim())}


def _gemma2(_: _Config) -> Extras:
    return {"norms_per_layer": 4, "normed_outputs": True}


def _mixtral(read: _Config) -> Extras:
    return {
        "experts": read.need("num_local_experts"),
        "active_experts": read.need("num_experts_per_tok"),
        "expert_intermediate": read.need("intermediate_size"),
    }


def _sparse(read: _Config) -> Extras:
    """Experts as Qwen's mixtures have them: some layers may stay dense."""
    listed, every = set(read.get("mlp_only_layers", ())), read.get("decoder_sparse_step", 1)
    dense = {n for n in range(read.need("num_hidden_layers")) if n in listed or (n + 1) % every}
    return {
        "experts": read.need("num_experts"),
        "active_experts": read.need("num_experts_per_tok"),
        "expert_intermediate": read.need("moe_intermediate_size"),
        "dense_layers": frozenset(dense),
    }


def _qwen2_moe(read: _Config) -> Extras:
    shared = read.need("shared_expert_intermediate_size")
    return {"qkv_bias": bool(read.get("qkv_bias", True)), "shared_intermediate": shared, **_sparse(read)}


def _olmo2(read: _Config) -> Extras:
    heads = read.need("num_attention_heads")
    norms = (heads * read.head_dim(), read.get("num_key_value_heads", heads) * read.head_dim())
    return {"qk_norm": norms, "normed_outputs": True}


ARCHITECTURES: Mapping[str, Callable[[_Config], Extras]] = {
    **dict.fromkeys(("gemma", "granite", "llama", "mistral", "smollm3"), _nothing),
    "gemma2": _gemma2,
    "gemma3_text": lambda read: {**_gemma2(read), **_qwen3(read)},
    "mixtral": _mixtral,
    "olmo2": _olmo2,
    "phi3": lambda _: {"fused": True},
    "qwen2": lambda _: {"qkv_bias": True, "output_bias": False},
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": lambda read: {**_qwen3(read), **_sparse(read)},
}
"""``model_type`` to what its shape has beside the dimensions that all share."""
