"""By which engine a checkpoint was written, and by how many processes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hf_efficient.errors import OutputError
from hf_efficient.launch.engines.layout import Engine

__all__ = ["CheckpointLayout", "check_layout", "has_fsdp_shards", "has_zero_shares", "layout_of_checkpoint"]

Kind = Literal["whole", "zero", "zero3", "fsdp2"]
_OPTIMIZER_SHARE = re.compile(r"zero_pp_rank_(\d+)_mp_rank_\d+_optim_states\.pt$")
_WORDS: dict[Kind, str] = {
    "whole": "whole models (one process, or DDP)",
    "zero": "DeepSpeed's ZeRO-1 or ZeRO-2",
    "zero3": "DeepSpeed's ZeRO-3",
    "fsdp2": "FSDP2",
}


@dataclass(frozen=True)
class CheckpointLayout:
    """What lies in a checkpoint's folder.

    Attributes:
        kind: who wrote it.
        processes: how many saved their share, or the state of their random generators; None where that is not told.
    """

    kind: Kind
    processes: int | None


def has_zero_shares(checkpoint: Path) -> bool:
    """Whether DeepSpeed wrote it."""
    return any(checkpoint.glob("global_step*"))


def has_fsdp_shards(checkpoint: Path) -> bool:
    """Whether it holds the shards of FSDP."""
    return (checkpoint / "pytorch_model_fsdp_0").is_dir()


def layout_of_checkpoint(checkpoint: Path) -> CheckpointLayout:
    """By the names of its files, which are read by nobody here."""
    if has_zero_shares(checkpoint):
        names = [path.name for path in checkpoint.glob("global_step*/*")]
        shares_weights = any(re.match(r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt$", name) for name in names)
        return CheckpointLayout(
            "zero3" if shares_weights else "zero",
            sum(_OPTIMIZER_SHARE.search(name) is not None for name in names) or None,
        )
    kind: Kind = "fsdp2" if has_fsdp_shards(checkpoint) else "whole"
    if (checkpoint / "rng_state.pth").is_file():
        return CheckpointLayout(kind, 1)
    return CheckpointLayout(kind, sum(1 for _ in checkpoint.glob("rng_state_*.pth")) or None)


def check_layout(checkpoint: Path, engine: Engine, world_size: int) -> None:
    """Refuse to go on from a checkpoint of another engine or of another number of processes, before a model is loaded.

    FSDP2's shards could be read by any number of processes; but the rows of the coming steps are dealt out by their
    number, so that the run would be another one.

    Raises:
        OutputError: says what to write instead, and what can be made of the checkpoint.
    """
    found = layout_of_checkpoint(checkpoint)
    kinds: dict[Engine, Kind] = {"zero1": "zero", "zero2": "zero", "zero3": "zero3", "fsdp2": "fsdp2"}
    kind = kinds.get(engine, "whole")
    if found.kind != kind:
        raise OutputError(
            f"distributed.strategy: is {engine}, but {checkpoint.name} was written by {_WORDS[found.kind]}, and its "
            "optimizer state cannot be read by another. Go on with the strategy that it was written by; or start a new "
            f"run from its weights: {_weights(checkpoint, found.kind)}."
        )
    if found.processes is not None and found.processes != world_size:
        raise OutputError(
            f"distributed.processes: {world_size} train, but {checkpoint.name} was written by {found.processes}: other "
            f"rows would be trained on. Go on with {found.processes} (distributed.processes, distributed.nodes); or "
            f"start a new run from its weights: {_weights(checkpoint, found.kind)}."
        )


def _weights(checkpoint: Path, kind: Kind) -> str:
    if kind in ("zero", "zero3"):
        return f"`python {checkpoint / 'zero_to_fp32.py'} {checkpoint} FOLDER` writes them whole"
    if kind == "fsdp2":
        return f"`accelerate merge-weights {checkpoint / 'pytorch_model_fsdp_0'} FOLDER` writes them whole"
    return f"model.id={checkpoint} (an adapter: merge it first, `hf-efficient merge`)"
