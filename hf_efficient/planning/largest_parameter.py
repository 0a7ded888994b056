"""How many elements the largest parameter of a model has."""

from __future__ import annotations

import torch

from hf_efficient.errors import ModelError, first_line
from hf_efficient.planning.isolation import process_kept
from hf_efficient.planning.model_config import model_config
from hf_efficient.recipe.schema import ModelSection


def largest_parameter(model: ModelSection) -> int:
    """Of the embedding for most models, of all experts of a layer for some; the model is built without its weights.

    Args:
        model: of the recipe.

    Raises:
        ModelError: there is no configuration of it, or transformers cannot build it.
    """
    from transformers import AutoModelForCausalLM

    config = model_config(model)
    try:
        with process_kept(), torch.device("meta"):
            built = AutoModelForCausalLM.from_config(config, trust_remote_code=model.trust_remote_code)
    except (ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"model: transformers cannot build a causal language model from its configuration: {first_line(error)}"
        ) from error
    return max(parameter.numel() for parameter in built.parameters())
