"""What measurement writes and plan, diagnosis and reports read: frozen dataclasses, no torch."""

from hf_efficient.records.account import (
    ACCOUNT_SCHEMA_VERSION,
    MemoryAccount,
    NotMeasured,
    ProcessAccount,
    RankAccount,
    RecordedBy,
    RunAccount,
    StepTimes,
    TimeAccount,
    TokenAccount,
)
from hf_efficient.records.phases import (
    CLOSING_PHASES,
    COARSE_PHASES,
    PHASES,
    SCHEMA_VERSION,
    STARTUP_PHASES,
    STEP_PHASES,
    ClosingPhase,
    CoarsePhase,
    PhaseName,
    StartupPhase,
    StepPhase,
)
from hf_efficient.records.steps import StepRecord, TokenCounts

__all__ = [
    "ACCOUNT_SCHEMA_VERSION",
    "CLOSING_PHASES",
    "COARSE_PHASES",
    "PHASES",
    "SCHEMA_VERSION",
    "STARTUP_PHASES",
    "STEP_PHASES",
    "ClosingPhase",
    "CoarsePhase",
    "MemoryAccount",
    "NotMeasured",
    "PhaseName",
    "ProcessAccount",
    "RankAccount",
    "RecordedBy",
    "RunAccount",
    "StartupPhase",
    "StepPhase",
    "StepRecord",
    "StepTimes",
    "TimeAccount",
    "TokenAccount",
    "TokenCounts",
]
