"""Ways to spread a model over several devices.

What the engines that shard a model cannot shard.

The global batch against what it is made of.

How often gradients are accumulated, from ``distributed.global_batch_size``.
"""

from __future__ import annotations

from typing import Any

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads
from hf_efficient.recipe.schema import DERIVED, Origin, Recipe, told_where
from hf_efficient.recipe.train_fields import train_fields


@reads("train.fsdp", "train.fsdp_config", "train.deepspeed")
def models_are_not_sharded(settings: Settings) -> list[Contradiction]:
    """The engine is named in one place, from which the launch, its checks and the plan are derived."""
    message = (
        "is set, but `distributed.strategy` says how a recipe's model is spread, and the launch is derived from it."
    )
    remedies = {
        "fsdp": "fsdp2",
        "fsdp_config": "fsdp2",
        "deepspeed": "zero2` (zero1, zero3), with `distributed.offload",
    }
    return [
        (f"train.{name}", message, f"Remove it, and write `distributed.strategy: {instead}`.")
        for name, instead in remedies.items()
        if settings.train(name)
    ]


@reads("distributed")
def one_process_is_not_spread(settings: Settings) -> list[Contradiction]:
    """``none`` is one process."""
    distributed = settings.recipe.distributed
    if distributed.strategy != "none" or distributed.processes == 1:
        return []
    message = f"is none, which is one process, but `distributed.processes` is {distributed.processes}."
    return [("distributed.strategy", message, "Write ddp, or one of zero1, zero2, zero3 and fsdp2; or processes: 1.")]


@reads("distributed", "train.optim")
def offload_fits_the_strategy(settings: Settings) -> list[Contradiction]:
    """DeepSpeed offloads the optimizer by itself, and takes its own AdamW for that; torch with the weights alone."""
    distributed, optimizer = settings.recipe.distributed, str(settings.train("optim"))
    strategy, offload = distributed.strategy, distributed.offload
    found: list[Contradiction] = []
    if offload.optimizer and strategy == "fsdp2":
        message = "is set, but `distributed.strategy: fsdp2` offloads the optimizer's state with the weights alone."
        found.append(("distributed.offload.optimizer", message, "Write `parameters: true` in its place."))
    elif offload.optimizer and strategy not in ("zero1", "zero2", "zero3"):
        message = f"is set, but `distributed.strategy: {strategy}` cannot offload it."
        found.append(("distributed.offload.optimizer", message, "Write `strategy: zero2` (or zero1, zero3)."))
    elif offload.optimizer and optimizer not in ("adamw_torch", "adamw_torch_fused"):
        message = f"is set, but DeepSpeed steps on the host with its own AdamW, and `train.optim` is {optimizer}."
        found.append(("distributed.offload.optimizer", message, "Write `train.optim: adamw_torch`, or remove it."))
    if offload.parameters and strategy not in ("zero3", "fsdp2"):
        message = f"is set, but under `distributed.strategy: {strategy}` each process needs the whole weights."
        found.append(("distributed.offload.parameters", message, "Write `strategy: zero3` or `strategy: fsdp2`."))
    return found


_ZERO = ("zero1", "zero2", "zero3")
_TORCH = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop")
"""Step on each number by itself, so that any share of a parameter can be stepped on, and know DTensors."""
_BITSANDBYTES = ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw", "lion", "paged_lion", "ademamix", "paged_ademamix")
"""Beginnings of names: they step on each number by itself too, in blocks of a flat row, which is what ZeRO gives them;
FSDP2's DTensors are unknown to them. All others look at whole matrices (adafactor, galore, apollo, muon, lomo)."""


@reads("distributed.strategy", "train.optim")
def optimizer_can_be_sharded(settings: Settings) -> list[Contradiction]:
    """torch's own can, wherever the cut is; bitsandbytes' under ZeRO."""
    strategy, optimizer = settings.recipe.distributed.strategy, settings.train("optim")
    if strategy not in (*_ZERO, "fsdp2") or optimizer is None or str(optimizer) in _TORCH:
        return []
    if strategy in _ZERO and str(optimizer).startswith(_BITSANDBYTES):
        return []
    message = f"is {optimizer}, whose state `distributed.strategy: {strategy}` cannot share out over processes."
    return [("train.optim", message, "Write `train.optim: adamw_torch_fused`, or `distributed.strategy: ddp`.")]


