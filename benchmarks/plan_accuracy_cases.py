"""What the plan's memory is measured on: recipes on models that a CPU can train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CASES", "MODELS", "Case"]

_SMALL = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
}

MODELS: Mapping[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SMALL},
    "mistral": {"model_type": "mistral", **_SMALL, "sliding_window": 128},
    "qwen2": {"model_type": "qwen2", **_SMALL, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **_SMALL, "head_dim": 32},
    "narrow": {"model_type": "llama", **_SMALL, "vocab_size": 256, "num_hidden_layers": 8},
    "gemma2": {"model_type": "gemma2", **_SMALL, "head_dim": 32, "sliding_window": 128},
}
"""Small models of several families, by the fields of their ``config.json``; weights are random."""


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        model: a key of ``MODELS``, or the name of a shipped shape.
        method: full, lora or qlora.
        length: tokens of a row.
        train: fields of ``SFTConfig``.
        adapter: fields of the recipe's ``adapter``.
        dtype: of the weights.
        attention: ``model.attn_implementation``.
        metrics: of an evaluation after the two steps; None: there is none.
    """

    model: str
    method: str
    length: int
    train: Mapping[str, Any] = field(default_factory=dict)
    adapter: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "bfloat16"
    attention: str | None = None
    metrics: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """In words, without spaces at the ends."""
        extra = [f"{key}={value}" for key, value in {**self.adapter, **self.train}.items()]
        attention = [self.attention] if self.attention else []
        evaluated = [] if self.metrics is None else ["evaluated", *self.metrics]
        return " ".join([self.model, self.method, self.dtype, f"length={self.length}", *attention, *extra, *evaluated])


def _train(rows: int = 2, **fields: Any) -> dict[str, Any]:
    """``gradient_checkpointing`` is on in ``SFTConfig``; here only where a case says so."""
    return {"per_device_train_batch_size": rows, "gradient_checkpointing": False, **fields}


_SMOL = "HuggingFaceTB/SmolLM2-135M"
_CKPT = {"gradient_checkpointing": True}
_CHUNKED = {"loss_type": "chunked_nll"}

CASES: tuple[Case, ...] = (
    Case(_SMOL, "lora", 512, _train()),
    Case(_SMOL, "lora", 512, _train(**_CKPT)),
    Case(_SMOL, "lora", 256, _train(4, gradient_accumulation_steps=4)),
    Case(_SMOL, "lora", 256, _train(bf16=True)),
    Case(_SMOL, "lora", 256, _train(), attention="eager"),
    Case(_SMOL, "lora", 512, _train(), {"dora": True}),
    Case(_SMOL, "qlora", 256, _train()),
    Case(_SMOL, "qlora", 512, _train(**_CKPT)),
    Case(_SMOL, "full", 256, _train()),
    Case(_SMOL, "full", 256, _train(bf16=True), dtype="float32"),
    Case(_SMOL, "full", 256, _train(**_CKPT)),
    Case("llama", "full", 512, _train(), dtype="float32"),
    Case("llama", "full", 512, _train(), dtype="bfloat16"),
    Case("llama", "full", 512, _train(bf16=True), dtype="float32"),
    Case("llama", "full", 1024, _train(1, **_CKPT)),
    Case("llama", "full", 512, _train(gradient_accumulation_steps=3)),
    Case("llama", "full", 256, _train(4, optim="sgd")),
    Case("llama", "full", 256, _train(4, optim="adafactor")),
    Case("llama", "full", 256, _train(4, optim="adamw_torch")),
    Case("llama", "full", 256, _train(4, optim="rmsprop")),
    Case("llama", "lora", 512, _train(loss_type="dft")),
    Case("llama", "lora", 512, _train(packing=True, bf16=True)),
    Case("llama", "lora", 512, _train(), attention="eager"),
    Case("llama", "lora", 512, _train(), {"target_modules": ["q_proj", "v_proj"], "r": 64}),
    Case("llama", "qlora", 512, _train(bf16=True)),
    Case("mistral", "full", 512, _train(bf16=True), dtype="float32"),
    Case("mistral", "lora", 1024, _train(1, **_CKPT)),
    Case("mistral", "qlora", 512, _train(**_CKPT)),
    Case("qwen2", "full", 512, _train()),
    Case("qwen2", "lora", 512, _train(**_CKPT)),
    Case("qwen3", "full", 512, _train(bf16=True), dtype="float32"),
    Case("qwen3", "lora", 512, _train()),
    Case("narrow", "full", 1024, _train(4), dtype="float32"),
    Case("narrow", "full", 1024, _train(4, bf16=True), dtype="float32"),
    Case("narrow", "full", 1024, _train(4, **_CKPT)),
    Case("narrow", "full", 512, _train(4), attention="eager"),
    Case("narrow", "lora", 1024, _train(4)),
    Case("narrow", "lora", 1024, _train(4, bf16=True, **_CKPT)),
    Case("narrow", "lora", 512, _train(4), {"dropout": 0.1, "dora": True}),
    Case("narrow", "qlora", 1024, _train(4, bf16=True)),
    Case("narrow", "lora", 512, _train(4, **_CKPT), {"dora": True}),
    Case("narrow", "qlora", 512, _train(4, bf16=True), {"quantization": {"compute_dtype": "float32"}}),
    Case("narrow", "qlora", 1024, _train(4, **_CKPT)),
    Case("llama", "lora", 256, _train(1, per_device_eval_batch_size=8, **_CKPT), metrics=()),
    Case("llama", "lora", 256, _train(1, per_device_eval_batch_size=8, **_CKPT), metrics=("perplexity",)),
    Case("qwen2", "qlora", 256, _train(1, per_device_eval_batch_size=8, bf16=True), metrics=("token_accuracy",)),
    Case(_SMOL, "lora", 256, _train(1, per_device_eval_batch_size=8, **_CKPT), metrics=("perplexity",)),
    Case("gemma2", "full", 512, _train()),
    Case("gemma2", "lora", 512, _train(**_CKPT)),
    Case("gemma2", "qlora", 512, _train()),
    Case(_SMOL, "lora", 512, _train(2, **_CHUNKED)),
    Case(_SMOL, "lora", 512, _train(2, **_CHUNKED, **_CKPT)),
    Case(_SMOL, "qlora", 512, _train(4, **_CHUNKED, bf16=True, packing=True)),
    Case("llama", "full", 512, _train(4, **_CHUNKED), dtype="float32"),
    Case("llama", "full", 512, _train(4, **_CHUNKED, bf16=True, gradient_accumulation_steps=2), dtype="float32"),
    Case("llama", "lora", 1024, _train(4, **_CHUNKED, **_CKPT)),
    Case("qwen2", "full", 1024, _train(4, **_CHUNKED, **_CKPT)),
    Case("gemma2", "qlora", 1024, _train(4, **_CHUNKED, **_CKPT)),
    Case("llama", "lora", 256, _train(1, per_device_eval_batch_size=8, **_CHUNKED, **_CKPT), metrics=()),
    Case(_SMOL, "lora", 256, _train(1, per_device_eval_batch_size=8, **_CHUNKED, **_CKPT), metrics=("perplexity",)),
)
