"""What measurement writes and plan, diagnosis and reports read: frozen dataclasses, no torch."""

from hf_efficient.records.account import ACCOUNT_SCHEMA_VERSION, NotMeasured, RecordedBy, RunAccount
from hf_efficient.records.account_memory import MemoryAccount, MemoryCategory
from hf_efficient.records.account_money import BudgetAccount, EnergyAccount, EnergyPart, MoneyAccount
from hf_efficient.records.account_plan import PlanAccount, PlanFigure
from hf_efficient.records.account_ranks import AcrossRanks, PhaseSkew, RankAccount
from hf_efficient.records.account_time import ProcessAccount, RestartAccount, StepTimes, TimeAccount, TrainingAccount
from hf_efficient.records.account_tokens import Evaluation, LoaderAccount, SequenceAccount, TokenAccount, WorkAccount
from hf_efficient.records.calibration import CALIBRATION_SCHEMA_VERSION, Calibration, MatmulRate
from hf_efficient.records.memory_snapshot import AllocationSite, MemorySnapshot, ModuleAllocations
from hf_efficient.records.operators import OPERATOR_FAMILIES, OperatorFamily, OperatorWork
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
from hf_efficient.records.profile import InstrumentAccount, OperatorTable, OperatorTime, ProfileAccount
from hf_efficient.records.python_profile import (
    CodeLine,
    FunctionLines,
    FunctionTable,
    FunctionTime,
    HostMemoryLine,
    HostMemoryTable,
    LineTable,
)
from hf_efficient.records.steps import SequenceCounts, StepLoader, StepMemory, StepRecord, StepWork, TokenCounts

__all__ = [
    "ACCOUNT_SCHEMA_VERSION",
    "CALIBRATION_SCHEMA_VERSION",
    "CLOSING_PHASES",
    "COARSE_PHASES",
    "OPERATOR_FAMILIES",
    "PHASES",
    "SCHEMA_VERSION",
    "STARTUP_PHASES",
    "STEP_PHASES",
    "AcrossRanks",
    "AllocationSite",
    "BudgetAccount",
    "Calibration",
    "ClosingPhase",
    "CoarsePhase",
    "CodeLine",
    "EnergyAccount",
    "EnergyPart",
    "Evaluation",
    "FunctionLines",
    "FunctionTable",
    "FunctionTime",
    "HostMemoryLine",
    "HostMemoryTable",
    "InstrumentAccount",
    "LineTable",
    "LoaderAccount",
    "MatmulRate",
    "MemoryAccount",
    "MemoryCategory",
    "MemorySnapshot",
    "ModuleAllocations",
    "MoneyAccount",
    "NotMeasured",
    "OperatorFamily",
    "OperatorTable",
    "OperatorTime",
    "OperatorWork",
    "PhaseName",
    "PhaseSkew",
    "PlanAccount",
    "PlanFigure",
    "ProcessAccount",
    "ProfileAccount",
    "RankAccount",
    "RecordedBy",
    "RestartAccount",
    "RunAccount",
    "SequenceAccount",
    "SequenceCounts",
    "StartupPhase",
    "StepLoader",
    "StepMemory",
    "StepPhase",
    "StepRecord",
    "StepTimes",
    "StepWork",
    "TimeAccount",
    "TokenAccount",
    "TokenCounts",
    "TrainingAccount",
    "WorkAccount",
]
