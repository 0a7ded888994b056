"""A model that loads is not always the model that was meant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_efficient.assembly.model_source import ModelSource
from hf_efficient.errors import ModelError
from hf_efficient.models.whole import whole_shape

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

__all__ = ["check_loaded", "check_not_an_adapter", "check_positions", "check_vocabulary"]


def check_not_an_adapter(source: ModelSource) -> None:
    """transformers would load an adapter's folder as base and adapter, and a new adapter would replace the trained one.

    Raises:
        ModelError: the folder holds an adapter.
    """
    if source.is_local and (Path(source.location) / "adapter_config.json").is_file():
        raise ModelError(
            f"model.id: {source.location} holds an adapter, not a model. "
            f"Merge it first (hf-efficient merge {source.location}) and write the merged folder as model.id."
        )


def check_loaded(model: PreTrainedModel, report: Mapping[str, Any], *, location: str) -> None:
    """What transformers only reports: weights that the checkpoint lacks are drawn at random; an encoder sees ahead.

    Raises:
        ModelError: weights are missing, or the architecture is an encoder.
    """
    missing = sorted(report.get("missing_keys") or ())
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ModelError(
            f"model.id: the checkpoint {location} lacks weights of {type(model).__name__}, which would be random: "
            f"{shown}. Write a checkpoint of a causal language model that has them."
        )
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    if type(model.config) in MODEL_FOR_MASKED_LM_MAPPING and not model.config.is_decoder:
        raise ModelError(
            f"model.id: {location} is an encoder ({model.config.model_type}), whose tokens see those after them; "
            "it cannot be trained to generate text."
        )


def check_vocabulary(model: nn.Module, largest_token_id: int) -> None:
    """A tokenizer of another model makes ids that this one has no embedding for.

    Raises:
        ModelError: the data hold an id beyond the embedding.
    """
    rows = whole_shape(model.get_input_embeddings().weight)[0]  # type: ignore[operator]
    if largest_token_id >= rows:
        raise ModelError(
            f"model.tokenizer: the data hold the token id {largest_token_id}, but the model has embeddings for {rows} "
            "tokens. Write the tokenizer that belongs to the model."
        )


def check_positions(model: PreTrainedModel, longest: int) -> str:
    """Rows longer than the model's positions: an error where positions are a learned table, else a remark.

    Args:
        model: the base model.
        longest: tokens of the longest row.

    Returns:
        What to tell the user; empty where all is well.

    Raises:
        ModelError: the table of learned positions is too short.
    """
    import torch

    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(limit, int) or longest <= limit:
        return ""
    learned = any(
        isinstance(module, torch.nn.Embedding) and limit <= module.num_embeddings <= limit + 2
        for name, module in model.named_modules()
        if "pos" in name or "wpe" in name
    )
    if learned:
        raise ModelError(
            f"train.max_length: rows of {longest} tokens, but the model has positions for {limit}. "
            f"Write train.max_length: {limit} or less."
        )
    return f"rows of up to {longest} tokens are longer than the {limit} positions that the model was trained with"
