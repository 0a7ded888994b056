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


@rule("train.fsdp", "train.fsdp_config", "train.deepspeed")
def models_are_not_sharded(settings: Settings) -> Iterator[Contradiction]:
    """The engine is named in one place, from which the launch, its checks and the plan are derived."""
    for name in ("fsdp", "fsdp_config", "deepspeed"):
        if settings.train(name):
            message = "is set, but `distributed.strategy` says how a recipe's model is spread, and the launch is "
            instead = "zero2` (zero1, zero3), with `distributed.offload" if name == "deepspeed" else "fsdp2"
            remedy = f"Remove it, and write `distributed.strategy: {instead}`."
            yield f"train.{name}", f"{message}derived from it.", remedy


@rule("distributed")
def one_process_is_not_spread(settings: Settings) -> Iterator[Contradiction]:
    distributed = settings.recipe.distributed
    if distributed.strategy != "none":
        return
    for name in (one for one in ("processes", "nodes") if getattr(distributed, one) != 1):
        message = f"is none, which is one process, but `distributed.{name}` is {getattr(distributed, name)}."
        yield "distributed.strategy", message, f"Write ddp, or one of zero1, zero2, zero3 and fsdp2; or {name}: 1."


@rule("distributed", "train.optim")
def offload_fits_the_strategy(settings: Settings) -> Iterator[Contradiction]:
    """DeepSpeed offloads the optimizer by itself, and takes its own AdamW for that; torch with the weights alone."""
    distributed, optimizer = settings.recipe.distributed, str(settings.train("optim"))
    strategy, offload = distributed.strategy, distributed.offload
    key = "distributed.offload.optimizer"
    if offload.optimizer and strategy == "fsdp2":
        message = "is set, but `distributed.strategy: fsdp2` offloads the optimizer's state with the weights alone."
        yield key, message, "Write `parameters: true` in its place."
    elif offload.optimizer and strategy not in _ZERO:
        message = f"is set, but `distributed.strategy: {strategy}` cannot offload it."
        yield key, message, "Write `strategy: zero2` (or zero1, zero3)."
    elif offload.optimizer and optimizer not in ("adamw_torch", "adamw_torch_fused"):
        message = f"is set, but DeepSpeed steps on the host with its own AdamW, and `train.optim` is {optimizer}."
        yield key, message, "Write `train.optim: adamw_torch`, or remove it."
    if offload.parameters and strategy not in ("zero3", "fsdp2"):
        message = f"is set, but under `distributed.strategy: {strategy}` each process needs the whole weights."
        yield "distributed.offload.parameters", message, "Write `strategy: zero3` or `strategy: fsdp2`."


@rule("distributed")
def disks_take_what_is_offloaded(settings: Settings) -> Iterator[Contradiction]:
    """A folder needs something that is offloaded; DeepSpeed's ZeRO-3 alone takes a disk."""
    distributed, key = settings.recipe.distributed, "distributed.offload.nvme_path"
    if distributed.offload.nvme_path is None:
        return
    if not (distributed.offload.optimizer or distributed.offload.parameters):
        remedy = "Write `offload.optimizer: true` or `offload.parameters: true` as well, or remove it."
        yield key, "is set, but nothing is offloaded.", remedy
    if distributed.strategy != "zero3":
        message = f"is set, but `distributed.strategy: {distributed.strategy}` offloads to the host's memory alone."
        yield key, message, "Write `strategy: zero3`, or remove it."


@rule("distributed.strategy", "train.optim")
def optimizer_can_be_sharded(settings: Settings) -> Iterator[Contradiction]:
    """torch's own can, wherever the cut is; bitsandbytes' under ZeRO."""
    strategy, optimizer = settings.recipe.distributed.strategy, settings.train("optim")
    if strategy not in (*_ZERO, "fsdp2") or optimizer is None or str(optimizer) in _TORCH:
        return
    if strategy == "fsdp2" or not str(optimizer).startswith(_BITSANDBYTES):
        message = f"is {optimizer}, whose state `distributed.strategy: {strategy}` cannot shard over processes."
        yield "train.optim", message, "Write `train.optim: adamw_torch_fused`, or `distributed.strategy: ddp`."


