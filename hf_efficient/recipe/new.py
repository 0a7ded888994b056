"""A short recipe for a model, data and an accelerator, with a comment for each choice."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import parameter_count, shape_of
from hf_efficient.facts.accelerators import Accelerator
from hf_efficient.facts.environment import cpu_emulates_bf16
from hf_efficient.facts.models import find_model
from hf_efficient.recipe.objectives import ObjectiveName
from hf_efficient.recipe.writing import dump_yaml
from hf_efficient.text import counted

AdapterMethod = Literal["lora", "qlora", "full"]

FEW_ROWS = 20  # fewer rows than that leave nothing to hold out for an evaluation

_SMALL_DATA = 500  # rows; of fewer, batches of 16 packed rows would leave a handful of optimizer steps

_BESIDE_THE_WEIGHTS = 11 * 2**30
"""Bytes, an estimate: of 1B to 8B Llamas under bases/lora with 2 x 2048 tokens, the plan says 9.1 to 10.7 GiB."""

_DTYPES = {"lora": "float16", "qlora": "float16", "full": "float32"}  # of weights where there is no bfloat16

_COMMENT_COLUMN = 44


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
    where = "a CPU" if new.accelerator is None else new.accelerator.name
    output = f"output_dir: {_scalar(f'outputs/{new.name}')}"
    return "\n".join([f"# For {where}. Every key: docs/recipe-keys.md", *_lines(new), output, ""])


def _lines(new: NewRecipe) -> Iterator[str]:
    told = {"lora": "LoRA", "qlora": "LoRA on 4-bit weights", "full": "all weights are trained"}[new.chosen_adapter]
    yield _line(f"extends: {bases_of(new)}", told)
    yield f"name: {_scalar(new.name)}"
    dtype = _dtype(new)
    yield f"model: {_flow({'id': new.model, **dtype}) if dtype else _scalar(new.model)}"
    yield "data:"
    source = _flow({"path": new.data, "columns": dict(new.columns)}) if new.columns else _scalar(new.data)
    yield _line(f"  train: {source}", new.format or "a hub name, not read so far")
    holds_out = new.rows is None or new.rows >= FEW_ROWS
    if holds_out:
        yield _line("  eval_fraction: 0.05", "this share is held out for the evaluation")
    else:
        yield _line("  eval_fraction: null", f"{counted(new.rows or 0, 'row')}: too few to hold some out")
    if new.format in ("messages", "sharegpt"):
        yield _line("  targets: assistant", "the loss covers all answers; last: the last one")
    yield "train:"
    if new.objective != "sft":
        yield _line("  beta: 0.1", "how close to the reference model it stays")
        yield _line("  max_length: 1024", "tokens of a prompt with one of its answers")
        yield "  learning_rate: 5.0e-6"
    else:
        yield _line("  max_length: 2048", "tokens; longer examples are cut")
    yield from _steps(new)
    yield from _precision(new)
    if holds_out:
        yield _line("  eval_on_start: true", "so that the losses before and after can be compared")
    else:
        yield '  eval_strategy: "no"'
        yield "  eval_steps: null"
        yield "evaluate: {metrics: null}"


def _steps(new: NewRecipe) -> Iterator[str]:
    if new.rows is not None and new.rows < _SMALL_DATA:
        if new.objective == "sft":
            yield _line("  packing: false", f"{counted(new.rows, 'row')}: packed, they would be a few steps")
        yield _line("  gradient_accumulation_steps: 1", "small batches make more steps of few rows")


def _dtype(new: NewRecipe) -> dict[str, str]:
    if new.accelerator is None:
        return {"dtype": "float32"}
    return {"dtype": _DTYPES[new.chosen_adapter]} if new.accelerator.lacks_bfloat16 else {}


def _precision(new: NewRecipe) -> Iterator[str]:
    if new.accelerator is None:
        if cpu_emulates_bf16():
            yield _line("  bf16: false", "this CPU only emulates it")
        yield _line("  gradient_checkpointing: false", "true saves memory, and takes longer")
    elif new.accelerator.lacks_bfloat16:
        yield _line("  bf16: false", f"{new.accelerator.name} has no bfloat16")
        yield "  fp16: true"


def _line(text: str, comment: str) -> str:
    return f"{text:<{_COMMENT_COLUMN - 2}}  # {comment}"


def _scalar(text: str) -> str:
    return dump_yaml([text]).removeprefix("- ").removesuffix("\n")


def _flow(values: Mapping[str, object]) -> str:
    parts = (f"{key}: {_flow(one) if isinstance(one, Mapping) else _scalar(str(one))}" for key, one in values.items())
    return f"{{{', '.join(parts)}}}"
