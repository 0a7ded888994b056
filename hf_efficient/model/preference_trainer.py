"""TRL's trainers of preferences, and the arguments of all its trainers but ``SFTTrainer``, for recipes. Importing a
trainer takes a second, which other recipes need not spend."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.train_fields import trl_class

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import Trainer
    from trl import DPOConfig

    from hf_efficient.recipe.schema import Recipe

_PREPARED = ("chosen_ids", "completion_ids", "chosen_input_ids")


def _as_it_is(dataset: Dataset, *_: Any, **__: Any) -> Dataset:
    return dataset


class PreparedRowsMixin:
    """Takes rows that ``build_preference_data`` prepared, in TRL's own way, as they are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """The experimental trainers tokenise by ``map``, whatever the rows."""
        given = [kwargs.get(name) for name in ("train_dataset", "eval_dataset")]
        held = [one for one in given if _PREPARED[2] in (getattr(one, "column_names", None) or ())]
        for one in held:
            vars(one)["map"] = functools.partial(_as_it_is, one)
        super().__init__(*args, **kwargs)
        for one in held:
            vars(one).pop("map", None)

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **settings: Any) -> Dataset:
        if set(_PREPARED) & set(dataset.column_names or ()):
            return dataset
        return super()._prepare_dataset(dataset, *args, **settings)  # type: ignore[misc]


class RankingAccuracyMixin:
    """Adds ``ranking_accuracy`` to DPO's evaluations: the share of pairs whose better answer is the more likely one, by
    the sums of its tokens' log-probabilities (Chen et al. 2024, "Preference learning algorithms do not learn preference
    rankings"). TRL's ``rewards/accuracies`` counts against the reference, so that it is 0 before the first step."""

    def prediction_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        outputs: list[Any] = []
        watch = model.register_forward_hook(lambda *seen: outputs.append(seen[-1]))
        try:
            found = super().prediction_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        finally:
            watch.remove()
        better, worse = outputs[0].log_probs.sum(-1).chunk(2)  # the policy's; the reference runs after it
        right = self.accelerator.gather_for_metrics((better > worse).float())  # type: ignore[attr-defined]
        self._metrics["eval"]["ranking_accuracy"] += right.tolist()  # type: ignore[attr-defined]
        return found


def preference_arguments(recipe: Recipe, options: dict[str, Any]) -> DPOConfig:
    """The configuration of the recipe's objective, which types call by the name of DPO's. Raises as the class does."""
    if recipe.rewards:
        options = {**options, "reward_weights": [one.weight for one in recipe.rewards]}
    args: DPOConfig = trl_class(OBJECTIVES[recipe.objective].config)(**options)
    if recipe.objective in ("orpo", "cpo"):
        args.remove_unused_columns = False  # they do so themselves, with a warning
    return args


@functools.cache
def preference_trainer_class(objective: str) -> type[Trainer]:
    """TRL's trainer of the objective, for prepared rows. ``ImportError``: this TRL has none."""
    base = trl_class(OBJECTIVES[objective].trainer)
    return type(f"Recipe{base.__name__}", (PreparedRowsMixin, base), {})


def train_in_float32(model: nn.Module) -> None:
    """Undo TRL's rounding of a QLoRA adapter to bfloat16, in which small updates are lost; see ``add_adapter``."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
