"""Really built tiny models of the known families, and one training step of each under ``FlopCounterMode``."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 96
DIMENSIONS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_config(model_type: str, **changes: Any) -> Any:
    return AutoConfig.for_model(model_type, **{**DIMENSIONS, **changes})


def tiny_model(model_type: str, **changes: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    config = tiny_config(model_type, **changes)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)


def counted(model: torch.nn.Module, rows: int, length: int, *, checkpointing: str | None = None) -> int:
    """FLOPs that torch counts in one forward and backward of a batch of ``rows`` by ``length`` tokens."""
    if checkpointing:
        reentrant = {"use_reentrant": checkpointing == "reentrant"}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=reentrant)
    model.train()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=generator)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    return counter.get_total_flops()
