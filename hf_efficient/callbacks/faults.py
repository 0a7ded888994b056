"""Steps that come out wrong: a gradient that is not finite, a loss that jumps. A policy says what becomes of them.

The gradient's norm is the same on all ranks of DDP and FSDP2, and so is the decision. Where there is none, and under
float16's scaler, which skips such updates itself, the mean loss of the ranks decides. On a GPU ``stop`` looks at a step
when the next one is computed, so that the host does not wait; the other policies must know before the update.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.errors import TrainingCheckError
from hf_efficient.recipe.schema import FaultsSection
from hf_efficient.recording.timeline import Timeline
from hf_efficient.run_dir.json_file import write_whole

logger = logging.getLogger(__name__)

FAULTS = "faults"
"""Folder of the batches that are kept for a look, in the folder of the records; and a topic of the facts."""

_MOST_KEPT = 20
_MOST_IN_A_ROW = 10
_MEDIAN_OF, _LEAST_LOSSES = 50, 10


FaultPolicy = FaultsSection
"""In a script, where ``stop`` raises ``TrainingCheckError`` and ``hang_minutes`` has no effect."""


@dataclass(frozen=True)
class _Look:
    """What decides about a step; without a gradient's norm it is the loss, of all micro-batches."""

    step: int
    norm: Any
    loss: torch.Tensor
    losses: Sequence[torch.Tensor]
    batches: Sequence[Mapping[str, Any]]
    arrived: Any = None
    """An event of the device: the figures are on the host."""

    @property
    def device(self) -> torch.device | None:
        """On which the figures are; None: on the host."""
        found = (one.device for one in (self.norm, self.loss) if isinstance(one, torch.Tensor))
        return next((device for device in found if device.type != "cpu"), None)

    def on_its_way(self, device: torch.device) -> _Look:
        norm, loss = self.norm, self.loss.to("cpu", non_blocking=True)
        norm = norm.to("cpu", non_blocking=True) if isinstance(norm, torch.Tensor) else norm
        event = torch.get_device_module(device).Event()
        event.record()
        return replace(self, norm=norm, loss=loss, arrived=event)

    def read(self) -> tuple[float | None, float]:
        if self.arrived is not None:
            self.arrived.synchronize()
        return None if self.norm is None else float(self.norm), float(self.loss)


