"""``distributed.wrap_classes`` before any process is started: the model without its weights knows its layers."""

from __future__ import annotations

from hf_efficient.assembly.wrap_classes import check_wrap_classes
from hf_efficient.errors import HfEfficientError
from hf_efficient.recipe.schema import Recipe

__all__ = ["check_wrap_classes_without_weights"]


def check_wrap_classes_without_weights(recipe: Recipe) -> None:
    """Refuse classes that are not in the model, as far as its configuration tells.

    Where it cannot be had or built here, the run itself, which asks once more, says why.

    Raises:
        ModelError: a class is not in the model.
    """
    if recipe.distributed.wrap_classes is None:
        return
    import torch
    from transformers import AutoModelForCausalLM

    from hf_efficient.planning.model_config import model_config

    try:
        config = model_config(recipe.model)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=recipe.model.trust_remote_code)
    except (HfEfficientError, ImportError, ValueError, KeyError, RuntimeError):
        return
    check_wrap_classes(model, recipe.distributed.wrap_classes)
