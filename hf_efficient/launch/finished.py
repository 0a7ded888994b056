"""A checkpoint at which its run was over: the Trainer would train one step more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.trainer_callback import TrainerState

from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["is_finished", "load_finished"]

_STATE = "trainer_state.json"


def is_finished(checkpoint: Path, recipe: Recipe) -> bool:
    """Whether the run had done ``train.max_steps``, or was stopped early, when it saved this checkpoint.

    A run counted in epochs is left to the Trainer, which then has no batch left.
    """
    state = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
    max_steps = recipe.train.get("max_steps", -1)
    if max_steps > 0 and state["global_step"] >= max_steps:
        return True
    control = state.get("stateful_callbacks", {}).get("TrainerControl", {}).get("args", {})
    stopped = bool(control.get("should_training_stop")) and state["global_step"] < state.get("max_steps", 0)
    return stopped and recipe.evaluate.early_stopping is not None


def load_finished(trainer: Trainer, checkpoint: Path) -> None:
    """Give the trainer the weights and the state of the checkpoint, as ``train`` does before its first step.

    DeepSpeed and FSDP2 read a checkpoint into a model that they have shared out already, with its optimizer; ZeRO-1 and
    2 do not evaluate one without it either.
    """
    trainer.state = TrainerState.load_from_json(str(checkpoint / _STATE))
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        steps = max(1, trainer.state.max_steps)  # of the learning rate, which nobody asks for any more
        trainer._prepare_for_training(steps, trainer.get_train_dataloader(), str(checkpoint))
    else:
        trainer._load_from_checkpoint(str(checkpoint))
    if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint is not None:
        trainer._load_best_model()