@rule("distributed.strategy", "adapter")
def weights_can_be_sharded(settings: Settings) -> Iterator[Contradiction]:
    """A fused LoRA layer reads its base's weight in the backward, when ZeRO-3 and FSDP2 have given it back. DeepSpeed's
    ZeRO-3 cuts weights that are numbers; bitsandbytes' are packed, with constants beside them."""
    strategy, adapter = settings.recipe.distributed.strategy, settings.recipe.adapter
    if adapter.fused is True and strategy in ("zero3", "fsdp2"):
        message = f"is true, but `distributed.strategy: {strategy}` shards the weights that fused layers read."
        yield "adapter.fused", message, "Write false, or ddp, zero1 or zero2."
    if adapter.method != "qlora":
        return
    bits = 4 if adapter.quantization is None else adapter.quantization.bits
    if strategy == "zero3":
        message = f"is zero3, which cannot shard the {bits}-bit weights of `adapter.method: qlora`."
        remedy = "Write fsdp2, which shards 4-bit ones, or zero2, where each process holds all of them."
        yield "distributed.strategy", message, remedy
    if strategy == "fsdp2" and bits == 8:
        message = "is fsdp2, which cannot shard 8-bit weights."
        yield "distributed.strategy", message, "Write `adapter.quantization.bits: 4`, or `strategy: ddp`."


@rule(GLOBAL_BATCH, "train.auto_find_batch_size")
def global_batch_stays(settings: Settings) -> Iterator[Contradiction]:
    if settings.recipe.distributed.global_batch_size is not None and settings.train("auto_find_batch_size"):
        message = f"is true, which makes the batch smaller where memory runs out, but `{GLOBAL_BATCH}` is set."
        yield "train.auto_find_batch_size", message, "Remove one of them."


@rule(GLOBAL_BATCH, "distributed.processes", "distributed.nodes", _ROWS, ACCUMULATION)
def global_batch_is_divided(settings: Settings) -> Iterator[Contradiction]:
    """The processes divide it; where only a launch knows their number, the rows of one on each machine do."""
    recipe = settings.recipe
    is_open = recipe.distributed.processes == "auto" or not settings.was_set("distributed.processes")
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


@rule("faults", "distributed", "objective")
def faults_can_be_handled(settings: Settings) -> Iterator[Contradiction]:
    """DeepSpeed updates the weights within the backward, sharded states are not taken back, and a step is divided on
    one process alone, where its loss is a sum over tokens."""
    recipe = settings.recipe
    faults, strategy = recipe.faults, recipe.distributed.strategy
    unable = {"skip": ("zero1", "zero2", "zero3"), "rollback": ("zero1", "zero2", "zero3", "fsdp2"), "stop": ()}
    if strategy in unable[faults.on_non_finite]:
        message = f"is {faults.on_non_finite}, which `distributed.strategy: {strategy}` cannot do."
        yield "faults.on_non_finite", message, "Write stop, or another strategy (ddp)."
    if faults.on_oom == "stop":
        return
    if recipe.distributed.processes not in (1, "auto") or recipe.distributed.nodes > 1:
        yield "faults.on_oom", "is shrink, which works on one process.", "Write stop, or `distributed.processes: 1`."
    if recipe.objective != "sft":
        message = f"is shrink, which splits steps of `objective: sft` alone, not of `{recipe.objective}`."
        yield "faults.on_oom", message, "Write stop."


@rule("checkpoints", "distributed.strategy", "train.push_to_hub")
def what_cannot_write_in_the_background(settings: Settings) -> Iterator[Contradiction]:
    strategy, uploads = settings.recipe.distributed.strategy, settings.train("push_to_hub")
    key = f"distributed.strategy: {strategy}" if strategy in _ZERO else "train.push_to_hub" * bool(uploads)
    if settings.recipe.checkpoints.background and key:
        yield "checkpoints.background", f"is true, which does not work with `{key}`.", "Write false."
