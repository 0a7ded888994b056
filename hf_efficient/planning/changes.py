"""What may be changed in a recipe so that it fits or runs faster.

To add a change, write a row of ``facts/data/plan_changes.yaml``. Where ``when`` and ``matters`` do not say it, write a
function of its name that takes a ``Situation`` and returns overrides, or None where it does not apply, is already set,
or could not matter. One that ``train`` refuses says so in what it costs, and ``--fix`` never writes it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from transformers import PreTrainedModel

from hf_efficient.facts.tables import Accelerator, key_table
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules.distributed import ACCUMULATION, names_accumulation
from hf_efficient.recipe.rules.settings import Settings, all_hold
from hf_efficient.recipe.rules.training import fits_chunked_loss
from hf_efficient.recipe.schema import Recipe, mixed_precision
from hf_efficient.records.plan import PlannedMemory

_MATTERS = 0.01
_MUCH_PADDING = 0.05
_SHORTEST = 128
_EVERY = "every_n_layers"
_ROWS = "train.per_device_train_batch_size"


@dataclass(frozen=True)
class Situation:
    """A recipe that was simulated, with the defaults of ``SFTConfig``; ``weights`` is the dtype of the base."""

    settings: Settings
    memory: PlannedMemory
    weights: str
    device: Accelerator
    fits: bool
    padding_share: float = 0.0

    @property
    def recipe(self) -> Recipe:
        return self.settings.recipe

    @property
    def is_padded_sft(self) -> bool:
        """Whether a twentieth of the positions or more is padding, in rows that could be batched otherwise."""
        return self.padding_share >= _MUCH_PADDING and OBJECTIVES[self.recipe.objective].imitates

    @property
    def is_replicated(self) -> bool:
        distributed = self.recipe.distributed
        return distributed.processes not in ("auto", 1) and distributed.strategy in ("auto", "ddp")

    def value(self, name: str) -> Any:
        """Of a dotted key of the recipe, or of a property here."""
        return self.settings.value(name) if "." in name else getattr(self, name)

    def accumulating(self, micro_batches: int) -> dict[str, int]:
        follows = self.recipe.distributed.global_batch_size is not None and not names_accumulation(self.recipe)
        return {} if follows else {ACCUMULATION: micro_batches}

    def matters(self, *categories: str) -> bool:
        held = sum(self.memory.category_peak_bytes.get(name, 0) for name in categories)
        return held >= _MATTERS * self.memory.peak_allocated_bytes


@dataclass(frozen=True)
class Change:
    """Other values for a recipe, by dotted key. ``keeps_training``: the same weights learn from the same tokens;
    rounding may differ. ``repeats``: it can be proposed again once it is made, for about half of what it saved."""

    overrides: Mapping[str, Any]
    gives: str
    costs: str
    keeps_training: bool = True
    repeats: bool = False


Proposer = Callable[[Situation], Change | None]
_Propose = Callable[[Situation], Change | dict[str, Any] | None]
_PROPOSE: dict[str, _Propose] = {}


def _change(propose: _Propose) -> _Propose:
    _PROPOSE[propose.__name__] = propose
    return propose


def _of_row(name: str, row: Mapping[str, Any]) -> Proposer:
    """A proposer by its function, or by what its row sets; overrides alone have the words of the row."""
    about = {key: row[key] for key in ("gives", "costs", "keeps_training", "repeats") if key in row}

    def set_in_table(situation: Situation) -> dict[str, Any] | None:
        applies = all_hold(row.get("when", {}), situation.value)
        return row["set"] if applies and ("matters" not in row or situation.matters(*row["matters"])) else None

    def proposed(situation: Situation) -> Change | None:
        found = _PROPOSE.get(name, set_in_table)(situation)
        return Change(found, **about) if isinstance(found, dict) else found

    proposed.__name__ = name
    return proposed


def activation_checkpointing(settings: Settings) -> tuple[str, bool]:
    """The field of ``train:`` that decides about it, of the two names that transformers knows, and whether it is on."""
    newer = settings.train("activation_checkpointing")
    if newer is not None:
        return "activation_checkpointing", bool(newer)
    return "gradient_checkpointing", bool(settings.train("gradient_checkpointing"))


@_change
def mix_float16(situation: Situation) -> dict[str, Any] | None:
    mixes = situation.device.lacks_bfloat16 and mixed_precision(situation.recipe) == "bf16"
    return {"train.fp16": True, "train.bf16": False} if mixes else None


@_change
def smaller_evaluation_batch(situation: Situation) -> dict[str, Any] | None:
    rows = int(situation.settings.train("per_device_eval_batch_size"))
    halves = rows > 1 and situation.memory.peak_phase == "evaluation"
    return {"train.per_device_eval_batch_size": rows // 2} if halves else None


@_change
def chunked_loss(situation: Situation) -> dict[str, Any] | None:
    chunks = situation.settings.train("loss_type") == "nll" and fits_chunked_loss(situation.settings)
    return {"train.loss_type": "chunked_nll"} if chunks and situation.matters("logits") else None


@_change
def checkpoint_activations(situation: Situation) -> dict[str, Any] | None:
    field, on = activation_checkpointing(situation.settings)
    return None if on or not situation.matters("activations") else {f"train.{field}": True}


@_change
def checkpoint_every_second_layer(situation: Situation) -> Change | None:
    """Where all layers are checkpointed though the recipe fits, or none is and it does not."""
    field, on = activation_checkpointing(situation.settings)
    held = situation.settings.train(f"{field}_kwargs") or {}
    if not isinstance(held, dict) or on != situation.fits or held.get(_EVERY, 1) != 1:
        return None
    # The installed transformers may lack ``every_n_layers`` (5.23 has it).
    enable = getattr(PreTrainedModel, "activation_checkpointing_enable", None)
    if not (on or situation.matters("activations")) or enable is None or _EVERY not in signature(enable).parameters:
        return None
    gives, costs = "half of the layers keep their input alone", "the forward of every second layer is computed twice"
    if on:
        gives, costs = "only every second layer's forward is computed twice", "what the others compute is kept"
    return Change({f"train.{field}": True, f"train.{field}_kwargs": {**held, _EVERY: 2}}, gives, costs)


@_change
def smaller_micro_batch(situation: Situation) -> Change | None:
    """Divide by the smallest factor, so that the global batch stays the same."""
    settings = situation.settings
    rows = int(settings.train("per_device_train_batch_size"))
    if rows < 2 or not situation.matters("activations", "logits", "rest"):
        return None
    costs = "more and smaller kernels for the same tokens"
    if settings.train("packing") or settings.train("padding_free"):
        costs += "; attention, whose mask covers the whole micro-batch, has less to compute"
    factor = next(number for number in range(2, rows + 1) if rows % number == 0)
    accumulated = factor * int(settings.train("gradient_accumulation_steps"))
    gives = "activations and logits of fewer rows at a time; the global batch stays the same"
    return Change({_ROWS: rows // factor, **situation.accumulating(accumulated)}, gives, costs, repeats=True)


@_change
def weights_in_bfloat16(situation: Situation) -> Change | None:
    if situation.weights != "float32" or situation.device.lacks_bfloat16:
        return None
    trains_all = situation.recipe.adapter.method == "full"
    gives = "the weights take half of the memory"
    costs = "a base that is rounded"
    if trains_all:
        gives += ", and so do their gradients and the optimizer's state"
        costs = "updates below the weights' last digit (of three) are lost"
    return Change({"model.dtype": "bfloat16"}, gives, costs, keeps_training=not trains_all)


@_change
def shard_weights_by_zero(situation: Situation) -> dict[str, Any] | None:
    """DeepSpeed leaves quantized weights whole."""
    whole = situation.is_replicated or situation.recipe.distributed.strategy in ("zero1", "zero2")
    shards = whole and situation.recipe.adapter.method != "qlora" and situation.matters("weights")
    return {"distributed.strategy": "zero3"} if shards else None


@_change
def offload_the_optimizer(situation: Situation) -> dict[str, Any] | None:
    """Under DeepSpeed, whose own AdamW steps there; from plain data parallelism with ZeRO-2."""
    distributed = situation.recipe.distributed
    under_zero = distributed.strategy in ("zero1", "zero2", "zero3")
    if distributed.offload.optimizer or not (under_zero or situation.is_replicated):
        return None
    strategy = {} if under_zero else {"distributed.strategy": "zero2"}
    is_adamw = situation.settings.train("optim") in ("adamw_torch", "adamw_torch_fused")
    offloads = is_adamw and situation.matters("optimizer_state")
    return {**strategy, "distributed.offload.optimizer": True} if offloads else None


@_change
def shorter_rows(situation: Situation) -> Change | None:
    """Halve ``train.max_length``; without a named global batch, packs are accumulated twice as often."""
    train, recipe = situation.settings.train, situation.recipe
    length = train("max_length")
    if length is None or length < 2 * _SHORTEST or not situation.matters("activations", "logits", "rest"):
        return None
    overrides: dict[str, Any] = {"train.max_length": length // 2}
    fate = {"truncate": "are cut", "drop": "are left out", "error": "end the run"}[recipe.data.overlong]
    costs = f"examples of more than {length // 2:,} tokens {fate}"
    if train("packing") and recipe.distributed.global_batch_size is not None:
        costs += "; a step of as many packs sees half as many tokens"
    elif train("packing"):
        overrides[ACCUMULATION] = 2 * int(train("gradient_accumulation_steps"))
    gives = "activations and logits of fewer tokens at a time"
    return Change(overrides, gives, costs, keeps_training=False, repeats=True)


@_change
def store_activations(situation: Situation) -> dict[str, Any] | None:
    field, on = activation_checkpointing(situation.settings)
    return {f"train.{field}": False} if on and situation.fits else None


@_change
def larger_micro_batch(situation: Situation) -> dict[str, Any] | None:
    rows = int(situation.settings.train("per_device_train_batch_size"))
    accumulated = int(situation.settings.train("gradient_accumulation_steps"))
    doubles = situation.fits and accumulated % 2 == 0
    return {_ROWS: 2 * rows, **situation.accumulating(accumulated // 2)} if doubles else None


CHANGES = [_of_row(name, row) for name, row in key_table("plan_changes").items()]
