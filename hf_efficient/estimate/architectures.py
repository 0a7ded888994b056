"""Which transformers configurations are known, and what each adds to the shape of a Llama.

A configuration of another architecture is refused: a guess that is 2% wrong looks like a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import ModelShape

Extras = dict[str, Any]


class _Config:
    """Reads a mapping and an object alike; a missing name has a default or is an error."""

    def __init__(self, config: Mapping[str, Any] | Any) -> None:
        self._config = config

    def get(self, name: str, default: Any = None) -> Any:
        held = self._config.get(name) if isinstance(self._config, Mapping) else getattr(self._config, name, None)
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
    """The shape that a configuration describes; see ``ModelShape.from_config``."""
    read = _Config(config)
    model_type = str(read.get("model_type", ""))
    extras = ARCHITECTURES.get(model_type)
    if extras is None:
        raise ModelError(_unknown(model_type, read))
    heads, layers = read.need("num_attention_heads"), read.need("num_hidden_layers")
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
        "windows": _windows(read, layers),
    }
    return ModelShape(**{**shape, **extras(read)})


def _unknown(model_type: str, read: _Config) -> str:
    known = ", ".join(sorted(ARCHITECTURES))
    named = f"model_type {model_type!r}" if model_type else "a configuration without model_type"
    hint = " Pass its text_config where that is one of them." if read.get("text_config") is not None else ""
    return f"{named}: its parameters and FLOPs are not known here. Known are {known}.{hint}"


def _windows(read: _Config, layers: int) -> tuple[int | None, ...]:
    """The window per layer: ``layer_types`` where the configuration has them, else ``sliding_window`` everywhere."""
    window = read.get("sliding_window") or None
    kinds = read.get("layer_types")
    if kinds is None:
        return (window,) * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _llama(read: _Config) -> Extras:
    bias = bool(read.get("attention_bias", False))
    return {"qkv_bias": bias, "output_bias": bias, "mlp_bias": bool(read.get("mlp_bias", False))}


def _attention_bias(read: _Config) -> Extras:
    bias = bool(read.get("attention_bias", False))
    return {"qkv_bias": bias, "output_bias": bias}


def _qwen2(_: _Config) -> Extras:
    return {"qkv_bias": True}


def _qwen3(read: _Config) -> Extras:
    return {**_attention_bias(read), "qk_norm": (read.head_dim(), read.head_dim())}


def _gemma2(read: _Config) -> Extras:
    return {**_attention_bias(read), "norms_per_layer": 4, "normed_outputs": True}


def _gemma3(read: _Config) -> Extras:
    return {**_gemma2(read), "qk_norm": (read.head_dim(), read.head_dim())}


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
    bias = bool(read.get("qkv_bias", True))
    return {"qkv_bias": bias, "shared_intermediate": read.need("shared_expert_intermediate_size"), **_sparse(read)}


def _qwen3_moe(read: _Config) -> Extras:
    return {**_qwen3(read), **_sparse(read)}


def _phi3(_: _Config) -> Extras:
    return {"fused": True}


def _olmo2(read: _Config) -> Extras:
    heads = read.need("num_attention_heads")
    norms = (heads * read.head_dim(), read.get("num_key_value_heads", heads) * read.head_dim())
    return {**_attention_bias(read), "qk_norm": norms, "normed_outputs": True}


ARCHITECTURES: Mapping[str, Callable[[_Config], Extras]] = {
    "gemma": _attention_bias,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "granite": _llama,
    "llama": _llama,
    "mistral": lambda _: {},
    "mixtral": _mixtral,
    "olmo2": _olmo2,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _llama,
}
"""``model_type`` to what its shape has beside the dimensions that all share."""
