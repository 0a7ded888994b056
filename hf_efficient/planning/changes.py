"""What a change is, and what it sees of the recipe and the accelerator.

Activation checkpointing: keep the input of every layer, compute the rest again.

The loss without whole logits.

AdamW with moments of one byte per value.

Source of what it costs: Dettmers et al. 2021, 8-bit optimizers via block-wise quantization, table 1.

Weights spread over the ranks as well, by torch.

Rows of like length in one micro-batch.

More rows at a time, accumulated less often.

An adapter in place of all weights.

Mixed precision in float16 in the place of bfloat16, which older devices have not.

Without activation checkpointing: keep everything for the backward, compute nothing again.

The optimizer on the host.

The weights on the host.

Examples laid one after the other, without padding.

AdamW with moments of one byte per value, which the driver moves to the host where the device is full.

A frozen base in 4 bits.

Fused attention, which never holds the whole matrix of scores.

Activation checkpointing of every second layer: between all of them and none.

Rows of half the length.

Fewer rows at a time in evaluations.

Fewer rows at a time, accumulated more often.

Weights of two bytes in place of four.

Gradients and optimizer state spread over the ranks.

Weights spread over the ranks as well, by DeepSpeed.

What may be changed in a recipe so that it fits or runs faster: one change, one file.

To add a change: write a function that takes a ``Situation`` and returns a ``Change``, or None where it does not apply,
is already set, or could not matter; and name it in ``CHANGES``. A change that the run would not honour has no place
here. One that ``train`` refuses says so in what it costs, and ``--fix`` never writes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_efficient.facts.accelerators import Accelerator
from hf_efficient.recipe.rules.distributed import ACCUMULATION, names_accumulation
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.rules.training import fits_chunked_loss
from hf_efficient.recipe.schema import mixed_precision
from hf_efficient.records.plan import PlannedMemory

_MATTERS = 0.01
_MUCH_PADDING = 0.05


@dataclass(frozen=True)
class Situation:
    """A recipe that was simulated, on an accelerator.

    Attributes:
        settings: the recipe with the defaults of ``SFTConfig``.
        weights: data type of the base's weights: ``float32``, ``bfloat16``, ``float16``.
        padding_share: of the positions of a mean step; 0 where the data are not known.
    """

    settings: Settings
    memory: PlannedMemory
    weights: str
    device: Accelerator
    fits: bool
    padding_share: float = 0.0

    @property
    def is_padded(self) -> bool:
        """Whether a twentieth of the positions or more is padding."""
        return self.padding_share >= _MUCH_PADDING

    @property
    def is_replicated(self) -> bool:
        """Whether several ranks train, and each holds the whole model."""
        distributed = self.settings.recipe.distributed
        return distributed.processes not in ("auto", 1) and distributed.strategy in ("auto", "ddp")

    def accumulating(self, micro_batches: int) -> dict[str, int]:
        """The override that makes a step of so many micro-batches; none where that follows from the global batch."""
        recipe = self.settings.recipe
        follows = recipe.distributed.global_batch_size is not None and not names_accumulation(recipe)
        return {} if follows else {ACCUMULATION: micro_batches}

    def matters(self, *categories: str) -> bool:
        """Whether these categories hold, at their worst, a hundredth of the memory at the peak."""
        held = sum(self.memory.category_peak_bytes.get(name, 0) for name in categories)
        return held >= _MATTERS * self.memory.peak_allocated_bytes


@dataclass(frozen=True)
class Change:
    """Other values for a recipe.

    Attributes:
        gives: what they are good for.
        keeps_training: whether the same weights learn from the same tokens; rounding may differ.
        repeats: whether it can be proposed again for the changed recipe, for about half of what it saved.
    """

    overrides: Mapping[str, Any]
    gives: str
    costs: str
    keeps_training: bool = True
    repeats: bool = False


Proposer = Callable[[Situation], Change | None]


def activation_checkpointing(settings: Settings) -> tuple[str, bool]:
    """The field of ``train:`` that decides about it, and whether it is on.

    ``gradient_checkpointing`` is transformers' older name; it counts where the newer one is not given.
    """
    newer = settings.train("activation_checkpointing")
    if newer is not None:
        return "activation_checkpointing", bool(newer)
    return "gradient_checkpointing", bool(settings.train("gradient_checkpointing"))


def checkpoint_activations(situation: Situation) -> Change | None:
    """Where it is off."""
    field, on = activation_checkpointing(situation.settings)
    if on or not situation.matters("activations"):
        return None
    return Change(
        {f"train.{field}": True},
        gives="of each layer only the input is kept for the backward",
        costs="each layer's forward is computed twice",
    )


def chunked_loss(situation: Situation) -> Change | None:
    """In place of ``nll``, where nothing else of the recipe needs the LM head."""
    settings = situation.settings
    if settings.train("loss_type") != "nll" or not fits_chunked_loss(settings) or not situation.matters("logits"):
        return None
    return Change(
        {"train.loss_type": "chunked_nll"},
        gives="logits are computed and scored tile by tile, and never held whole",
        costs="the LM head is computed twice",
    )


IN_FLOAT32 = ("adamw_torch", "adamw_torch_fused", "paged_adamw_32bit")
"""Optimizers of the Trainer that are AdamW with moments in float32."""


def eight_bit_optimizer(situation: Situation) -> Change | None:
    """In place of an AdamW in float32."""
    name = situation.settings.train("optim")
    if name not in IN_FLOAT32 or name.startswith("paged") or not situation.matters("optimizer_state"):
        return None
    return Change(
        {"train.optim": "adamw_8bit"},
        gives="the optimizer's state takes a quarter of the memory",
        costs="the moments are rounded to 8 bits, block by block; its authors saw no loss of quality",
    )


def shard_weights_by_fsdp(situation: Situation) -> Change | None:
    """Several ranks, each with all weights, to FSDP2."""
    if not situation.is_replicated or not situation.matters("weights"):
        return None
    return Change(
        {"distributed.strategy": "fsdp2"},
        gives="each GPU keeps its share of weights, gradients and optimizer's state",
        costs="weights are gathered layer by layer for every forward and backward",
    )


def group_by_length(situation: Situation) -> Change | None:
    """Where much of a step is padding."""
    if (
        not situation.is_padded
        or situation.settings.recipe.method != "sft"
        or situation.settings.train("train_sampling_strategy") == "group_by_length"
    ):
        return None
    return Change(
        {"train.train_sampling_strategy": "group_by_length"},
        gives="rows of like length share a micro-batch, so that few positions are padding",
        costs="the examples come in another order, those of like length together",
    )


def larger_micro_batch(situation: Situation) -> Change | None:
    """Double, where the recipe fits and accumulates an even number, so that the global batch stays the same."""
    rows = int(situation.settings.train("per_device_train_batch_size"))
    accumulated = int(situation.settings.train("gradient_accumulation_steps"))
    if accumulated % 2 or not situation.fits:
        return None
    return Change(
        {"train.per_device_train_batch_size": 2 * rows, **situation.accumulating(accumulated // 2)},
        gives="fewer and larger kernels for the same tokens; the global batch stays the same",
        costs="activations and logits of twice as many rows",
    )


def train_an_adapter(situation: Situation) -> Change | None:
    """Full fine-tuning to LoRA on all linear layers."""
    if situation.settings.recipe.adapter.method != "full":
        return None
    return Change(
        {"adapter.method": "lora"},
        gives="no gradients and no optimizer state but those of a small adapter",
        costs="low-rank updates: it may learn less, and wants about ten times the learning rate",
        keeps_training=False,
    )


def mix_float16(situation: Situation) -> Change | None:
    """Where the recipe would be in bfloat16, and the device has none."""
    if not situation.device.lacks_bfloat16 or mixed_precision(situation.settings.recipe) != "bf16":
        return None
    return Change(
        {"train.fp16": True, "train.bf16": False},
        gives="float16 is what the device multiplies fast; it has no bfloat16",
        costs="a narrower range: the loss is scaled, and a step whose gradients overflow is left out",
    )


def store_activations(situation: Situation) -> Change | None:
    """Where checkpointing is on, though the recipe fits with it."""
    field, on = activation_checkpointing(situation.settings)
    if not on or not situation.fits:
        return None
    return Change(
        {f"train.{field}": False},
        gives="no forward is computed twice",
        costs="what every layer computes is kept for the backward",
    )


def offload_the_optimizer(situation: Situation) -> Change | None:
    """Under DeepSpeed, whose own AdamW steps there; from plain data parallelism with ZeRO-2."""
    distributed = situation.settings.recipe.distributed
    under_zero = distributed.strategy in ("zero1", "zero2", "zero3")
    if distributed.offload.optimizer or not (under_zero or situation.is_replicated):
        return None
    optimizer = situation.settings.train("optim")
    if optimizer not in ("adamw_torch", "adamw_torch_fused") or not situation.matters("optimizer_state"):
        return None
    strategy = {} if under_zero else {"distributed.strategy": "zero2"}
    return Change(
        {**strategy, "distributed.offload.optimizer": True},
        gives="the optimizer's state lies in the host's memory, and gradients go there as they are made",
        costs="gradients and weights cross PCIe in every step, and the host computes it",
    )


def offload_the_weights(situation: Situation) -> Change | None:
    """Where they are sharded: under ZeRO-3 and FSDP2."""
    distributed = situation.settings.recipe.distributed
    sharded = distributed.strategy in ("zero3", "fsdp2")
    if distributed.offload.parameters or not sharded or not situation.matters("weights"):
        return None
    return Change(
        {"distributed.offload.parameters": True},
        gives="each GPU's share of the weights lies in the host's memory",
        costs="it crosses PCIe whenever weights are gathered",
    )


def pack(situation: Situation) -> Change | None:
    """Where much of a step is padding, and there is a length to pack to."""
    settings = situation.settings
    if (
        not situation.is_padded
        or situation.settings.recipe.method != "sft"
        or settings.train("packing")
        or settings.train("max_length") is None
    ):
        return None
    return Change(
        {"train.packing": True},
        gives="examples fill rows of the full length, without padding",
        costs="a step holds more examples, so that an epoch has fewer steps",
        keeps_training=False,
    )


def paged_optimizer(situation: Situation) -> Change | None:
    """In place of another AdamW."""
    name = situation.settings.train("optim")
    if name not in (*IN_FLOAT32, "adamw_8bit", "adamw_bnb_8bit") or not situation.matters("optimizer_state"):
        return None
    return Change(
        {"train.optim": "paged_adamw_8bit"},
        gives="the optimizer's state takes a quarter of the memory, and leaves the device where that is full",
        costs="rounded moments; what was moved to the host comes back over PCIe in each step, which is not in the time",
    )


def quantize_the_base(situation: Situation) -> Change | None:
    """LoRA to QLoRA."""
    if situation.settings.recipe.adapter.method != "lora" or not situation.matters("weights"):
        return None
    return Change(
        {"adapter.method": "qlora"},
        gives="the linear layers of the frozen base take about half a byte per weight (NF4)",
        costs="each product unpacks its weights first; the adapter learns on a rounded base",
        keeps_training=False,
    )


def fused_attention(situation: Situation) -> Change | None:
    """Where the recipe asks for ``eager``."""
    if situation.settings.recipe.model.attn_implementation != "eager":
        return None
    return Change(
        {"model.attn_implementation": "sdpa"},
        gives="the attention's scores, which grow with the square of the length, are never held whole",
        costs="nothing: the same attention, in another order of sums",
    )


_EVERY = "every_n_layers"


def checkpoint_every_second_layer(situation: Situation) -> Change | None:
    """Where all layers are checkpointed though the recipe fits, or none is and it does not."""
    field, on = activation_checkpointing(situation.settings)
    held = situation.settings.train(f"{field}_kwargs") or {}
    if not isinstance(held, dict) or on != situation.fits or held.get(_EVERY, 1) != 1:
        return None
    if not (on or situation.matters("activations")) or not _is_known():
        return None
    gives, costs = "half of the layers keep their input alone", "the forward of every second layer is computed twice"
    if on:
        gives, costs = "only every second layer's forward is computed twice", "what the others compute is kept"
    return Change(
        {f"train.{field}": True, f"train.{field}_kwargs": {**held, _EVERY: 2}},
        gives=gives,
        costs=costs,
    )


def _is_known() -> bool:
    """Whether the installed transformers can leave layers out (5.23 can)."""
    from transformers import PreTrainedModel

    enable = getattr(PreTrainedModel, "activation_checkpointing_enable", None)
    return enable is not None and _EVERY in inspect.signature(enable).parameters


_SHORTEST = 128


def shorter_rows(situation: Situation) -> Change | None:
    """Halve ``train.max_length``; packs are accumulated twice as often, so that a step sees as many tokens.

    Where the recipe names its global batch, that stays, and a step of packs sees half as many.
    """
    train, distributed = situation.settings.train, situation.settings.recipe.distributed
    length = train("max_length")
    if length is None or length < 2 * _SHORTEST or not situation.matters("activations", "logits", "rest"):
        return None
    overrides: dict[str, Any] = {"train.max_length": length // 2}
    fate = {"truncate": "are cut", "drop": "are left out", "error": "end the run"}[
        situation.settings.recipe.data.overlong
    ]
    costs = f"examples of more than {length // 2:,} tokens {fate}"
    if train("packing") and distributed.global_batch_size is not None:
        costs += "; a step of as many packs sees half as many tokens"
    elif train("packing"):
        overrides["train.gradient_accumulation_steps"] = 2 * int(train("gradient_accumulation_steps"))
    return Change(
        overrides,
        gives="activations and logits of fewer tokens at a time",
        costs=costs,
        keeps_training=False,
        repeats=True,
    )


def smaller_evaluation_batch(situation: Situation) -> Change | None:
    """Halve, where an evaluation takes more than training does."""
    rows = int(situation.settings.train("per_device_eval_batch_size"))
    if rows < 2 or situation.memory.peak_phase != "evaluation":
        return None
    return Change(
        {"train.per_device_eval_batch_size": rows // 2},
        gives="logits and activations of fewer rows at a time in an evaluation, which takes more memory than training",
        costs="more and smaller kernels in evaluations",
        repeats=True,
    )


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
    return Change(
        {
            "train.per_device_train_batch_size": rows // factor,
            **situation.accumulating(factor * int(settings.train("gradient_accumulation_steps"))),
        },
        gives="activations and logits of fewer rows at a time; the global batch stays the same",
        costs=costs,
        repeats=True,
    )


_FIRST_WITH_BFLOAT16 = (8, 0)


def weights_in_bfloat16(situation: Situation) -> Change | None:
    """Where they are in float32, on a device that computes in bfloat16."""
    capability = situation.device.compute_capability
    if situation.weights != "float32" or (capability is not None and capability < _FIRST_WITH_BFLOAT16):
        return None
    trains_all = situation.settings.recipe.adapter.method == "full"
    gives = "the weights take half of the memory"
    return Change(
        {"model.dtype": "bfloat16"},
        gives=f"{gives}, and so do their gradients and the optimizer's state" if trains_all else gives,
        costs="updates below the weights' last digit (of three) are lost" if trains_all else "a base that is rounded",
        keeps_training=not trains_all,
    )


def shard_gradients(situation: Situation) -> Change | None:
    """Several ranks, each with all of it, to ZeRO-2."""
    if not situation.is_replicated or not situation.matters("optimizer_state", "gradients"):
        return None
    return Change(
        {"distributed.strategy": "zero2"},
        gives="each GPU keeps its share of the gradients and of the optimizer's state",
        costs="a reduction in every micro-batch, and buckets of a fixed size",
    )


def shard_weights_by_zero(situation: Situation) -> Change | None:
    """Several ranks, each with all weights, to ZeRO-3; it leaves quantized weights whole."""
    distributed = situation.settings.recipe.distributed
    whole = situation.is_replicated or distributed.strategy in ("zero1", "zero2")
    quantized = situation.settings.recipe.adapter.method == "qlora"
    if not whole or quantized or not situation.matters("weights"):
        return None
    return Change(
        {"distributed.strategy": "zero3"},
        gives="each GPU keeps its share of weights, gradients and optimizer's state",
        costs="weights are gathered for every forward and backward",
    )


CHANGES: tuple[Proposer, ...] = (
    mix_float16,
    group_by_length,
    smaller_evaluation_batch,
    fused_attention,
    chunked_loss,
    checkpoint_activations,
    checkpoint_every_second_layer,
    smaller_micro_batch,
    weights_in_bfloat16,
    eight_bit_optimizer,
    paged_optimizer,
    shard_gradients,
    shard_weights_by_zero,
    shard_weights_by_fsdp,
    offload_the_optimizer,
    offload_the_weights,
    quantize_the_base,
    train_an_adapter,
    pack,
    shorter_rows,
    store_activations,
    larger_micro_batch,
)
