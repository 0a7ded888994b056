"""Facts of a training that a Trainer knows: its schedule, how it was set up, and what fails in it without an error."""

import logging
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import psutil
import torch
from torch import nn
from transformers import TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

from hf_efficient.callbacks.checks import gradients_elsewhere, parameters_without_gradient
from hf_efficient.estimate.forecast import schedule_of
from hf_efficient.facts.environment import allowed_cpus
from hf_efficient.model.structure import base_model, whole_shape
from hf_efficient.profilers.calibration import cpu_is_faster_in_float32, cpu_matmul_peak
from hf_efficient.recording.activations import is_compiled
from hf_efficient.recording.compilation import compile_counts
from hf_efficient.recording.guard import guard
from hf_efficient.recording.timeline import Timeline

logger = logging.getLogger(__name__)


def epoch_steps(args: TrainingArguments, state: TrainerState, train_dataloader: Any) -> int:
    if train_dataloader is None or not has_length(train_dataloader):
        return state.max_steps
    return max(1, math.ceil(len(train_dataloader) / args.gradient_accumulation_steps))


def note_schedule(
    timeline: Timeline, args: TrainingArguments, state: TrainerState, train_dataloader: Any = None
) -> None:
    """Give the run under way its schedule, and state it for the account; a fault leaves the run without a forecast."""
    live = timeline.live
    if live is None:
        return
    try:
        known = timeline.facts.get("run", {})
        at_end = bool(known.get("evaluate_at_end", False))
        startup = known.get("startup_seconds", timeline.lived_seconds())  # of the process: a second call keeps it
        epoch, every = epoch_steps(args, state, train_dataloader), (state.eval_steps, state.save_steps)
        schedule = schedule_of(args, state.max_steps, epoch, *every, evaluate_at_end=at_end)
        live.schedule, live.world_size = schedule, args.world_size
        timeline.state("run", {"world_size": args.world_size, "startup_seconds": startup, **vars(schedule)})
    except Exception:
        logger.warning("The rest of this run is not forecast, because of a fault.", exc_info=True)


_LONGEST = 500
_SECRET = ("token", "key", "password")
_MOST_NAMES = 20
_MOST_WEIGHTS = 1 << 20
_MOST_LOSSES = 64
"""That are held before they are counted on their device."""


def note_settings(
    timeline: Timeline, args: TrainingArguments, model: nn.Module | None, optimizer: Any, dtype: str | None = None
) -> None:
    """State the topic ``settings``; ``dtype``: of matrix products. A fault is logged, and the diagnosis goes without.

    arguments   the fields of TrainingArguments that are plain values
    model       attention, weights_dtype, matmul_dtype, activation_checkpointing, parameters,
                trainable_parameters, vocabulary_size, compiled; bfloat16_weights: trained values in bfloat16 (a
                sample) by the exponent of their size, absent where there are none or they are elsewhere
    optimizer   class, fused
    device      type, index, name, memory_bytes, supports_bf16 (on a CPU: is about as fast in it, or faster), count
    host        cores (that this process may use), torch_threads
    peaks       FLOP/s of matrix products on this CPU by dtype, where bfloat16 could be float32, or the reverse
    """
    try:
        shown = {name: value for name, value in args.to_dict().items() if not name.endswith(_SECRET)}
        settings = {
            "arguments": {name: value for name, value in shown.items() if _is_plain(value)},
            "model": {} if model is None else _model(model, args, dtype),
            "optimizer": _optimizer(optimizer),
            "device": _device(args.device, max(1, args.n_gpu)),
            "host": {"cores": allowed_cpus(), "torch_threads": torch.get_num_threads()},
            "peaks": _peaks(args.device, dtype),
        }
        timeline.state("settings", settings)
    except Exception:
        logger.warning("How this run was set up is not recorded, because of a fault.", exc_info=True)


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return len(value) <= 20 and all(_is_plain(one) for one in inner)
    return isinstance(value, (bool, int)) or (isinstance(value, str) and len(value) <= _LONGEST)


def _model(model: nn.Module, args: TrainingArguments, matmul_dtype: str | None) -> dict[str, Any]:
    base = base_model(model)
    config = getattr(base, "config", None)  # a plain module has none, a model of timm no text in it
    config = getattr(config, "get_text_config", lambda: config)()
    parameters = list(model.parameters())
    floating = [one for one in parameters if one.is_floating_point() and len(whole_shape(one)) > 1]
    largest = max(floating, key=lambda one: whole_shape(one).numel(), default=None)
    return {
        "attention": getattr(config, "_attn_implementation", None),
        "weights_dtype": None if largest is None else str(largest.dtype).removeprefix("torch."),
        "matmul_dtype": matmul_dtype,
        "activation_checkpointing": any(getattr(one, "gradient_checkpointing", False) for one in base.modules()),
        "parameters": sum(whole_shape(one).numel() for one in parameters),
        "trainable_parameters": sum(whole_shape(one).numel() for one in parameters if one.requires_grad),
        "vocabulary_size": getattr(config, "vocab_size", None),
        "compiled": bool(args.torch_compile) or is_compiled(model),
        **({} if gradients_elsewhere(args) else _bfloat16_weights(parameters)),
    }


