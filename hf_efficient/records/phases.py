"""The phases that the time of a process is told in.

They are exclusive: a second belongs to the innermost phase that was open, and what no phase claims is ``unattributed``.

    startup     imports, before_trainer (a script's own work before its trainer), model_load, data_preparation,
                planning (the run rehearsed before it begins), trainer_setup, compilation (inside the steps that
                torch.compile holds up)
    step        data_wait, host_to_device, forward, backward, device_wait (the host reads a micro-batch's loss back, and
                waits for the GPU), optimizer, communication (the host waits for other ranks), bookkeeping (what the
                Trainer itself does between these: its NaN filter, its count of FLOPs, callbacks), logging, evaluation,
                checkpointing
    coarse      what a callback alone can tell of a step: forward_backward, between_steps (data wait and logging)
    closing     merging, outside_trainer (a script's own work after its trainer was built), shutdown
"""

from __future__ import annotations

from typing import Literal, get_args

__all__ = [
    "CLOSING_PHASES",
    "COARSE_PHASES",
    "PHASES",
    "SCHEMA_VERSION",
    "STARTUP_PHASES",
    "STEP_PHASES",
    "ClosingPhase",
    "CoarsePhase",
    "PhaseName",
    "StartupPhase",
    "StepPhase",
]

SCHEMA_VERSION = 1
"""Version of the records; a reader refuses records that are newer than itself."""

StartupPhase = Literal[
    "imports", "before_trainer", "model_load", "data_preparation", "planning", "trainer_setup", "compilation"
]
StepPhase = Literal[
    "data_wait",
    "host_to_device",
    "forward",
    "backward",
    "device_wait",
    "optimizer",
    "communication",
    "bookkeeping",
    "logging",
    "evaluation",
    "checkpointing",
]
CoarsePhase = Literal["forward_backward", "between_steps"]
ClosingPhase = Literal["merging", "outside_trainer", "shutdown"]
PhaseName = Literal[StartupPhase, StepPhase, CoarsePhase, ClosingPhase, "unattributed"]

STARTUP_PHASES: tuple[StartupPhase, ...] = get_args(StartupPhase)
STEP_PHASES: tuple[StepPhase, ...] = get_args(StepPhase)
COARSE_PHASES: tuple[CoarsePhase, ...] = get_args(CoarsePhase)
CLOSING_PHASES: tuple[ClosingPhase, ...] = get_args(ClosingPhase)
PHASES: tuple[PhaseName, ...] = (*STARTUP_PHASES, *STEP_PHASES, *COARSE_PHASES, *CLOSING_PHASES, "unattributed")
