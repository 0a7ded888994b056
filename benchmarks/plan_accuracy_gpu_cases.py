"""What a plan is measured against on a GPU: recipes on published shapes, of random weights."""

from __future__ import annotations

from typing import Any

from plan_accuracy_cases import Case

__all__ = ["GPU_CASES"]

_1B, _3B, _8B = "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.1-8B"
_7B = "mistralai/Mistral-7B-v0.3"


def _train(rows: int, checkpointing: bool = False, **fields: Any) -> dict[str, Any]:
    return {"per_device_train_batch_size": rows, "gradient_checkpointing": checkpointing, "bf16": True, **fields}


def _chunked(rows: int, **fields: Any) -> dict[str, Any]:
    return _train(rows, checkpointing=True, loss_type="chunked_nll", **fields)


GPU_CASES: tuple[Case, ...] = (
    Case(_1B, "full", 1024, _train(2)),
    Case(_1B, "full", 2048, _train(4, True)),
    Case(_1B, "full", 2048, _train(2, optim="adamw_8bit")),
    Case(_1B, "full", 1024, _train(2), dtype="float32"),
    Case(_1B, "lora", 2048, _train(2)),
    Case(_1B, "lora", 1024, _train(8, True)),
    Case(_1B, "lora", 1024, _train(2), attention="eager"),
    Case(_1B, "lora", 1024, _train(2, gradient_accumulation_steps=4)),
    Case(_1B, "lora", 2048, _train(2, packing=True)),
    Case(_1B, "lora", 2048, _chunked(4)),
    Case(_1B, "qlora", 2048, _train(4)),
    Case(_1B, "qlora", 1024, _train(2, True, optim="paged_adamw_8bit")),
    Case(_3B, "full", 1024, _train(1, True, optim="adamw_8bit")),
    Case(_3B, "lora", 2048, _train(2)),
    Case(_3B, "lora", 2048, _train(4, True)),
    Case(_3B, "qlora", 2048, _train(2)),
    Case(_3B, "qlora", 2048, _chunked(4)),
    Case(_8B, "lora", 1024, _train(1)),
    Case(_8B, "lora", 2048, _train(2, True)),
    Case(_8B, "lora", 1024, _train(1, True), attention="eager"),
    Case(_8B, "lora", 2048, _chunked(2)),
    Case(_8B, "qlora", 2048, _train(1)),
    Case(_8B, "qlora", 2048, _train(2, True)),
    Case(_8B, "qlora", 2048, _train(2, True, optim="adamw_8bit")),
    Case(_8B, "qlora", 4096, _chunked(2)),
    Case(_7B, "lora", 2048, _train(2, True)),
    Case(_7B, "qlora", 2048, _train(2, True)),
    Case(_7B, "qlora", 4096, _train(1, True)),
)
"""Ordered by model, so that each is made once."""
