"""TRL's ``DPOTrainer`` for recipes. Importing it takes a second, which other recipes need not spend."""

from typing import Any

from datasets import Dataset
from torch import nn
from trl import DPOTrainer


class RecipeDPOTrainer(DPOTrainer):
    """Takes rows that ``build_preference_data`` prepared, in TRL's own way, as they are."""

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **settings: Any) -> Dataset:
        if "prompt_ids" in (dataset.column_names or ()):
            return dataset
        return super()._prepare_dataset(dataset, *args, **settings)


def train_in_float32(model: nn.Module) -> None:
    """Undo TRL's rounding of a QLoRA adapter to bfloat16, in which small updates are lost; see ``add_adapter``."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
