"""Memory by category: weights, adapter, gradients and optimizer state exactly; activations and logits measured."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import closing
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from transformers import TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_efficient.callbacks.checks import distributed_type
from hf_efficient.recording import activations
from hf_efficient.recording.activations import ForwardWatch, Storages, is_compiled, model_tensors, tensors_in
from hf_efficient.recording.guard import guard
from hf_efficient.recording.timeline import Timeline
from hf_efficient.text import size

_T = TypeVar("_T")

_LARGER = 1.25
_WHAT = "memory of activations and logits"
_HELD = ("averaged_gradients", "all_grad_tensors", "grads_in_partition", "grad_partitions_flat_buffer")
"""Where ZeRO's optimizers keep a rank's share (DeepSpeed 0.19, ``stage_1_and_2.py`` and ``stage3.py``)."""
_LOOKS = 64
"""At gradients in a micro-batch at most: each looks at every parameter."""
_MICRO_BATCHES = 2
"""After the second one what is accumulated lies where it stays."""

_guarded = guard("Memory is no longer counted by category", then=lambda count: count.wanted.clear())


class MemoryCount:
    """States in a timeline what the memory of a ``train()`` is used for (facts ``memory``); no value is read. Other
    callbacks call it: one more of the Trainer's costs every step 5 us. ``wanted``: what to count in a coming step. Of
    activations and logits the first forward is watched, and later ones with 1.25 times as many positions; on every
    rank."""

    def __init__(self, timeline: Timeline, reference: Callable[[], nn.Module | None] = lambda: None) -> None:
        """``reference`` gives a model that the trainer keeps beside the trained one, as DPO does."""
        self.broken = True  # until a training begins
        self.wanted: set[str] = set()
        self._timeline, self._reference = timeline, reference
        self._device = torch.device("cpu")
        self._categories: dict[str, dict[str, Any]] = {}
        self._missing: dict[str, str] = {}
        self._positions: int | None = None  # of the micro-batch whose activations were measured
        self._watched = 0.0  # positions of the largest forward that was watched; infinite: no other is
        self._engine: EngineGradients | None = None

    def begin(self, args: TrainingArguments, model: nn.Module | None, optimizer: Any = None) -> None:
        self.broken, self._device = model is None or self._timeline.broken, args.device
        self.wanted = set() if self.broken else {"gradients", "optimizer_state"}
        self._categories, self._missing, self._positions, self._watched = {}, {}, None, 0.0
        if self._engine is not None:
            self._engine.remove()
        self._engine = None if model is None or self.broken else engine_gradients(model, optimizer)
        if model is not None:
            self._weights(model)

    def before_step(self, model: nn.Module | None) -> None:
        if "gradients" in self.wanted and model is not None:
            self.wanted.discard("gradients")
            self._gradients(model)

    def after_step(self, model: nn.Module | None, optimizer: Any) -> None:
        if "optimizer_state" not in self.wanted or model is None:
            return
        if not getattr(optimizer, "step_was_skipped", False):
            self.wanted.discard("optimizer_state")
            self._optimizer_state(model, optimizer)

    def wants(self, model: nn.Module, inputs: Any) -> bool:
        """Whether ``run`` is to run this forward."""
        if self.broken or not model.training:
            return False
        return not self._watched or (_positions(inputs) or 0) > _LARGER * self._watched

    def run(
        self, forward: Callable[[], _T], args: TrainingArguments, wrapped: nn.Module, model: nn.Module, inputs: Any
    ) -> _T:
        """Run a forward and count what it keeps; again unwatched, with the same random numbers, where torch refuses."""
        batch = dict(inputs) if isinstance(inputs, MutableMapping) else None
        restore = activations.random_state(args.device)
        watch = self._started(args, wrapped, model)
        if watch is None:
            return forward()
        try:
            with closing(watch):
                loss = forward()
        except RuntimeError as error:
            if activations.HOOKS_REFUSED not in str(error):
                raise
            self._leave_alone("torch refuses hooks on the saved tensors of this forward (it uses torch.func)")
            restore()
            if batch is not None:
                inputs.clear()
                inputs.update(batch)
            return forward()
        self._record(watch, batch)
        return loss

    def add(self, name: str, found: Mapping[str, int], how: Literal["exact", "measured"], note: str) -> None:
        """State a category: its bytes on the device that trains; what lies on others is put in the note."""
        elsewhere = [f"{size(held)} more on {device}" for device, held in found.items() if device != self._here]
        notes = "; ".join([note, *elsewhere])
        self._categories[name] = {"name": name, "bytes": found.get(self._here, 0), "how": how, "note": notes}
        self._state()

    def leave_out(self, what: str, why: str) -> None:
        self._missing[what] = why
        self._state()

    @_guarded
    def _weights(self, model: nn.Module) -> None:
        reference = self._reference()
        with_adapter = isinstance(getattr(model, "peft_config", None), dict)
        adapter, weights = Storages(), Storages()
        adapter.add(tensor for tensor, trained in model_tensors(model) if trained and with_adapter)
        weights.add((tensor for tensor, _ in model_tensors(model)), apart=adapter)
        if reference is not None:
            weights.add((tensor for tensor, _ in model_tensors(reference)), apart=adapter)
        note = "when training begins" + (", with the reference model or the teacher" if reference is not None else "")
        self.add("weights", weights.bytes_by_device(), "exact", note)
        if with_adapter:
            self.add("adapter", adapter.bytes_by_device(), "exact", "when training begins")

    @_guarded
    def _gradients(self, model: nn.Module) -> None:
        found = Storages()
        if engine := self._engine:
            engine.remove()
        if engine and engine.most_bytes and not engine.broken:
            how: Literal["measured", "exact"] = "measured" if engine.is_sampled else "exact"
            return self.add("gradients", engine.most_bytes, how, "at most in the first step, as DeepSpeed takes them")
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        found.add(gradients)
        if gradients:
            self.add("gradients", found.bytes_by_device(), "exact", "when the optimizer first steps")
        else:
            why = "no parameter holds one when the optimizer steps: DeepSpeed has taken them, or the backward steps"
            self.leave_out("memory of the gradients", why)

    @_guarded
    def _optimizer_state(self, model: nn.Module, optimizer: Any) -> None:
        known, found = Storages(), Storages()
        known.add(tensor for tensor, _ in model_tensors(model))
        held = list(tensors_in(list(optimizer.state.values())))
        for group in optimizer.param_groups:  # copies of the weights in float32 are the optimizer's
            held.extend(tensors_in(group.get("params", ())))
        found.add(held, apart=known)
        if not found.bytes_by_device() and "gradients" not in self._categories:
            why = "the optimizer that the Trainer holds keeps none: it steps inside the backward, or elsewhere"
            self.leave_out("memory of the optimizer's state", why)
        else:
            self.add("optimizer_state", found.bytes_by_device(), "exact", "after the first step")

    @_guarded
    def _started(self, args: TrainingArguments, wrapped: nn.Module, model: nn.Module) -> ForwardWatch | None:
        why = _why_not(args, wrapped, model)
        if why is not None:
            self._leave_alone(why)
            return None
        layers = [one for one in model.modules() if isinstance(one, GradientCheckpointingLayer)]
        checkpointed = [one for one in layers if one.gradient_checkpointing and one.training]
        watch = ForwardWatch(model, checkpointed, _vocabulary(model))
        watch.start()
        return watch

    def _leave_alone(self, why: str) -> None:
        self._watched = math.inf
        self.leave_out(_WHAT, why)

    @_guarded
    def _record(self, watch: ForwardWatch, batch: Mapping[str, Any] | None) -> None:
        positions = _positions(batch)
        self._watched, self._positions = positions or math.inf, positions
        kept = watch.kept()
        on = "one micro-batch" if positions is None else f"a micro-batch of {positions:,} positions"
        checkpointed = ", without what checkpointed layers compute again" if watch.checkpointed else ""
        self.add("activations", kept.activations, "measured", f"kept for the backward of {on}{checkpointed}")
        if watch.vocabulary is not None:
            self.add("logits", kept.logits, "measured", f"of {on}")

    def _state(self) -> None:
        missing = [{"what": what, "why": why} for what, why in self._missing.items()]
        categories = list(self._categories.values())
        facts = {"device": self._here, "categories": categories, "missing": missing, "positions": self._positions}
        self._timeline.state("memory", facts)

    @property
    def _here(self) -> str:
        device = self._device
        if device.type == "cpu":
            return "cpu"  # where several ranks train, accelerate calls it cpu:0
        return str(device) if device.index is not None else f"{device.type}:0"


def _positions(inputs: Any) -> int | None:
    ids = inputs.get("input_ids") if isinstance(inputs, (dict, Mapping)) else None  # a dict's check is the cheap one
    return ids.numel() if isinstance(ids, torch.Tensor) else None


def _vocabulary(model: nn.Module) -> int | None:
    config = getattr(model, "config", None)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if config is None or head is None or not hasattr(config, "get_text_config"):
        return None
    return getattr(config.get_text_config(), "vocab_size", None)


def _why_not(args: TrainingArguments, wrapped: nn.Module, model: nn.Module) -> str | None:
    if args.torch_compile or is_compiled(wrapped):
        return "the model is compiled, and its graphs would be compiled anew for the watching"
    if getattr(getattr(model, "config", None), "_attn_implementation", None) == "flex_attention":
        return "flex attention is compiled, and would be compiled anew for the watching"
    if isinstance(wrapped, nn.DataParallel):
        return "DataParallel runs the forward in threads of its own"
    if distributed_type() in ("DEEPSPEED", "MEGATRON_LM"):
        return "DeepSpeed and Megatron-LM swap the weights under the tensors that a forward saves"
    if activations.foreign_hooks() or getattr(args, "activation_offloading", False):
        return "activations go elsewhere until the backward (activation offloading)"
    return None


def engine_gradients(model: nn.Module, optimizer: Any) -> "EngineGradients | None":
    """Counts where the optimizer, as accelerate has wrapped it, is ZeRO's; None where it is another."""
    inner = getattr(optimizer, "optimizer", None)
    return EngineGradients(model, inner) if hasattr(inner, "averaged_gradients") else None


