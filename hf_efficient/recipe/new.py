"""A short recipe for a model, data and an accelerator, with a comment for each choice."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import parameter_count, shape_of
from hf_efficient.facts.models import find_model
from hf_efficient.facts.tables import Accelerator
from hf_efficient.recipe.load import rendered
from hf_efficient.recipe.objectives import ObjectiveName
from hf_efficient.text import counted

AdapterMethod = Literal["lora", "qlora", "full"]

FEW_ROWS = 20  # fewer rows than that leave nothing to hold out for an evaluation

_HELD_OUT = 10  # rows, where a share of 0.05 to 0.2 can be as many: one or two say nothing

_SMALL_DATA = 500  # rows; of fewer, batches of 16 packed rows would leave a handful of optimizer steps

_BESIDE_THE_WEIGHTS = 11 * 2**30
"""Bytes, an estimate: of 1B to 8B Llamas under bases/lora with 2 x 2048 tokens, the plan says 9.1 to 10.7 GiB."""

_DTYPES = {"lora": "float16", "qlora": "float16", "full": "float32"}  # of weights where there is no bfloat16


@dataclass(frozen=True)
class NewRecipe:
    name: str
    model: str
    data: str
    accelerator: Accelerator | None  # None for a CPU
    adapter: AdapterMethod | None = None  # None takes the one that fits
    objective: ObjectiveName = "sft"
    format: str | None = None  # of the data, as ``rows``; None where they were not read
    rows: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def chosen_adapter(self) -> AdapterMethod:
        return self.adapter or fitting_adapter(self.model, self.accelerator)


def fitting_adapter(model: str, accelerator: Accelerator | None) -> AdapterMethod:
    """LoRA where the 16-bit weights fit with room to train, else QLoRA, as for a model of unknown size. On a CPU, LoRA:
    4-bit products are slow there."""
    if accelerator is None:
        return "lora"
    parameters = parameters_of(model)
    fits = parameters is not None and 2 * parameters + _BESIDE_THE_WEIGHTS < accelerator.usable_memory_bytes
    return "lora" if fits else "qlora"


def parameters_of(model: str) -> int | None:
    """Of a known hub model, or a local folder with its configuration; None for another one."""
    config = Path(model).expanduser() / "config.json"
    try:
        if config.is_file():
            return parameter_count(shape_of(json.loads(config.read_text(encoding="utf-8"))))
        fact = find_model(model)
        return fact.published_parameters or parameter_count(shape_of(fact.config))
    except (ModelError, OSError, ValueError):
        return None


def bases_of(new: NewRecipe) -> str:
    base = f"bases/{new.chosen_adapter}"
    if new.objective == "sft":
        return base
    own = "bases/kto" if new.objective == "kto" else "bases/preference"
    return own if new.chosen_adapter == "lora" else f"[{base}, {own}]"


def recipe_text(new: NewRecipe) -> str:
    return rendered(
        Path(__file__).with_name("new.yaml.jinja"),
        new=new,
        adapter=new.chosen_adapter,
        bases=bases_of(new),
        dtype=_dtype(new),
        rows=counted(new.rows or 0, "row"),
        holds_out=new.rows is None or new.rows >= FEW_ROWS,
        eval_fraction=0.05 if new.rows is None else round(min(max(0.05, _HELD_OUT / max(new.rows, 1)), 0.2), 2),
        few_rows=new.rows is not None and new.rows < _SMALL_DATA,
    )


def _dtype(new: NewRecipe) -> str | None:
    if new.accelerator is None:
        return "float32"
    return _DTYPES[new.chosen_adapter] if new.accelerator.lacks_bfloat16 else None