@torch.no_grad()
def _bfloat16_weights(parameters: list[nn.Parameter]) -> dict[str, dict[str, int]]:
    """Counts by the exponent e of ``2^e <= |w| < 2^(e+1)``, of about ``_MOST_WEIGHTS`` values of all matrices."""
    trained = [one for one in parameters if one.requires_grad and one.dtype == torch.bfloat16 and one.dim() > 1]
    stride = sum(one.numel() for one in trained) // _MOST_WEIGHTS | 1  # odd: a row's width would take one column
    counted: Counter[int] = Counter()
    for one in trained:
        values = one.reshape(-1)[::stride].float()
        exponents, counts = (torch.frexp(values[values != 0]).exponent - 1).unique(return_counts=True)
        counted.update(dict(zip(exponents.tolist(), counts.tolist(), strict=True)))
    return {"bfloat16_weights": {str(e): count for e, count in sorted(counted.items())}} if counted else {}


def _optimizer(optimizer: Any) -> dict[str, Any]:
    inner = getattr(optimizer, "optimizer", optimizer)
    if inner is None:
        return {}
    return {"class": type(inner).__name__, "fused": bool(getattr(inner, "defaults", {}).get("fused"))}


def _device(device: torch.device, count: int) -> Mapping[str, Any]:
    if device.type == "cuda":
        held = torch.cuda.get_device_properties(device)
        index = torch.cuda.current_device() if device.index is None else device.index
        known = {"index": index, "name": held.name, "memory_bytes": held.total_memory}
        return {"type": "cuda", "count": count, **known, "supports_bf16": torch.cuda.is_bf16_supported()}
    if device.type == "cpu":
        memory = psutil.virtual_memory().total
        return {"type": "cpu", "count": 1, "memory_bytes": memory, "supports_bf16": not cpu_is_faster_in_float32()}
    return {"type": device.type, "count": count}


def _peaks(device: torch.device, dtype: str | None) -> dict[str, float]:
    faster_elsewhere = "bf16" if cpu_is_faster_in_float32() else "fp32"
    if device.type != "cpu" or dtype != faster_elsewhere:
        return {}
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    return {name: cpu_matmul_peak(kind).flops_per_second for name, kind in kinds.items()}


_guarded = guard("Silent failures are no longer counted")


class SilentFailures:
    """What goes wrong in the trainings of one trainer without an error; only ``settle`` and ``end`` wait for a device.

    Facts of topic ``silent_failures``, beside those of ``compilation`` (``compile_counts``):

        trainable_parameters, without_gradient    tensors, at the first update; absent where gradients are elsewhere
        names_without_gradient                    the first twenty of them
        updates, skipped_updates                  of the optimizer; those that a gradient scaler left out
        losses, losses_not_finite                 of micro-batches; absent where nobody sees them
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._updates = self._skipped = self._seen = 0
        self._losses: list[torch.Tensor] = []
        self._not_finite: torch.Tensor | int = 0
        self.begin()

    def begin(self) -> None:
        self.broken = self._timeline.broken
        self._losses.clear()
        self.first = True
        """No update of this training was seen yet."""
        self._stated: dict[str, Any] = {}

    @_guarded
    def loss(self, loss: torch.Tensor) -> None:
        self._losses.append(loss.detach())
        if len(self._losses) >= _MOST_LOSSES:
            self._fold_losses()

    @_guarded
    def before_update(self, args: TrainingArguments, model: nn.Module | None) -> None:
        if not self.first:
            return
        self.first = False
        if model is None or gradients_elsewhere(args):
            return
        without = parameters_without_gradient(model)
        facts = {"without_gradient": len(without), "names_without_gradient": without[:_MOST_NAMES]}
        trainable = sum(one.requires_grad for one in model.parameters())
        self._timeline.state("silent_failures", {"trainable_parameters": trainable, **facts})

    @_guarded
    def after_update(self, optimizer: Any) -> None:
        """The optimizer has stepped, or a gradient scaler has left that out (``AcceleratedOptimizer`` knows)."""
        self._updates += 1
        self._skipped += bool(getattr(optimizer, "step_was_skipped", False))

    @_guarded
    def settle(self) -> None:
        failures = self._failures()
        if failures != self._stated:
            self._stated = failures
            self._state(failures)

    @_guarded
    def end(self) -> None:
        self._state(self._failures())
        compiled = compile_counts()
        if compiled is not None:
            self._timeline.state("compilation", compiled)

    def _failures(self) -> dict[str, int]:
        self._fold_losses()
        return {"skipped_updates": self._skipped, "losses_not_finite": int(self._not_finite)}

    def _fold_losses(self) -> None:
        if self._losses:
            self._seen += len(self._losses)
            self._not_finite = self._not_finite + torch.stack(self._losses).isfinite().logical_not().sum()
            self._losses.clear()

    def _state(self, failures: dict[str, int]) -> None:
        facts = {"updates": self._updates, **failures, "losses": self._seen}
        if not self._seen:
            del facts["losses"], facts["losses_not_finite"]
        self._timeline.state("silent_failures", facts)
