"""How the model is spread over processes, and how often they accumulate gradients to fill the global batch."""

from collections.abc import Iterator
from typing import Any

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.rules.settings import Contradiction, Settings, rule
from hf_efficient.recipe.schema import DERIVED, Origin, Recipe, told_where
from hf_efficient.recipe.train_fields import train_fields

GLOBAL_BATCH = "distributed.global_batch_size"
ACCUMULATION = "train.gradient_accumulation_steps"
_ROWS = "train.per_device_train_batch_size"

_ZERO = ("zero1", "zero2", "zero3")
_TORCH = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop")
"""Step on each number by itself, so that any share of a parameter can be stepped on, and know DTensors."""
_BITSANDBYTES = ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw", "lion", "paged_lion", "ademamix", "paged_ademamix")
"""Beginnings of names: they step on each number by itself too, in blocks of a flat row, which is what ZeRO gives them;
FSDP2's DTensors are unknown to them. All others look at whole matrices (adafactor, galore, apollo, muon, lomo)."""


@rule("distributed.strategy", "train.optim")
def optimizer_can_be_sharded(settings: Settings) -> Iterator[Contradiction]:
    """torch's own can, wherever the cut is; bitsandbytes' under ZeRO."""
    strategy, optimizer = settings.recipe.distributed.strategy, settings.train("optim")
    if strategy not in (*_ZERO, "fsdp2") or optimizer is None or str(optimizer) in _TORCH:
        return
    if strategy == "fsdp2" or not str(optimizer).startswith(_BITSANDBYTES):
        message = f"is {optimizer}, whose state `distributed.strategy: {strategy}` cannot shard over processes."
        yield "train.optim", message, "Write `train.optim: adamw_torch_fused`, or `distributed.strategy: ddp`."


@rule(GLOBAL_BATCH, "distributed.processes", "distributed.nodes", _ROWS, ACCUMULATION)
def global_batch_is_divided(settings: Settings) -> Iterator[Contradiction]:
    """The processes divide it; where only a launch knows their number, the rows of one on each machine do."""
    recipe = settings.recipe
    is_open = recipe.distributed.processes == "auto" or not told_where(recipe, "distributed.processes")
    yield from _batch_faults(settings, None if is_open else planned_processes(recipe))


def with_accumulation(recipe: Recipe, processes: int, remark: str = "") -> Recipe:
    """The recipe with the accumulation that its global batch takes; as it is where it names none, or both.
    ``processes`` are those on all machines; ``remark`` is on where their number comes from. Raises ``RecipeError``:
    they do not divide the global batch, or the accumulation that the recipe names is another."""
    if recipe.distributed.global_batch_size is None:
        return recipe
    settings = Settings(recipe, train_fields(recipe.objective))
    for key, message, remedy in _batch_faults(settings, processes):
        where = told_where(recipe, key).removesuffix(": ") or str(recipe.path or recipe.name)
        raise RecipeError([Problem(where, key, message, remedy)])
    if names_accumulation(recipe):
        return recipe
    rows = int(settings.train("per_device_train_batch_size"))
    accumulated = recipe.distributed.global_batch_size // (rows * processes)
    derived = recipe.model_copy(update={"train": {**recipe.train, "gradient_accumulation_steps": accumulated}})
    text = f"{GLOBAL_BATCH} / ({_product(rows, processes, 'process')}{remark})"
    derived._provenance = {**recipe.provenance, ACCUMULATION: Origin(DERIVED, text=text)}
    return derived


def as_planned(recipe: Recipe) -> Recipe:
    """The same by the processes that the recipe names; one on each machine where they are counted at the start."""
    counted = "; `auto` counts at the start" if recipe.distributed.processes == "auto" else ""
    return with_accumulation(recipe, planned_processes(recipe), counted)


def unnamed_batch(recipe: Recipe) -> dict[str, Any]:
    """Values that keep how often a recipe accumulates, whatever else becomes of it; none where no batch is named."""
    if recipe.distributed.global_batch_size is None:
        return {}
    return {GLOBAL_BATCH: None, ACCUMULATION: int(recipe.train.get("gradient_accumulation_steps", 1))}


def planned_processes(recipe: Recipe) -> int:
    """On all machines, as far as the recipe says: ``processes: auto`` counts for one on each."""
    distributed = recipe.distributed
    return distributed.nodes * (1 if distributed.processes == "auto" else distributed.processes)


def names_accumulation(recipe: Recipe) -> bool:
    origin = recipe.provenance.get(ACCUMULATION)
    return "gradient_accumulation_steps" in recipe.train and (origin is None or origin.source != DERIVED)


def _batch_faults(settings: Settings, processes: int | None) -> Iterator[Contradiction]:
    """What is wrong with a global batch; with ``processes`` None, for whatever number their launch will start."""
    recipe = settings.recipe
    named = recipe.distributed.global_batch_size
    if named is None:
        return
    rows = int(settings.train("per_device_train_batch_size"))
    known, of = (recipe.distributed.nodes, "machine") if processes is None else (processes, "process")
    at_once = rows * known
    product = _product(rows, known, of)
    if named % at_once:
        message = f"is {named}, which {at_once} sequences at a time ({product}) do not divide."
        below = named // at_once * at_once
        near = f"{below} or {below + at_once}" if below else at_once
        yield GLOBAL_BATCH, message, f"Take {GLOBAL_BATCH}={near}, or other rows or processes."
        return
    said = recipe.train["gradient_accumulation_steps"] if names_accumulation(recipe) else None
    accumulated = named // at_once
    if said is None or said == accumulated or (processes is None and accumulated % said == 0):
        return
    other = said * at_once
    message = f"is {said}, a global batch of {other} ({product}), but `{GLOBAL_BATCH}` is {named}."
    yield ACCUMULATION, message, f"Write null, which makes it {accumulated}, or {GLOBAL_BATCH}={other}."


def _product(rows: int, number: int, of: str) -> str:
    plural = ("es" if of == "process" else "s") if number > 1 else ""
    return f"{_ROWS} {rows} x {number} {of}{plural}"
