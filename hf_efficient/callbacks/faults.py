"""Steps that come out wrong: a gradient that is not finite, a loss that jumps. A policy says what becomes of them.

The gradient's norm is the same on all ranks of DDP and FSDP2, and so is the decision. Where there is none, and under
float16's scaler, which skips such updates itself, the mean loss of the ranks decides.
"""

import json
import logging
import math
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.errors import TrainingCheckError
from hf_efficient.recording.timeline import Timeline
from hf_efficient.run_dir.json_file import write_whole

logger = logging.getLogger(__name__)

FAULTS = "faults"
"""Folder of the batches that are kept for a look, in the folder of the records; and a topic of the facts."""

_MOST_KEPT = 20
_MOST_IN_A_ROW = 10
_MEDIAN_OF, _LEAST_LOSSES = 50, 10


@dataclass(frozen=True)
class FaultPolicy:
    """``on_non_finite``: raise ``TrainingCheckError``; leave the update out; or take weights and optimizer state back
    to the last checkpoint, and continue with the next batch. ``spike``: a loss so many times the median of the last
    50 steps counts too. ``on_oom: shrink`` runs a micro-batch again in halves (``callbacks/shrink.py``)."""

    on_non_finite: Literal["stop", "skip", "rollback"] = "stop"
    spike: float | None = None
    on_oom: Literal["stop", "shrink"] = "stop"
    on_save_error: Literal["stop", "continue"] = "stop"


class Faults(TrainerCallback):
    """Of one trainer, which hands over the micro-batches of each step, their losses and the gradient's norm.

    Facts of topic ``faults``: not_finite, spikes, skipped, rolled_back, out_of_memory, saves_failed; absent: none.
    """

    def __init__(
        self,
        policy: FaultPolicy,
        trainer: Trainer,
        timeline: Timeline | None,
        records: Callable[[], Path],
        roll_back: Callable[[], Path | None],
    ) -> None:
        """``records``: the folder of the run's records; ``roll_back``: take weights and optimizer state back to the
        last checkpoint, which is returned."""
        self.policy, self.timeline, self.records = policy, timeline, records
        self.norm: Any = None
        self.losses: list[torch.Tensor] = []
        self.counts: Counter[str] = Counter()
        self._trainer, self._roll_back = trainer, roll_back
        self._batches: Sequence[Any] = ()
        self._recent: deque[float] = deque(maxlen=_MEDIAN_OF)
        self._in_a_row = 0

    def begin_step(self, batches: Sequence[Any]) -> None:
        self._batches, self.losses, self.norm = batches, [], None

    def count(self, *names: str, **what: Any) -> None:
        """Count it, for the account, and note when it happened."""
        self.counts.update(names)
        if self.timeline is not None:
            self.timeline.state(FAULTS, dict(self.counts))
            self.timeline.note("fault", faults=names, **what)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        logged = [float(one["loss"]) for one in state.log_history if "loss" in one]
        self._recent = deque(filter(math.isfinite, logged), maxlen=_MEDIAN_OF)
        self._in_a_row = 0

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        found = self._judge(args)
        if found is None:
            self._in_a_row = 0
            return
        kind, what = found
        self._in_a_row += 1
        step, policy = state.global_step + 1, self.policy.on_non_finite
        kept = self._keep(step, args.process_index, what)
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
        kwargs["model"].zero_grad()  # with no gradient the optimizer changes neither weights nor its state
        if args.process_index == 0:
            done = f"weights and optimizer state are those of {back.name} again" if back else "this update is left out"
            logger.warning("Step %s: %s; %s, and the run continues.%s", step, what, done, where)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._batches = ()  # of the device's memory

    def _judge(self, args: TrainingArguments) -> tuple[str, str] | None:
        """Kind and description of a step that came out wrong."""
        scaled = getattr(self._trainer.accelerator, "scaler", None) is not None
        if self.norm is None or scaled:
            loss = self._loss(shared=True)
            if not math.isfinite(loss) and (self.policy.on_non_finite == "stop" or not scaled):
                return "not_finite", f"the loss is {loss}"
        else:
            norm = float(getattr(self.norm, "full_tensor", lambda: self.norm)())
            if not math.isfinite(norm):
                loss = self._loss(shared=False)
                return "not_finite", f"the gradient norm is {norm}, the loss {loss:.4g}"
        return None if self.policy.spike is None else self._spike(self.policy.spike)

    def _spike(self, times: float) -> tuple[str, str] | None:
        loss, recent = self._loss(shared=True), self._recent
        usual = statistics.median(recent) if len(recent) >= _LEAST_LOSSES else math.inf
        if loss > times * usual:
            return "spikes", f"the loss is {loss:.4g}, {loss / usual:.1f} times the median of the steps before"
        if math.isfinite(loss):
            recent.append(loss)
        return None

    def _loss(self, *, shared: bool) -> float:
        """Of the step: its micro-batches added up; ``shared``: the mean of the ranks."""
        if not self.losses:
            return 0.0
        total = torch.stack([one.detach().float() for one in self.losses]).sum()
        if shared and dist.is_available() and dist.is_initialized():
            dist.all_reduce(total)
            total /= dist.get_world_size()
        return float(total)

    def _keep(self, step: int, rank: int, what: str) -> Path | None:
        """Write the step's rows to the folder of the records; None where that fails, or enough are there."""
        folder = self.records() / FAULTS
        losses = [float(one) for one in self.losses]
        parts = [
            {"loss": _plain(loss), "rows": list(_rows(batch, self._trainer.processing_class))}
            for loss, batch in zip(losses, self._batches, strict=False)
        ]
        held = {"step": step, "rank": rank, "what": what, "micro_batches": parts}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if len(list(folder.glob("*.json"))) >= _MOST_KEPT:
                return None
            path = folder / f"step{step}.rank{rank}.json"
            write_whole(path, json.dumps(held) + "\n")
        except OSError as error:
            logger.warning("The batch of step %s cannot be kept: %s", step, error.strerror or error)
            return None
        return path


def _rows(batch: Any, tokenizer: Any) -> Iterator[Mapping[str, Any]]:
    """The rows of a micro-batch without their padding: ids, text, and how many tokens the loss covers."""
    if not isinstance(batch, Mapping):
        return
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


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def shape_of(batch: Any) -> dict[str, list[int]]:
    """Of each tensor of a micro-batch."""
    items: Iterable[tuple[Any, Any]] = batch.items() if isinstance(batch, Mapping) else ()
    return {str(name): list(one.shape) for name, one in items if isinstance(one, torch.Tensor)}
