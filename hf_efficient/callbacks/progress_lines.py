"""The Trainer's progress bar, with its logs as lines that a person reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import ProgressCallback, Trainer, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.callbacks.figure_bar import FigureBar, without_figures

__all__ = ["ProgressLines", "log_line", "use_progress_lines"]

_UNSHOWN = ("epoch", "total_flos", "runtime", "samples_per_second", "steps_per_second", "num_tokens")


class ProgressLines(FigureBar):
    """The bar with its figures; a log is one line above it, and the summary at the end is left to the caller."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write the logs above the bar; the Trainer's closing summary is left out."""
        if self.training_bar is not None and logs and "train_runtime" not in logs:
            self.training_bar.write(log_line(state.global_step, state.max_steps, without_figures(logs)))


def log_line(step: int, of: int, logs: Mapping[str, Any]) -> str:
    """``step 5/50   loss 3.856  learning_rate 0.0008``; an evaluation's figures without their prefix.

    Args:
        step: optimizer steps done.
        of: optimizer steps of the run.
        logs: what the Trainer logs; figures of speed are left out.
    """
    evaluation = any(key.startswith("eval_") for key in logs)
    figures = {key.removeprefix("eval_"): value for key, value in logs.items()}
    shown = [
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in figures.items()
        if not any(key.endswith(name) for name in _UNSHOWN)
    ]
    head = f"step {step:>{len(str(of))}}/{of}"
    return "  ".join([head, "evaluation:" if evaluation else "", *shown]).replace("    ", "  ")


def use_progress_lines(trainer: Trainer) -> None:
    """Put ``ProgressLines`` in the place of the Trainer's own bar, where it shows one."""
    callbacks = trainer.callback_handler.callbacks
    for index, callback in enumerate(callbacks):
        if type(callback) in (ProgressCallback, FigureBar):
            callbacks[index] = ProgressLines()
