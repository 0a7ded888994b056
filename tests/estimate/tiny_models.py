"""Really built tiny models of the known families, and one training step of each under ``FlopCounterMode``."""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flop_counting import counting
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

from hf_efficient.estimate.flops import Amounts, causal_pairs, pass_flops
from hf_efficient.estimate.model_shape import Trained, linears_of_layer

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


def tiny_model_4bit(folder: Path, model_type: str, **changes: Any) -> torch.nn.Module:
    """The same model with its linear layers in NF4 with double quantization."""
    tiny_model(model_type, **changes).save_pretrained(folder)
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    return AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, quantization_config=quantization
    )


def counted(model: torch.nn.Module, rows: int, length: int, *, checkpointing: str = "none") -> int:
    """FLOPs that torch counts in one forward and backward of a batch of ``rows`` by ``length`` tokens."""
    if checkpointing != "none":
        reentrant = {"use_reentrant": checkpointing == "reentrant"}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=reentrant)
    model.train()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=generator)
    with counting() as counter:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    return counter.get_total_flops()


class Work(NamedTuple):
    """Of documents of these lengths; ``rows`` defaults to a row for each, without padding."""

    documents: list[int]
    rows: list[int] | None = None
    head_tokens: int | None = None

    def needed(self, windows):
        tokens = sum(self.documents)
        pairs = {window: causal_pairs(Counter(self.documents), window) for window in windows}
        return Amounts(tokens, pairs, self.head_tokens or tokens)

    def computed(self, windows):
        """By a kernel that fills the whole square of every row."""
        rows = self.rows or self.documents
        pairs = dict.fromkeys(windows, sum(row * row for row in rows))
        return Amounts(sum(rows), pairs, self.head_tokens or sum(rows))


def training_flops(shape, trained, work, *, checkpointing="none", head_recomputed=False):
    """The model's FLOPs of a forward and backward, and the hardware's."""
    again = {"checkpointing": checkpointing, "head_recomputed": head_recomputed}
    return (
        pass_flops(shape, trained, work.needed(shape.windows)),
        pass_flops(shape, trained, work.computed(shape.windows), **again),
    )


def adapter(shape, targets="all-linear", rank=8, *, layers=None, modules_to_save=(), input_gradient=False):
    """LoRA as a recipe describes it: every linear module but the head, or those of these names."""
    ranks = {"lm_head": rank} if "lm_head" in targets else {}
    for layer in range(shape.layers) if layers is None else layers:
        linears = (one for one in linears_of_layer(shape, layer).values() if one.is_module)
        names = [one.name for one in linears if targets == "all-linear" or one.name in targets]
        ranks |= {f"layers.{layer}.{name}": rank for name in names}
    return Trained.of_modules(shape, ranks, modules_to_save=modules_to_save, input_gradient=input_gradient)
