"""The global batch against what it is made of."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads
from hf_efficient.recipe.schema import DERIVED, Recipe

__all__ = [
    "ACCUMULATION",
    "GLOBAL_BATCH",
    "batch_fault",
    "batch_product",
    "global_batch_is_divided",
    "global_batch_stays",
    "names_accumulation",
    "planned_processes",
]

GLOBAL_BATCH = "distributed.global_batch_size"
ACCUMULATION = "train.gradient_accumulation_steps"
_ROWS = "train.per_device_train_batch_size"


@reads(GLOBAL_BATCH, "distributed.processes", "distributed.nodes", _ROWS, ACCUMULATION)
def global_batch_is_divided(settings: Settings) -> list[Contradiction]:
    """The processes divide it; where only a launch tells their number, the rows of one on each machine do."""
    recipe = settings.recipe
    is_open = recipe.distributed.processes == "auto" or not settings.was_set("distributed.processes")
    fault = batch_fault(settings, None if is_open else planned_processes(recipe))
    return [] if fault is None else [fault]


@reads(GLOBAL_BATCH, "train.auto_find_batch_size")
def global_batch_stays(settings: Settings) -> list[Contradiction]:
    """The Trainer halves the rows of a process where memory runs out, and accumulates as often as before."""
    if settings.recipe.distributed.global_batch_size is None or not settings.train("auto_find_batch_size"):
        return []
    message = f"is true, which makes the batch smaller where memory runs out, but `{GLOBAL_BATCH}` is set."
    return [("train.auto_find_batch_size", message, "Remove one of them.")]


def planned_processes(recipe: Recipe) -> int:
    """On all machines, as far as the recipe tells: ``processes: auto`` counts for one on each."""
    distributed = recipe.distributed
    return distributed.nodes * (1 if distributed.processes == "auto" else distributed.processes)


def names_accumulation(recipe: Recipe) -> bool:
    """Whether the recipe itself says how often gradients are accumulated."""
    origin = recipe.provenance.get(ACCUMULATION)
    return "gradient_accumulation_steps" in recipe.train and (origin is None or origin.source != DERIVED)


def batch_fault(settings: Settings, processes: int | None) -> Contradiction | None:
    """What is wrong with a global batch that is named; None where nothing is, and where none is.

    Args:
        settings: the recipe.
        processes: that train, on all machines; None where only their launch will tell: then there may be any number.
    """
    recipe = settings.recipe
    named = recipe.distributed.global_batch_size
    if named is None:
        return None
    rows = int(settings.train("per_device_train_batch_size"))
    known = recipe.distributed.nodes if processes is None else processes
    of = "process" if processes is not None else "machine"
    product = batch_product(rows, known, of)
    if named % (rows * known):
        message = f"is {named}, which {rows * known} sequences at a time ({product}) do not divide."
        return GLOBAL_BATCH, message, _nearest(named, rows, known, of)
    said = recipe.train["gradient_accumulation_steps"] if names_accumulation(recipe) else None
    accumulated = named // (rows * known)
    if said is None or said == accumulated or (processes is None and accumulated % said == 0):
        return None
    other = said * rows * known
    message = f"is {said}, a global batch of {other} ({product}), but `{GLOBAL_BATCH}` is {named}."
    return ACCUMULATION, message, f"Write null, which makes it {accumulated}, or {GLOBAL_BATCH}={other}."


def batch_product(rows: int, number: int, of: str) -> str:
    """What a micro-batch of all is made of, in words.

    Args:
        rows: of one process.
        number: of processes, or of machines.
        of: ``process`` or ``machine``.
    """
    return f"{_ROWS} {rows} x {_many(number, of)}"


def _many(number: int, of: str) -> str:
    return f"{number} {of}" + (("es" if of == "process" else "s") if number > 1 else "")


def _nearest(named: int, rows: int, number: int, of: str) -> str:
    """The values next to those written that would do."""
    at_once = rows * number
    below = named // at_once * at_once
    ways = [f"{GLOBAL_BATCH}={f'{below} or {below + at_once}' if below else at_once}"]
    fewer = next((few for few in range(rows - 1, 0, -1) if named % (few * number) == 0), None)
    if fewer is not None:
        ways.append(f"{_ROWS}={fewer}")
    counts = [*range(number - 1, 0, -1), *range(number + 1, named // rows + 1)]
    other = next((one for one in counts if named % (rows * one) == 0), None)
    if other is not None:
        ways.append(_many(other, of))
    return f"Take {', or '.join(ways)}."
