"""The figures of a run, read from what the Trainer logged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hf_efficient.launch.listener import RunResult
from hf_efficient.launch.run_files import EFFICIENCY
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["evaluations", "figures_of", "metrics_of", "written_by"]


def written_by(recipe: Recipe, directory: Path, *, merged: bool) -> dict[str, str]:
    """What lies where after a run, with a word on each."""
    weights = "the whole model" if recipe.adapter.method == "full" else "the adapter"
    written = {str(directory): f"{weights}, its tokenizer, checkpoints, and README.md, the model card"}
    if merged:
        written[str(directory / "merged")] = "the merged model"
    written[str(directory / EFFICIENCY)] = (
        "report.html and run.json, the account; the resolved recipe, and the records of every step"
    )
    return written


def evaluations(trainer: Trainer) -> list[dict[str, float]]:
    """What the Trainer logged of its evaluations, oldest first."""
    return [entry for entry in trainer.state.log_history if "eval_loss" in entry]


def metrics_of(entry: Mapping[str, float]) -> dict[str, float]:
    """``eval_loss`` and its companions without the prefix and without the Trainer's own speed figures."""
    speed = (
        "eval_runtime",
        "eval_samples_per_second",
        "eval_steps_per_second",
        "eval_model_preparation_time",
    )
    return {
        key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_") and key not in speed
    }


def figures_of(result: RunResult) -> dict[str, float]:
    """The figures of a run by name, for ``all_results.json`` and the model card."""
    named = {f"eval_{key}_before": value for key, value in result.before.items()}
    named |= {f"eval_{key}": value for key, value in result.after.items()}
    return {**named, "steps": result.steps, "train_seconds": result.train_seconds}
