"""A tiny model with random weights, a tokenizer of a few words, and sums to learn."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["make_inputs"]

_WORDS = ["<pad>", "<end>", "<unknown>", "plus", "is", *map(str, range(200))]
_EXAMPLES = 400


def make_inputs(folder: Path) -> None:
    """Write ``model/`` and ``sums.jsonl``, the same ones on every machine."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(_WORDS)}, unk_token="<unknown>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
    )
    tokenizer.save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(_WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    rows = [_example(7 * index % 100, 3 * index % 90) for index in range(_EXAMPLES)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _example(first: int, second: int) -> dict[str, str]:
    chain = " is ".join(str(first + second - part) for part in range(1 + first % 4))  # so that lengths differ
    return {"prompt": f"{first} plus {second} is", "completion": f" {chain}"}
