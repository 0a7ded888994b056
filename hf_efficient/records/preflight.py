"""What was proven before a run: on its longest batch, through a save, a new launch and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["PREFLIGHT_SCHEMA_VERSION", "FailureKind", "Preflight", "PreflightFailure"]

PREFLIGHT_SCHEMA_VERSION = 1
"""Version of ``preflight.json``; grows when a key changes its meaning or goes."""

FailureKind = Literal["memory", "save", "load", "differs", "disk", "hang", "killed", "input", "fault"]
"""``memory``: out of memory, wherever. ``input``: what the run itself would refuse. ``fault``: anything else."""


@dataclass(frozen=True)
class PreflightFailure:
    """Why the answer is no.

    Attributes:
        kind: of failure.
        stage: what was being done, in words.
        message: what the user was told: what failed, and what to write instead.
        rank: that failed; None where it is of all.
    """

    kind: FailureKind
    stage: str
    message: str
    rank: int | None = None


@dataclass(frozen=True)
class Preflight:
    """``preflight.json``; what was not come to is None. Peaks and times are the largest of all ranks.

    Attributes:
        fingerprint: of the recipe, its data, the packages and the processes that it was proven for; empty where it
            was not come to.
        passed: whether the run may begin.
        wall_seconds: of the whole proof.
        world_size: processes that trained.
        device: of rank 0.
        batch_rows, batch_tokens: shape of the longest micro-batch; tokens of each row, padding included.
        micro_batches: of that kind, in each of the two optimizer steps, and
        recipe_micro_batches: of a step of the run.
        memory_bytes: of the device; of the host, where that trains.
        training_peak_bytes: in two steps, the second of which has the optimizer's state beside it. On a CUDA device
            what tensors held; on a CPU what the process has held at all.
        evaluation_peak_bytes: likewise of the evaluation; None on a CPU, and without one.
        evaluation_rows: of the longest batch that was evaluated, of each rank.
        checkpoint_bytes, model_bytes: of a checkpoint, and of what the run saves in the end.
        save_seconds: of the checkpoint.
        load_seconds: in a new launch, until the training stood where it was; None where nothing was loaded.
        compared_tensors: of weights and optimizer, of all ranks; equal bit for bit.
        next_loss: mean of all ranks, of the step after the save, and
        next_loss_after_load: of the same step in the new launch.
        checkpoints_to_come: that lie in the output directory at one time, at the most.
        needed_bytes, free_bytes: on the disk of the output directory, for all that is to come.
        failure: None where it passed.
    """

    fingerprint: str
    passed: bool
    wall_seconds: float
    world_size: int | None = None
    device: str | None = None
    batch_rows: int | None = None
    batch_tokens: int | None = None
    micro_batches: int | None = None
    recipe_micro_batches: int | None = None
    memory_bytes: int | None = None
    training_peak_bytes: int | None = None
    evaluation_peak_bytes: int | None = None
    evaluation_rows: int | None = None
    checkpoint_bytes: int | None = None
    model_bytes: int | None = None
    save_seconds: float | None = None
    load_seconds: float | None = None
    compared_tensors: int | None = None
    next_loss: float | None = None
    next_loss_after_load: float | None = None
    checkpoints_to_come: int | None = None
    needed_bytes: int | None = None
    free_bytes: int | None = None
    failure: PreflightFailure | None = None
    schema_version: int = PREFLIGHT_SCHEMA_VERSION
