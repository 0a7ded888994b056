"""Memory by category: weights, adapter, gradients and optimizer state exactly; activations and logits measured."""

import logging
import math
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from transformers import TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_efficient.callbacks.checks import distributed_type
from hf_efficient.recording import activations
from hf_efficient.recording.activations import ForwardWatch, Storages, is_compiled, model_tensors, tensors_in
from hf_efficient.recording.deepspeed import EngineGradients
from hf_efficient.recording.timeline import Timeline
from hf_efficient.text import size

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class MemoryCount:
    """States in a timeline what the memory of a ``train()`` is used for (facts ``memory``); no value is read. Other
    callbacks call it: one more of the Trainer's costs every step 5 us. ``wanted``: what to count in a coming step."""

    def __init__(self, timeline: Timeline, reference: Callable[[], nn.Module | None] = lambda: None) -> None:
        """``reference`` gives a model that the trainer keeps beside the trained one, as DPO does."""
        self.active = False
        self.begun = 0
        self._timeline, self._reference = timeline, reference
        self._device = torch.device("cpu")
        self.wanted: set[str] = set()
        self._categories: dict[str, dict[str, Any]] = {}
        self._missing: dict[str, str] = {}
        self.positions: int | None = None  # of the micro-batch whose activations were measured
        self._engine: EngineGradients | None = None

    def begin(self, args: TrainingArguments, model: nn.Module | None, optimizer: Any = None) -> None:
        self.begun += 1
        self.active, self._device = model is not None, args.device
        self.wanted = {"gradients", "optimizer_state"} if self.active else set()
        self._categories, self._missing, self.positions = {}, {}, None
        if self._engine is not None:
            self._engine.remove()
        self._engine = None
        if model is not None:
            self.guarded(lambda: self._weights(model))
            self.guarded(lambda: setattr(self, "_engine", EngineGradients.of(model, optimizer)))

    def before_step(self, model: nn.Module | None) -> None:
        if "gradients" in self.wanted and model is not None:
            self.wanted.discard("gradients")
            self.guarded(lambda: self._gradients(model))

    def after_step(self, model: nn.Module | None, optimizer: Any) -> None:
        if "optimizer_state" not in self.wanted or model is None:
            return
        if not getattr(optimizer, "step_was_skipped", False):
            self.wanted.discard("optimizer_state")
            self.guarded(lambda: self._optimizer_state(model, optimizer))

    def add(self, name: str, found: Mapping[str, int], how: Literal["exact", "measured"], note: str) -> None:
        """State a category: its bytes on the device that trains; what lies on others is put in the note."""
        elsewhere = [f"{size(held)} more on {device}" for device, held in found.items() if device != self._here]
        notes = "; ".join([note, *elsewhere])
        self._categories[name] = {"name": name, "bytes": found.get(self._here, 0), "how": how, "note": notes}
        self._state()

    def leave_out(self, what: str, why: str) -> None:
        self._missing[what] = why
        self._state()

    def guarded(self, count: Callable[[], _T]) -> _T | None:
        """Run a part of the counting; a fault is logged once, and nothing is counted from then on."""
        try:
            return count()
        except Exception:
            self.active = False
            self.wanted.clear()
            what = "Memory is no longer counted by category, because of a fault; training continues."
            logger.warning(what, exc_info=True)
            return None

    def _weights(self, model: nn.Module) -> None:
        reference = self._reference()
        with_adapter = isinstance(getattr(model, "peft_config", None), dict)
        adapter, weights = Storages(), Storages()
        adapter.add(tensor for tensor, trained in model_tensors(model) if trained and with_adapter)
        weights.add((tensor for tensor, _ in model_tensors(model)), apart=adapter)
        if reference is not None:
            weights.add((tensor for tensor, _ in model_tensors(reference)), apart=adapter)
        note = "when training begins" + (", with the reference model" if reference is not None else "")
        self.add("weights", weights.bytes_by_device(), "exact", note)
        if with_adapter:
            self.add("adapter", adapter.bytes_by_device(), "exact", "when training begins")

    def _gradients(self, model: nn.Module) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.remove()
            if engine.most_bytes and not engine.broken:
                note = "at most in the first step, as DeepSpeed takes them"
                self.add("gradients", engine.most_bytes, "measured" if engine.is_sampled else "exact", note)
                return
        found = Storages()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        found.add(gradients)
        if gradients:
            self.add("gradients", found.bytes_by_device(), "exact", "when the optimizer first steps")
        else:
            self.leave_out("memory of the gradients", "no parameter holds one when the optimizer steps")

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

    def _state(self) -> None:
        missing = [{"what": what, "why": why} for what, why in self._missing.items()]
        categories = list(self._categories.values())
        facts = {"device": self._here, "categories": categories, "missing": missing, "positions": self.positions}
        self._timeline.state("memory", facts)

    @property
    def _here(self) -> str:
        device = self._device
        if device.type == "cpu":
            return "cpu"  # where several ranks train, accelerate calls it cpu:0
        return str(device) if device.index is not None else f"{device.type}:0"


