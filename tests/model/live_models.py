"""Tiny live models for the tests of this room."""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

DIMENSIONS: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


def live(model_type: str = "llama", **changes: Any) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**DIMENSIONS, **changes})
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)


def adapted(model: Any, targets: Any = "all-linear", **settings: Any) -> Any:
    return get_peft_model(model, LoraConfig(r=8, target_modules=targets, task_type="CAUSAL_LM", **settings))