@reads("distributed.strategy", "adapter")
def quantized_weights_can_be_sharded(settings: Settings) -> list[Contradiction]:
    """DeepSpeed's ZeRO-3 cuts weights that are numbers; bitsandbytes' are packed, with constants beside them."""
    strategy, adapter = settings.recipe.distributed.strategy, settings.recipe.adapter
    if adapter.method != "qlora":
        return []
    bits = 4 if adapter.quantization is None else adapter.quantization.bits
    if strategy == "zero3":
        message = f"is zero3, which cannot share out the {bits}-bit weights of `adapter.method: qlora`."
        remedy = "Write fsdp2, which shares out 4-bit ones, or zero2, where each process holds all of them."
        return [("distributed.strategy", message, remedy)]
    if strategy == "fsdp2" and bits == 8:
        message = "is fsdp2, which cannot share out 8-bit weights."
        return [("distributed.strategy", message, "Write `adapter.quantization.bits: 4`, or `strategy: ddp`.")]
    return []


@reads("distributed")
def engine_is_named_for_several_machines(settings: Settings) -> list[Contradiction]:
    """One process is on one machine; where offloaded data lie says nothing while nothing is offloaded."""
    distributed = settings.recipe.distributed
    found: list[Contradiction] = []
    if distributed.nodes > 1 and distributed.strategy == "none":
        message = f"is none, which is one process, but `distributed.nodes` is {distributed.nodes}."
        found.append(("distributed.strategy", message, "Write ddp, or one of zero1, zero2, zero3 and fsdp2."))
    offload = distributed.offload
    if offload.nvme_path is not None and not (offload.optimizer or offload.parameters):
        message = "is set, but nothing is offloaded."
        remedy = "Write `offload.optimizer: true` or `offload.parameters: true` as well, or remove it."
        found.append(("distributed.offload.nvme_path", message, remedy))
    if offload.nvme_path is not None and distributed.strategy not in ("zero3",):
        message = f"is set, but `distributed.strategy: {distributed.strategy}` offloads to the host's memory alone."
        found.append(("distributed.offload.nvme_path", message, "Write `strategy: zero3`, or remove it."))
    return found


@reads("distributed.strategy", "distributed.wrap_classes")
def wrap_classes_are_of_fsdp2(settings: Settings) -> list[Contradiction]:
    """DDP wraps the model as a whole, DeepSpeed every module by itself."""
    distributed = settings.recipe.distributed
    if distributed.wrap_classes is None or distributed.strategy == "fsdp2":
        return []
    message = f"is set, but `distributed.strategy: {distributed.strategy}` does not shard by classes of layers."
    return [("distributed.wrap_classes", message, "Write `strategy: fsdp2`, or remove it.")]


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


def with_accumulation(recipe: Recipe, processes: int, remark: str = "") -> Recipe:
    """The recipe with the accumulation that its global batch takes; as it is where it names none, or both.

    Args:
        recipe: the recipe.
        processes: that train, on all machines.
        remark: on their number, for whoever asks where the value comes from.

    Raises:
        RecipeError: they do not divide the global batch, or the accumulation that the recipe names is another.
    """
    if recipe.distributed.global_batch_size is None:
        return recipe
    settings = Settings(recipe, train_fields(recipe.method))
    fault = batch_fault(settings, processes)
    if fault is not None:
        key, message, remedy = fault
        where = told_where(recipe, key).removesuffix(": ") or str(recipe.path or recipe.name)
        raise RecipeError([Problem(where, key, message, remedy)])
    if names_accumulation(recipe):
        return recipe
    rows = int(settings.train("per_device_train_batch_size"))
    accumulated = recipe.distributed.global_batch_size // (rows * processes)
    derived = recipe.model_copy(update={"train": {**recipe.train, "gradient_accumulation_steps": accumulated}})
    text = f"{GLOBAL_BATCH} / ({batch_product(rows, processes, 'process')}{remark})"
    derived._provenance = {**recipe.provenance, ACCUMULATION: Origin(DERIVED, text=text)}
    return derived


def as_planned(recipe: Recipe) -> Recipe:
    """The same by the processes that the recipe itself tells; one on each machine where they are counted at the start.

    Raises:
        RecipeError: as above.
    """
    counted = "; `auto` counts at the start" if recipe.distributed.processes == "auto" else ""
    return with_accumulation(recipe, planned_processes(recipe), counted)


def unnamed_batch(recipe: Recipe) -> dict[str, Any]:
    """Values that keep how often a recipe accumulates, whatever else becomes of it; none where no batch is named."""
    if recipe.distributed.global_batch_size is None:
        return {}
    return {GLOBAL_BATCH: None, ACCUMULATION: int(recipe.train.get("gradient_accumulation_steps", 1))}
