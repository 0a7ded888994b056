"""What a run directory says of the adapter in it: its base, and how that was quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from hf_efficient.errors import ModelError
from hf_efficient.launch.merge_adapter import ADAPTER_CONFIG, check_adapter_weights, read_adapter_config
from hf_efficient.recipe.precision import compute_dtype
from hf_efficient.recipe.schema import ModelSection, QuantizationSection, Recipe

__all__ = ["TrainedAdapter", "find_adapter"]

_RESOLVED = Path("efficiency") / "recipe.resolved.yaml"


@dataclass(frozen=True)
class TrainedAdapter:
    """A PEFT adapter on the disk and what it was trained beside.

    Attributes:
        folder: holds ``adapter_config.json`` and the adapter's weights.
        model: the base, to be loaded with transformers' default attention (the recipe's may need a GPU).
        recipe: the run's resolved recipe; None where the adapter was not trained by one.
    """

    folder: Path
    model: ModelSection
    recipe: Recipe | None

    @property
    def quantized(self) -> bool:
        """Whether it was trained beside a quantized base."""
        return self.recipe is not None and self.recipe.adapter.method == "qlora"

    @property
    def train(self) -> Mapping[str, Any]:
        """The recipe's ``train`` section."""
        return self.recipe.train if self.recipe else {}

    def compute_types(self, weights: str) -> tuple[str, ...]:
        """Data types, besides the weights' own, in which the model was computed on ``dequantized``
        weights."""
        if weights != "dequantized" or self.rounds_activations:
            return ()
        return (compute_dtype(self._quantization),)

    @property
    def rounds_activations(self) -> bool:
        """Whether the quantized base rounds what goes through it as well as its weights: LLM.int8()."""
        return self.quantized and self._quantization.bits == 8

    @property
    def _quantization(self) -> QuantizationSection:
        section = self.recipe.adapter.quantization if self.recipe else None
        return section or QuantizationSection()

    def tokenizer_section(self) -> ModelSection:
        """Where to load the tokenizer from: the one saved with the adapter, else the base's."""
        if (self.folder / "tokenizer_config.json").is_file():
            return self.model.model_copy(update={"tokenizer": str(self.folder)})
        return self.model


def find_adapter(folder: Path) -> TrainedAdapter:
    """Read what ``folder``, a run directory or one of its checkpoints, holds.

    Raises:
        ModelError: it does not exist, holds no adapter (a full fine-tune, for instance), or what it holds is
            not whole.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        raise ModelError(_without_adapter(folder))
    config = read_adapter_config(folder)
    check_adapter_weights(folder)
    recipe = _recipe(folder)
    if recipe is not None:
        return TrainedAdapter(folder, recipe.model.model_copy(update={"attn_implementation": None}), recipe)
    return TrainedAdapter(folder, _base_of_peft(folder / ADAPTER_CONFIG, config), None)


def _without_adapter(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} does not exist. Write the output directory of a run."
    if (folder / "config.json").is_file():
        return (
            f"{folder} holds no adapter but a whole model (a full fine-tune, or an earlier merge): "
            f"there is nothing to merge, load it with AutoModelForCausalLM.from_pretrained({str(folder)!r})."
        )
    checkpoints = sorted(path.parent.name for path in folder.glob(f"checkpoint-*/{ADAPTER_CONFIG}"))
    if checkpoints:
        return (
            f"{folder} holds no adapter, for the run did not end; its checkpoints do: "
            f"{', '.join(checkpoints)}. Write {folder / checkpoints[-1]}, for instance."
        )
    return f"{folder} holds no adapter (no {ADAPTER_CONFIG}). Write the output directory of a LoRA or QLoRA run."


def _recipe(folder: Path) -> Recipe | None:
    for place in (folder / _RESOLVED, folder.parent / _RESOLVED):
        if place.is_file():
            try:
                return Recipe.model_validate(yaml.safe_load(place.read_text(encoding="utf-8"))["recipe"])
            except (OSError, yaml.YAMLError, ValidationError, KeyError, TypeError) as error:
                raise ModelError(
                    f"{place} is not a resolved recipe of this version of hf_efficient: "
                    f"{str(error).splitlines()[0]}. Move it away to merge into the base that PEFT noted."
                ) from error
    return None


def _base_of_peft(path: Path, config: Mapping[str, Any]) -> ModelSection:
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not base or not isinstance(base, str):
        raise ModelError(
            f"{path} does not name the base model (base_model_name_or_path). Write its hub name or folder there."
        )
    return ModelSection(id=base, revision=revision if isinstance(revision, str) else None)
