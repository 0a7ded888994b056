"""The model at the end of a run, written whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["gather_when_saved"]


def gather_when_saved(trainer: Trainer) -> None:
    """Let ``save_model`` gather the shards of FSDP from here on.

    Checkpoints are written in shards, each rank its own, and the Trainer writes no model at all beside them: without
    this a run under FSDP ends with nothing that another program could load.
    """
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None:
        plugin.set_state_dict_type("FULL_STATE_DICT")
