"""How far the logits of one model are from those of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

__all__ = ["TOLERANCE", "logits_of", "relative_difference", "tolerance_of", "type_name"]

TOLERANCE: dict[str, float] = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest relative difference of the logits that rounding explains, by data type of the weights.

Four to seven times what a merge of a 30-layer model gave in 16 bits (the table in ``merge.py``), where most
of the difference comes from the unmerged model's own rounding; in float32 fifty times, to leave room for
deeper models.
"""

TEXT = "The quick brown fox jumps over the lazy dog. def add(a, b): return a + b"


def tolerance_of(*types: str) -> float:
    """The tolerance for weights stored and products computed in these data types: that of the coarsest."""
    return max(TOLERANCE.get(name, max(TOLERANCE.values())) for name in types)


def type_name(dtype: torch.dtype) -> str:
    """``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def logits_of(model: Any, tokenizer: PreTrainedTokenizerBase, text: str = TEXT) -> torch.Tensor:
    """The model's logits on a short text: float32, on the CPU, [1, tokens, vocabulary]."""
    import torch

    model.eval()
    ids = torch.tensor([tokenizer(text)["input_ids"]], device=model.device)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.float().cpu()


def relative_difference(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """||logits - reference|| / ||reference||, L2 norms over all positions and the vocabulary; NaN stays
    NaN."""
    return float((logits - reference).norm() / reference.norm())