class Faults(TrainerCallback):
    """Of one trainer, which hands over the micro-batches of each step, their losses and the gradient's norm. Facts of
    topic ``faults``: not_finite, spikes, skipped, rolled_back, out_of_memory, saves_failed; absent: none."""

    def __init__(
        self,
        policy: FaultPolicy,
        trainer: Trainer,
        timeline: Timeline,
        records: Callable[[], Path],
        roll_back: Callable[[], Path | None],
    ) -> None:
        """``records``: the folder of the run's records; ``roll_back``: to the last checkpoint, which is returned."""
        self.policy, self.timeline, self.records = policy, timeline, records
        self.norm: Any = None
        self.losses: list[torch.Tensor] = []
        self.counts: Counter[str] = Counter()
        self._trainer, self._roll_back = trainer, roll_back
        self._batches: Sequence[Any] = ()
        self._recent: deque[float] = deque(maxlen=_MEDIAN_OF)
        self._in_a_row = 0
        self._pending: _Look | None = None

    def begin_step(self, batches: Sequence[Any]) -> None:
        self._batches, self.losses, self.norm = batches, [], None

    def count(self, *names: str, **what: Any) -> None:
        self.counts.update(names)
        self.timeline.state(FAULTS, dict(self.counts))
        self.timeline.note("fault", faults=names, **what)

    def write(self, name: str, held: Mapping[str, Any]) -> Path | None:
        """Into the folder of faults; None, and a warning, where that fails."""
        path = self.records() / FAULTS / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(held, indent=1) + "\n")
        except OSError as error:
            logger.warning("%s cannot be written: %s", path, error.strerror or error)
            return None
        return path

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        logged = [float(one["loss"]) for one in state.log_history if "loss" in one]
        self._recent = deque(filter(math.isfinite, logged), maxlen=_MEDIAN_OF)
        self._in_a_row, self._pending = 0, None

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        look = self._look(state.global_step + 1)
        if self.policy.on_non_finite == "stop" and look.device is not None:
            self.settle()
            self._pending = look.on_its_way(look.device)
        else:
            self._act(look, kwargs["model"])

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._batches = ()  # of the device's memory

    def on_train_end(self, *_: Any, **kwargs: Any) -> None:
        self.settle()

    def settle(self) -> None:
        """Judge the step whose figures are on their way: before a log or a save, which must not hold what it spoilt."""
        look, self._pending = self._pending, None
        if look is not None:
            self._act(look, None)

    def _act(self, look: _Look, model: Any) -> None:
        """Judge a step, and do what the policy says; an update to be left out is one of this ``model``."""
        found = self._judge(look)
        if found is None:
            self._in_a_row = 0
            return
        kind, what = found
        self._in_a_row += 1
        step, rank, policy = look.step, self._trainer.args.process_index, self.policy.on_non_finite
        kept = self._keep(look, rank, what)
        where = "" if kept is None else f" Its batch is in {kept}."
        if policy == "stop" or self._in_a_row > _MOST_IN_A_ROW:
            self.count(kind, step=step, what=what)
            again = f" It is the step number {self._in_a_row} of this kind in a row." if policy != "stop" else ""
            raise TrainingCheckError(
                f"step {step}: {what}.{again}{where} Correct its rows, or lower train.learning_rate. `--resume "
                "faults.on_non_finite=skip` (or rollback) continues from the last checkpoint without such updates."
            )
        back = self._roll_back() if policy == "rollback" else None
        did = "skipped" if back is None else "rolled_back"
        self.count(kind, did, step=step, what=what)
        model.zero_grad()  # with no gradient the optimizer changes neither weights nor its state
        if rank == 0:
            done = f"weights and optimizer state are those of {back.name} again" if back else "this update is left out"
            logger.warning("Step %s: %s; %s, and the run continues.%s", step, what, done, where)

    def _look(self, step: int) -> _Look:
        """The ranks' losses are averaged here where they decide: all ranks come by in the same step."""
        scaled = getattr(self._trainer.accelerator, "scaler", None) is not None
        norm = None if scaled else getattr(self.norm, "full_tensor", lambda: self.norm)()
        total = torch.stack([one.detach().float() for one in self.losses or [torch.zeros(())]]).sum()
        decides = norm is None or self.policy.spike is not None
        if decides and dist.is_available() and dist.is_initialized():
            dist.all_reduce(total)
            total /= dist.get_world_size()
        return _Look(step, norm, total, self.losses, [_text_of(one) for one in self._batches])

    def _judge(self, look: _Look) -> tuple[str, str] | None:
        """Kind and description of a step that came out wrong."""
        norm, loss = look.read()
        scaled = getattr(self._trainer.accelerator, "scaler", None) is not None
        if norm is not None and not math.isfinite(norm):
            return "not_finite", f"the gradient norm is {norm}, the loss {loss:.4g}"
        if norm is None and not math.isfinite(loss) and (self.policy.on_non_finite == "stop" or not scaled):
            return "not_finite", f"the loss is {loss}"
        return None if self.policy.spike is None else self._spike(loss, self.policy.spike)

    def _spike(self, loss: float, times: float) -> tuple[str, str] | None:
        usual = statistics.median(self._recent) if len(self._recent) >= _LEAST_LOSSES else math.inf
        if loss > times * usual:
            return "spikes", f"the loss is {loss:.4g}, {loss / usual:.1f} times the median of the steps before"
        if math.isfinite(loss):
            self._recent.append(loss)
        return None

    def _keep(self, look: _Look, rank: int, what: str) -> Path | None:
        """Write the step's rows to the folder of the records; None where that fails, or enough are there."""
        if len(list((self.records() / FAULTS).glob("*.json"))) >= _MOST_KEPT:
            return None
        parts = [
            {
                "loss": loss if math.isfinite(loss) else str(loss),
                "rows": list(_rows(batch, self._trainer.processing_class)),
            }
            for batch, loss in zip(look.batches, map(float, look.losses), strict=False)
        ]
        held = {"step": look.step, "rank": rank, "what": what, "micro_batches": parts}
        return self.write(f"step{look.step}.rank{rank}.json", held)


def _text_of(batch: Any) -> Mapping[str, Any]:
    """What is kept of a micro-batch, without its images."""
    items = batch.items() if isinstance(batch, Mapping) else ()
    return {name: one for name, one in items if name.endswith(("input_ids", "attention_mask", "labels"))}


def _rows(batch: Mapping[str, Any], tokenizer: Any) -> Iterator[Mapping[str, Any]]:
    """The rows of a micro-batch without their padding: ids, text, and how many tokens the loss covers."""
    name = next((name for name in batch if name.endswith("input_ids") and batch[name].dim() == 2), None)
    if name is None:
        return
    mask, labels = batch.get(name.replace("input_ids", "attention_mask")), batch.get("labels")
    for place, row in enumerate(batch[name]):
        ids = (row if mask is None else row[mask[place].bool()]).tolist()
        text = {"text": tokenizer.decode(ids)} if hasattr(tokenizer, "decode") else {}
        targets = {}
        if labels is not None and labels.shape == batch[name].shape:
            targets = {"targets": int((labels[place] != -100).sum())}
        yield {"tokens": len(ids), **targets, "ids": ids, **text}


def shape_of(batch: Any) -> dict[str, list[int]]:
    items: Iterable[tuple[Any, Any]] = batch.items() if isinstance(batch, Mapping) else ()
    return {str(name): list(one.shape) for name, one in items if isinstance(one, torch.Tensor)}
