"""Memory that runs out in the middle of a step: a report, and the step again with its micro-batches in parts.

The parts' gradients add up to those of the whole, because the loss is a sum over tokens divided by the tokens of the
whole optimizer step (``num_items_in_batch``). What an interrupted backward has left in the gradients is thrown away, so
the micro-batches of the step that were done are run once more as well.
"""

import gc
import logging
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import cuda

from hf_efficient.callbacks.checks import gradients_elsewhere
from hf_efficient.callbacks.faults import Faults, shape_of
from hf_efficient.errors import first_line
from hf_efficient.text import size

logger = logging.getLogger(__name__)

Step = Callable[..., torch.Tensor]
"""``training_step(model, inputs, num_items_in_batch)``: forward and backward of a micro-batch."""


class Shrinking:
    """Runs the micro-batches of one trainer, in one process; ``parts``: of each, from the last want of memory on."""

    def __init__(self, trainer: Any, faults: Faults) -> None:
        self.parts = 1
        self._trainer, self._faults = trainer, faults
        self._done: list[Any] = []
        self._memory: dict[str, Any] = {}  # of the device, when it had no more
        self._snapshot: Any = None

    def begin_step(self, batches: Sequence[Any]) -> None:
        self._done = []
        self._faults.begin_step(batches)

    def run(self, step: Step, model: Any, inputs: Any, items: Any = None) -> torch.Tensor:
        """The loss of a micro-batch, whose gradients are added. Raises ``torch.OutOfMemoryError`` where nothing can be
        divided further, or the policy is to stop."""
        loss, said = self._tried(step, model, inputs, items)
        while loss is None:
            why_not = self._why_not(inputs, items)
            self._report(inputs, said, why_not)
            if why_not is not None:
                asked = self._faults.policy.on_oom == "shrink"
                raise torch.OutOfMemoryError(f"{said} The micro-batch was not divided: {why_not}." if asked else said)
            self.parts *= 2
            model.zero_grad()
            for before in [*self._done, inputs]:
                loss, said = self._tried(step, model, before, items)
                if loss is None:
                    break
        self._done.append(inputs)
        self._faults.losses.append(loss)
        return loss

    def _tried(self, step: Step, model: Any, inputs: Any, items: Any) -> tuple[torch.Tensor | None, str]:
        """The loss, or None and what the allocator said; then nothing of the attempt is held any more."""
        pieces = divided(inputs, self.parts) or [inputs]
        try:
            losses = [step(model, piece, items) for piece in pieces]
            return (losses[0] if len(losses) == 1 else torch.stack(losses).sum()), ""
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            said = first_line(error)
            self._memory, self._snapshot = _memory()
        gc.collect()
        if cuda.is_available():
            cuda.empty_cache()
        return None, said

    def _why_not(self, inputs: Any, items: Any) -> str | None:
        trainer = self._trainer
        config = getattr(trainer.model, "config", None)
        if self._faults.policy.on_oom != "shrink":
            return "faults.on_oom is stop, and shrink would divide it"
        if trainer.args.world_size > 1:
            return "with several processes the others wait in an exchange of gradients"
        if elsewhere := gradients_elsewhere(trainer.args):
            return f"with {elsewhere} the gradients are not on the parameters"
        if items is None or not (trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None):
            return "its loss is not a sum over the tokens of the step"
        if getattr(config, "output_router_logits", False):
            return "the router's loss is a mean over the micro-batch"
        before, after = divided(inputs, self.parts), divided(inputs, 2 * self.parts)
        if after is None or len(after) <= len(before or [inputs]):
            return "it is one row already"
        return None

    def _report(self, inputs: Any, said: str, why_not: str | None) -> None:
        trainer, number, timeline = self._trainer, self._trainer.state.global_step + 1, self._faults.timeline
        shapes = shape_of(inputs)
        rows = shapes.get("input_ids", [1])[0]
        twice = 2 * trainer.args.gradient_accumulation_steps
        change = {"train.per_device_train_batch_size": rows // 2, "train.gradient_accumulation_steps": twice}
        if rows == 1:
            shorter = {"train.max_length": shapes["input_ids"][1] // 2} if "input_ids" in shapes else {}
            change = shorter if trainer.args.gradient_checkpointing else {"train.gradient_checkpointing": True}
        held = {
            "step": number,
            "micro_batch": len(self._done) + 1,
            "parts": self.parts,
            "shapes": shapes,
            "said": said,
            "memory": self._memory,
            "planned": timeline.facts.get("plan", {}).get("peak_allocated_bytes"),
            "would_have_avoided_it": change,
            "not_divided": why_not,
        }
        path = self._faults.write(f"out_of_memory.step{number}.rank{trainer.args.process_index}.json", held)
        if path is not None and self._snapshot is not None:  # for https://pytorch.org/memory_viz
            with suppress(OSError):
                path.with_suffix(".pickle").write_bytes(pickle.dumps(self._snapshot))
        self._faults.count("out_of_memory", step=number, what=said)
        what = "the run ends" if why_not else f"from here on each micro-batch is run in {2 * self.parts} parts"
        where = "" if path is None else f" {path} has the details."
        logger.warning(
            "Step %s: out of memory on a micro-batch of %s; %s.%s", number, shapes.get("input_ids"), what, where
        )


def _memory() -> tuple[dict[str, Any], Any]:
    """The allocator's figures with torch's table of them, and its blocks; empty and None on a CPU."""
    if not cuda.is_available():
        return {}, None
    stats = cuda.memory_stats()
    names = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "inactive_split_bytes.all.current", "num_ooms")
    figures = {name: stats.get(name, 0) for name in names} | {"device": size(cuda.mem_get_info()[1])}
    return figures | {"summary": cuda.memory_summary().splitlines()}, cuda.memory._snapshot()


_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|cannot allocate memory|CUDA_ERROR_OUT_OF_MEMORY", re.I)


def is_out_of_memory(error: BaseException) -> bool:
    known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return known or (isinstance(error, (RuntimeError, OSError)) and _NO_MEMORY.search(str(error)) is not None)


def divided(inputs: Any, parts: int) -> list[dict[str, Any]] | None:
    """The micro-batch in up to ``parts`` pieces of whole rows; of one flat row, of whole documents, which begin where
    ``position_ids`` are 0. None where it cannot be divided."""
    if parts < 2 or not isinstance(inputs, Mapping) or not isinstance(inputs.get("input_ids"), torch.Tensor):
        return None
    rows, length = inputs["input_ids"].shape
    shapes = {one.shape[:2] for one in inputs.values() if isinstance(one, torch.Tensor)}
    if len(shapes) > 1 or any(not isinstance(one, torch.Tensor) for one in inputs.values()):
        return None
    if rows > 1:
        chunks = {name: torch.tensor_split(one, min(parts, rows)) for name, one in inputs.items()}
        return [{name: one[place] for name, one in chunks.items()} for place in range(min(parts, rows))]
    if "position_ids" not in inputs:
        return None
    starts = [int(at) for at in (inputs["position_ids"][0] == 0).nonzero()[:, 0] if at]
    wanted = [length * part // parts for part in range(1, parts)]
    cuts = sorted({min(starts, key=lambda at: abs(at - aim)) for aim in wanted}) if starts else []
    chunks = {name: torch.tensor_split(one, cuts, dim=1) for name, one in inputs.items()}
    return [{name: one[place] for name, one in chunks.items()} for place in range(len(cuts) + 1)] if cuts else None
