"""The account of a run, as ``run.json`` holds it. None: not known, never zero; ``not_measured`` says why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hf_efficient.records.account_memory import MemoryAccount
from hf_efficient.records.account_money import EnergyAccount, MoneyAccount
from hf_efficient.records.account_plan import PlanAccount
from hf_efficient.records.account_ranks import AcrossRanks, RankAccount
from hf_efficient.records.account_time import RestartAccount, StepTimes, TimeAccount
from hf_efficient.records.account_tokens import Evaluation, LoaderAccount, SequenceAccount, TokenAccount, WorkAccount
from hf_efficient.records.preflight import Preflight
from hf_efficient.records.profile import ProfileAccount

__all__ = ["ACCOUNT_SCHEMA_VERSION", "NotMeasured", "RecordedBy", "RunAccount"]

RecordedBy = Literal["recipe", "trainer", "callback", "unknown"]
ACCOUNT_SCHEMA_VERSION = 2
"""Version of ``run.json``; grows when a key changes its meaning or goes."""


@dataclass(frozen=True)
class NotMeasured:
    """One thing that the account leaves out, and the reason."""

    what: str
    why: str


@dataclass(frozen=True)
class RunAccount:
    """Where the time, the tokens and the memory of a run went.

    Attributes:
        schema_version: of this layout.
        hf_efficient_version: what built the account.
        recorded_by: ``recipe``, ``trainer`` (the mixin in a script of its own), ``callback`` (alone in a plain
            Trainer), ``unknown`` (older records).
        ended: of the last process.
        error: of the last process.
        environment: versions and hardware of the last process that told them, as ``hf-efficient env --json`` does; None
            in older records.
        plan: None where the run was not planned.
        profile: None where no deeper instrument was switched on.
        loader: None where no data loader was watched.
        across: what came of training on several ranks; None of one.
        preflight: None where nothing was proven before the run.
        restarts: what it took to go on, once for every process after the first.
    """

    schema_version: int
    hf_efficient_version: str
    recorded_by: RecordedBy
    ended: Literal["done", "stopped", "error", "died"]
    error: str | None
    time: TimeAccount
    steps: StepTimes
    tokens: TokenAccount
    memory: MemoryAccount
    sequences: SequenceAccount
    work: WorkAccount
    energy: EnergyAccount
    money: MoneyAccount
    evaluations: list[Evaluation]
    ranks: list[RankAccount]
    not_measured: list[NotMeasured]
    environment: dict[str, Any] | None = None
    plan: PlanAccount | None = None
    profile: ProfileAccount | None = None
    loader: LoaderAccount | None = None
    across: AcrossRanks | None = None
    preflight: Preflight | None = None
    restarts: list[RestartAccount] = field(default_factory=list)