_LARGER = 1.25
_WHAT = "memory of activations and logits"


class ActivationProbe:
    """Watches the first forward of a ``train()``, and later ones with 1.25 times as many positions; on every rank."""

    def __init__(self, memory: MemoryCount) -> None:
        self._memory = memory
        self._begun = 0
        self._off = False
        self._measured = 0.0

    def wants(self, model: nn.Module, inputs: Any) -> bool:
        memory = self._memory
        if self._begun != memory.begun:
            self._begun, self._off, self._measured = memory.begun, False, 0.0
        if self._off or not memory.active or not model.training:
            return False
        return not self._measured or (_positions(inputs) or 0) > _LARGER * self._measured

    def run(
        self, forward: Callable[[], _T], args: TrainingArguments, wrapped: nn.Module, model: nn.Module, inputs: Any
    ) -> _T:
        """Run a forward and count what it keeps; again unwatched, with the same random numbers, where torch refuses."""
        batch = dict(inputs) if isinstance(inputs, MutableMapping) else None
        started = self._memory.guarded(lambda: self._start(args, wrapped, model))
        if started is None:
            return forward()
        watch, restore = started
        refused = False
        try:
            loss = forward()
        except RuntimeError as error:
            refused = activations.HOOKS_REFUSED in str(error)
            if not refused:
                raise
        finally:
            watch.stop()
        if not refused:
            self._memory.guarded(lambda: self._record(watch, _positions(batch)))
            return loss
        self._stop("torch refuses hooks on the saved tensors of this forward (it uses torch.func)")
        restore()
        if batch is not None:
            inputs.clear()
            inputs.update(batch)
        return forward()

    def _start(
        self, args: TrainingArguments, wrapped: nn.Module, model: nn.Module
    ) -> tuple[ForwardWatch, Callable[[], None]] | None:
        why = _why_not(args, wrapped, model)
        if why is not None:
            self._stop(why)
            return None
        layers = [one for one in model.modules() if isinstance(one, GradientCheckpointingLayer)]
        checkpointed = [one for one in layers if one.gradient_checkpointing and one.training]
        watch = ForwardWatch(model, checkpointed, _vocabulary(model))
        restore = activations.random_state(args.device)
        watch.start()
        return watch, restore

    def _stop(self, why: str) -> None:
        self._off = True
        self._memory.leave_out(_WHAT, why)

    def _record(self, watch: ForwardWatch, positions: int | None) -> None:
        self._measured = positions or math.inf
        kept = watch.kept()
        on = "one micro-batch" if positions is None else f"a micro-batch of {positions:,} positions"
        checkpointed = ", without what checkpointed layers compute again" if watch.checkpointed else ""
        self._memory.positions = positions
        self._memory.add("activations", kept.activations, "measured", f"kept for the backward of {on}{checkpointed}")
        if watch.vocabulary is not None:
            self._memory.add("logits", kept.logits, "measured", f"of {on}")


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
