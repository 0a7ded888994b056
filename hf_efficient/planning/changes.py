"""What may be changed in a recipe so that it fits or runs faster.

To add a change, write a function that takes a ``Situation`` and returns overrides, or None where it does not apply, is
already set, or could not matter. ``CHANGES`` holds them in the order of this file. One that ``train`` refuses says so
in what it costs, and ``--fix`` never writes it.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_efficient.facts.accelerators import Accelerator
from hf_efficient.recipe.rules.distributed import ACCUMULATION, names_accumulation
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.rules.training import fits_chunked_loss
from hf_efficient.recipe.schema import Recipe, mixed_precision
from hf_efficient.records.plan import PlannedMemory

IN_FLOAT32 = ("adamw_torch", "adamw_torch_fused", "paged_adamw_32bit")
"""Optimizers of the Trainer that are AdamW with moments in float32."""
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
        return self.padding_share >= _MUCH_PADDING and self.recipe.objective == "sft"

    @property
    def is_replicated(self) -> bool:
        distributed = self.recipe.distributed
        return distributed.processes not in ("auto", 1) and distributed.strategy in ("auto", "ddp")

    def accumulating(self, micro_batches: int) -> dict[str, int]:
        follows = self.recipe.distributed.global_batch_size is not None and not names_accumulation(self.recipe)
        return {} if follows else {ACCUMULATION: micro_batches}

    def matters(self, *categories: str) -> bool:
        held = sum(self.memory.category_peak_bytes.get(name, 0) for name in categories)
        return held >= _MATTERS * self.memory.peak_allocated_bytes


@dataclass(frozen=True)
class Change:
    """Other values for a recipe, by dotted key. ``keeps_training``: the same weights learn from the same tokens;
    rounding may differ. ``repeats``: it can be proposed again for the changed recipe, for about half of what it
    saved."""

    overrides: Mapping[str, Any]
    gives: str
    costs: str
    keeps_training: bool = True
    repeats: bool = False


Proposer = Callable[[Situation], Change | None]
_Propose = Callable[[Situation], Change | dict[str, Any] | None]
CHANGES: list[Proposer] = []


def _change(gives: str = "", costs: str = "", **about: bool) -> Callable[[_Propose], Proposer]:
    """Registers a proposer; one that returns overrides alone has these words."""

    def register(propose: _Propose) -> Proposer:
        @functools.wraps(propose)
        def proposed(situation: Situation) -> Change | None:
            found = propose(situation)
            return Change(found, gives, costs, **about) if isinstance(found, dict) else found

        CHANGES.append(proposed)
        return proposed

    return register


def activation_checkpointing(settings: Settings) -> tuple[str, bool]:
    """The field of ``train:`` that decides about it, of the two names that transformers knows, and whether it is on."""
    newer = settings.train("activation_checkpointing")
    if newer is not None:
        return "activation_checkpointing", bool(newer)
    return "gradient_checkpointing", bool(settings.train("gradient_checkpointing"))


@_change(
    gives="float16 is what the device multiplies fast; it has no bfloat16",
    costs="a narrower range: the loss is scaled, and a step whose gradients overflow is left out",
)
def mix_float16(situation: Situation) -> dict[str, Any] | None:
    mixes = situation.device.lacks_bfloat16 and mixed_precision(situation.recipe) == "bf16"
    return {"train.fp16": True, "train.bf16": False} if mixes else None


@_change(
    gives="rows of like length share a micro-batch, so that few positions are padding",
    costs="the examples come in another order, those of like length together",
)
def group_by_length(situation: Situation) -> dict[str, Any] | None:
    grouped = {"train.train_sampling_strategy": "group_by_length"}
    is_grouped = situation.settings.train("train_sampling_strategy") == "group_by_length"
    return grouped if situation.is_padded_sft and not is_grouped else None


@_change(
    gives="logits and activations of fewer rows at a time in an evaluation, which takes more memory than training",
    costs="more and smaller kernels in evaluations",
    repeats=True,
)
def smaller_evaluation_batch(situation: Situation) -> dict[str, Any] | None:
    rows = int(situation.settings.train("per_device_eval_batch_size"))
    halves = rows > 1 and situation.memory.peak_phase == "evaluation"
    return {"train.per_device_eval_batch_size": rows // 2} if halves else None


@_change(
    gives="the attention's scores, which grow with the square of the length, are never held whole",
    costs="nothing: the same attention, in another order of sums",
)
def fused_attention(situation: Situation) -> dict[str, Any] | None:
    return {"model.attn_implementation": "sdpa"} if situation.recipe.model.attn_implementation == "eager" else None


@_change(
    gives="logits are computed and scored tile by tile, and never held whole", costs="the LM head is computed twice"
)
def chunked_loss(situation: Situation) -> dict[str, Any] | None:
    chunks = situation.settings.train("loss_type") == "nll" and fits_chunked_loss(situation.settings)
    return {"train.loss_type": "chunked_nll"} if chunks and situation.matters("logits") else None


@_change(gives="of each layer only the input is kept for the backward", costs="each layer's forward is computed twice")
def checkpoint_activations(situation: Situation) -> dict[str, Any] | None:
    field, on = activation_checkpointing(situation.settings)
    return None if on or not situation.matters("activations") else {f"train.{field}": True}


@_change()
def checkpoint_every_second_layer(situation: Situation) -> Change | None:
    """Where all layers are checkpointed though the recipe fits, or none is and it does not."""
    field, on = activation_checkpointing(situation.settings)
    held = situation.settings.train(f"{field}_kwargs") or {}
    if not isinstance(held, dict) or on != situation.fits or held.get(_EVERY, 1) != 1:
        return None
    if not (on or situation.matters("activations")) or not _can_leave_layers_out():
        return None
    gives, costs = "half of the layers keep their input alone", "the forward of every second layer is computed twice"
    if on:
        gives, costs = "only every second layer's forward is computed twice", "what the others compute is kept"
    return Change({f"train.{field}": True, f"train.{field}_kwargs": {**held, _EVERY: 2}}, gives, costs)


def _can_leave_layers_out() -> bool:
    """Whether the installed transformers has ``every_n_layers`` (5.23 has)."""
    from transformers import PreTrainedModel

    enable = getattr(PreTrainedModel, "activation_checkpointing_enable", None)
    return enable is not None and _EVERY in inspect.signature(enable).parameters


@_change()
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


@_change()
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


@_change(gives="the optimizer's step on a GPU needs no temporary copy of a moment", costs="nothing: the same AdamW")
def fused_optimizer(situation: Situation) -> dict[str, Any] | None:
    named = situation.settings.train("optim") == "adamw_torch"
    return {"train.optim": "adamw_torch_fused"} if named and situation.matters("optimizer_state") else None


@_change(
    gives="the optimizer's state takes a quarter of the memory",
    costs="the moments are rounded to 8 bits, block by block; its authors saw no loss of quality",
)
def eight_bit_optimizer(situation: Situation) -> dict[str, Any] | None:
    """Source of what it costs: Dettmers et al. 2021, 8-bit optimizers via block-wise quantization, table 1."""
    name = situation.settings.train("optim")
    rounds = name in IN_FLOAT32 and not name.startswith("paged") and situation.matters("optimizer_state")
    return {"train.optim": "adamw_8bit"} if rounds else None


@_change(
    gives="the optimizer's state takes a quarter of the memory, and leaves the device where that is full",
    costs="rounded moments; what was moved to the host comes back over PCIe in each step, which is not in the time",
)
def paged_optimizer(situation: Situation) -> dict[str, Any] | None:
    name = situation.settings.train("optim")
    pages = name in (*IN_FLOAT32, "adamw_8bit", "adamw_bnb_8bit") and situation.matters("optimizer_state")
    return {"train.optim": "paged_adamw_8bit"} if pages else None


@_change(
    gives="each GPU keeps its share of the gradients and of the optimizer's state",
    costs="a reduction in every micro-batch, and buckets of a fixed size",
)
def shard_gradients(situation: Situation) -> dict[str, Any] | None:
    shards = situation.is_replicated and situation.matters("optimizer_state", "gradients")
    return {"distributed.strategy": "zero2"} if shards else None


@_change(
    gives="each GPU keeps its share of weights, gradients and optimizer's state",
    costs="weights are gathered for every forward and backward",
)
def shard_weights_by_zero(situation: Situation) -> dict[str, Any] | None:
    """DeepSpeed leaves quantized weights whole."""
    whole = situation.is_replicated or situation.recipe.distributed.strategy in ("zero1", "zero2")
    shards = whole and situation.recipe.adapter.method != "qlora" and situation.matters("weights")
    return {"distributed.strategy": "zero3"} if shards else None


@_change(
    gives="each GPU keeps its share of weights, gradients and optimizer's state",
    costs="weights are gathered layer by layer for every forward and backward",
)
def shard_weights_by_fsdp(situation: Situation) -> dict[str, Any] | None:
    shards = situation.is_replicated and situation.matters("weights")
    return {"distributed.strategy": "fsdp2"} if shards else None


@_change(
    gives="the optimizer's state is in the host's memory, and gradients go there as they are made",
    costs="gradients and weights cross PCIe in every step, and the host computes it",
)
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


@_change(
    gives="each GPU's share of the weights is in the host's memory",
    costs="it crosses PCIe whenever weights are gathered",
)
def offload_the_weights(situation: Situation) -> dict[str, Any] | None:
    distributed = situation.recipe.distributed
    offloads = distributed.strategy in ("zero3", "fsdp2") and not distributed.offload.parameters
    return {"distributed.offload.parameters": True} if offloads and situation.matters("weights") else None


@_change(
    gives="the linear layers of the frozen base take about half a byte per weight (NF4)",
    costs="each product unpacks its weights first; the adapter learns on a rounded base",
    keeps_training=False,
)
def quantize_the_base(situation: Situation) -> dict[str, Any] | None:
    quantizes = situation.recipe.adapter.method == "lora" and situation.matters("weights")
    return {"adapter.method": "qlora"} if quantizes else None


@_change(
    gives="no gradients and no optimizer state but those of a small adapter",
    costs="low-rank updates: it may learn less, and needs about ten times the learning rate",
    keeps_training=False,
)
def train_an_adapter(situation: Situation) -> dict[str, Any] | None:
    return {"adapter.method": "lora"} if situation.recipe.adapter.method == "full" else None


@_change(
    gives="examples fill rows of the full length, without padding",
    costs="a step holds more examples, so that an epoch has fewer steps",
    keeps_training=False,
)
def pack(situation: Situation) -> dict[str, Any] | None:
    train = situation.settings.train
    packs = situation.is_padded_sft and not train("packing") and train("max_length") is not None
    return {"train.packing": True} if packs else None


@_change()
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


@_change(gives="no forward is computed twice", costs="what every layer computes is kept for the backward")
def store_activations(situation: Situation) -> dict[str, Any] | None:
    field, on = activation_checkpointing(situation.settings)
    return {f"train.{field}": False} if on and situation.fits else None


@_change(
    gives="fewer and larger kernels for the same tokens; the global batch stays the same",
    costs="activations and logits of twice as many rows",
)
def larger_micro_batch(situation: Situation) -> dict[str, Any] | None:
    rows = int(situation.settings.train("per_device_train_batch_size"))
    accumulated = int(situation.settings.train("gradient_accumulation_steps"))
    doubles = situation.fits and accumulated % 2 == 0
    return {_ROWS: 2 * rows, **situation.accumulating(accumulated // 2)} if doubles else None
