"""What a proof sees of its training, and when it lets it evaluate and save."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.launch.preflight.digests import optimizer_digests, weight_digests
from hf_efficient.launch.preflight.notes import Part, RankNotes, Stage
from hf_efficient.measure.memory import peak_rss_bytes

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["ProofWatch"]


class ProofWatch(TrainerCallback):
    """Step 1, an evaluation, a save, step 2; or a loaded checkpoint and step 2."""

    def __init__(self, part: Part, notes: RankNotes, enter: Callable[[Stage], None], *, evaluates: bool) -> None:
        """Nothing is watched yet.

        Args:
            part: of the proof.
            notes: to be filled in.
            enter: is told each stage.
            evaluates: whether the run ever evaluates.
        """
        self._part, self._notes, self._enter, self._evaluates = part, notes, enter, evaluates
        self._trainer: Trainer | None = None
        self._mark = time.monotonic()

    def watch(self, trainer: Trainer) -> None:
        """Watch this one from here on."""
        self._trainer = trainer
        trainer.add_callback(self)
        step = trainer.training_step

        def noted(model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
            if "batch_rows" not in self._notes.figures:
                self._note(_shape(inputs))
            loss = step(model, inputs, *args, **kwargs)
            self._notes.losses.append(float(loss))
            return loss

        trainer.training_step = noted  # type: ignore[method-assign]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Model, optimizer and, in the second launch, the checkpoint are where they belong."""
        if self._part == "load":
            self._note({"load_seconds": self._lap()})
            self._take_digests()
            self._enter("next")
        else:
            self._enter("training")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After the first step: evaluate, save; after the second: nothing more."""
        if self._part == "load":
            return
        self._note_peak(args, "training_peak_bytes")
        if state.global_step != 1:
            return
        control.should_evaluate, control.should_save = self._evaluates, True
        self._enter("evaluation" if self._evaluates else "saving")
        self._lap()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The answers, too, are generated."""
        rows: Any = None if self._trainer is None else self._trainer.eval_dataset
        if rows is not None:
            self._note({"evaluation_rows": len(rows) // args.world_size})
        if args.device.type == "cuda":  # a process's peak on the host does not tell the two apart
            self._note_peak(args, "evaluation_peak_bytes")
        self._enter("saving")
        self._lap()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """What the checkpoint holds must be what is here now."""
        self._note({"save_seconds": self._lap()})
        self._take_digests()
        _reset_peak(args.device)
        self._enter("next")

    def begin_loading(self) -> None:
        """The next thing is the checkpoint."""
        self._enter("loading")
        self._lap()

    def _take_digests(self) -> None:
        assert self._trainer is not None
        model: Any = self._trainer.model
        self._notes.weights = weight_digests(model)
        self._notes.optimizer = optimizer_digests(self._trainer.optimizer, model)

    def _note_peak(self, args: TrainingArguments, name: str) -> None:
        cuda = args.device.type == "cuda"
        peak = int(torch.cuda.max_memory_allocated(args.device)) if cuda else peak_rss_bytes()
        if peak is not None:
            self._note({name: max(peak, self._notes.figures.get(name, 0))})
        _reset_peak(args.device)

    def _note(self, figures: Mapping[str, Any]) -> None:
        self._notes.figures.update(figures)

    def _lap(self) -> float:
        now = time.monotonic()
        elapsed, self._mark = now - self._mark, now
        return elapsed


def _shape(inputs: Mapping[str, Any]) -> dict[str, int]:
    ids = inputs.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
        return {}
    return {"batch_rows": int(ids.shape[0]), "batch_tokens": int(ids.shape[1])}


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