class EngineGradients:
    """What ZeRO's gradients take, which DeepSpeed takes from the parameters inside the backward: counted when every few
    of hundreds are made; ``most_bytes`` keeps the highest moment by device. A gradient counts whole from when it is
    made until the engine releases it, copies in the buckets included. ``is_sampled``: some were made without a look, so
    that there may have been more for a moment."""

    def __init__(self, model: nn.Module, engine_optimizer: Any) -> None:
        self.most_bytes: dict[str, int] = {}
        self.broken = False
        self._optimizer = engine_optimizer
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._made_so_far, self._every = 0, -(-len(self._trained) // _LOOKS)
        self.is_sampled = self._every > 1
        self._hooks = [parameter.register_hook(self._made) for parameter in self._trained]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    @guard("The memory of the gradients is no longer counted")
    def _made(self, gradient: torch.Tensor) -> None:
        self._made_so_far += 1
        if self._made_so_far > _MICRO_BATCHES * len(self._trained) or self._made_so_far % self._every:
            return
        found = occupied_bytes((gradient, *self._held()))
        if sum(found.values()) > sum(self.most_bytes.values()):
            self.most_bytes = found

    def _held(self) -> Iterator[torch.Tensor]:
        for parameter in self._trained:
            yield from tensors_in([getattr(parameter, name, None) for name in ("grad", "grad_accum")])
        for name in _HELD:
            yield from tensors_in(getattr(self._optimizer, name, None))


def occupied_bytes(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    """Bytes that contiguous tensors take on each device, overlaps once. Hand-worked: elements 0 to 5 and 3 to 9 of one
    tensor of float32 take 10 * 4 bytes."""
    found: dict[str, int] = {}
    reached: dict[str, int] = {}
    for tensor in sorted(tensors, key=lambda one: one.data_ptr()):
        device, end = str(tensor.device), tensor.data_ptr() + tensor.nbytes
        taken = max(0, end - max(tensor.data_ptr(), reached.get(device, 0)))
        found[device] = found.get(device, 0) + taken
        reached[device] = max(end, reached.get(device, 0))
    return {device: taken for device, taken in found.items() if taken}
