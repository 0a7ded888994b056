"""A run's account from its sums: who lived when, and what the steps came to."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from hf_efficient.account.across import across_gaps, across_ranks
from hf_efficient.account.budget import budget_of
from hf_efficient.account.energy import energy_account
from hf_efficient.account.evaluations import evaluations_of
from hf_efficient.account.few_evaluations import few_evaluations
from hf_efficient.account.gaps import not_measured
from hf_efficient.account.loader import loader_account
from hf_efficient.account.memory import memory_account
from hf_efficient.account.money import money_account
from hf_efficient.account.plan import plan_account
from hf_efficient.account.preflight import preflight_account
from hf_efficient.account.processes import ProcessSpans
from hf_efficient.account.profile import profile_account
from hf_efficient.account.ranks import rank_account, rank_accounts
from hf_efficient.account.restarts import restarts_of
from hf_efficient.account.run_records import RunRecords, read_records
from hf_efficient.account.sequences import sequence_account, sequence_gaps
from hf_efficient.account.step_sums import TOKEN_KINDS
from hf_efficient.account.steps import RankSteps, SegmentSteps
from hf_efficient.account.train_calls import segments_of
from hf_efficient.account.trainings import trainings_of
from hf_efficient.account.work import work_account, work_gaps
from hf_efficient.errors import OutputError
from hf_efficient.estimate.percentiles import WARM_UP_RULE, percentile, warm_up_count
from hf_efficient.estimate.sums import sum_if_known
from hf_efficient.records import (
    ACCOUNT_SCHEMA_VERSION,
    PHASES,
    ProcessAccount,
    RunAccount,
    StepTimes,
    TimeAccount,
    TokenAccount,
)
from hf_efficient.version import __version__

__all__ = ["account_of", "build_account"]

_WORTH_NUMPY = 100_000
"""So many numbers take longer to sort than numpy to import."""


def account_of(directory: Path) -> RunAccount:
    """The account of the run that is recorded in this folder, whether it goes on, ended or died.

    Args:
        directory: the ``efficiency`` folder of a run.

    Raises:
        OutputError: there are no records, or they cannot be read.
    """
    return build_account(read_records(directory))


def build_account(records: RunRecords) -> RunAccount:
    """The account of records that were read.

    Raises:
        OutputError: there are neither spans nor steps among them.
    """
    ranks, first = records.ranks, records.first
    lived = list(records.processes) or ([_before_spans(first)] if first.segments else [])
    if not lived:
        raise OutputError(
            f"{records.directory}: holds no records of a run; name an OUTPUT_DIR of one, or its efficiency folder"
        )
    accounts = [_process(process, segments_of(process, first, lived)) for process in lived]
    last = accounts[-1]
    slowest = max((rank_account(rank).training_seconds for rank in ranks), default=0.0)
    tokens = _tokens(ranks, slowest)
    sequences = sequence_account(lived, ranks, tokens.non_padding, slowest)
    work = work_account(lived, ranks, slowest)
    energy, energy_gaps = energy_account(records.system, lived, accounts, first)
    money, money_gaps = money_account(lived, accounts, tokens.non_padding)
    each = rank_accounts(ranks, lived, records.others)
    across = across_ranks(each, ranks, money, {0: lived, **records.others})
    gaps = [*sequence_gaps(sequences, tokens.non_padding is not None), *work_gaps(work), *energy_gaps, *money_gaps]
    gaps = [*across_gaps(across), *gaps]
    time, steps, memory = _time(accounts, first), _step_times(first), memory_account(lived, ranks)
    return RunAccount(
        schema_version=ACCOUNT_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        recorded_by=lived[-1].way,
        ended=last.ended,
        error=last.error,
        time=time,
        steps=steps,
        tokens=tokens,
        memory=memory,
        sequences=sequences,
        work=work,
        energy=energy,
        money=replace(money, budget=budget_of(lived[-1])),
        evaluations=few_evaluations(evaluations_of(lived)),
        ranks=each,
        not_measured=not_measured(lived, ranks, gaps, records.unreadable),
        environment=_environment(lived),
        plan=plan_account(lived, time, steps, tokens, memory, energy, money),
        profile=profile_account(lived, records.directory),
        loader=loader_account(lived, [segment.loader for segment in first.segments]),
        across=across,
        preflight=preflight_account(lived),
        restarts=restarts_of(lived, accounts, first.segments),
    )


def _environment(lived: Sequence[ProcessSpans]) -> dict[str, Any] | None:
    told = next((one.facts["environment"] for one in reversed(lived) if "environment" in one.facts), {})
    return {name: value for name, value in told.items() if name != "missing"} or None


def _before_spans(rank: RankSteps) -> ProcessSpans:
    """Steps of a version that wrote no spans: what lies outside the loops is not known."""
    end = math.fsum(segment.wall_seconds for segment in rank.segments)
    return ProcessSpans(0, last_at_seconds=end, trains={segment.segment: 0.0 for segment in rank.segments})


def _process(process: ProcessSpans, segments: Sequence[SegmentSteps]) -> ProcessAccount:
    phases = dict(process.phase_seconds)
    ends = [process.last_at_seconds]
    for segment in segments:
        _add(phases, segment.phase_seconds)
        if process.start_from != "records":
            ends.append(process.called_at_seconds(segment.segment) + segment.last_ends_at_seconds)
    if process.alive is not None and _is_new(process.alive, max(process.last_span_ends_at_seconds, *ends[1:], 0.0)):
        _add(phases, process.alive["phase_seconds"])
    wall = max(ends) - process.began_at_seconds
    first = segments[0] if segments else None
    died = process.ended is None or process.alive is not None
    return ProcessAccount(
        process=process.process,
        began_at_seconds=process.began_at_seconds,
        wall_seconds=round(wall, 9),
        phase_seconds=_in_order(phases),
        unattributed_seconds=_rest(wall, phases),
        time_to_first_step_seconds=_first_step(process, first),
        steps=sum(segment.steps for segment in segments),
        first_step=first.first_step if first else None,
        last_step=segments[-1].last_step if segments else None,
        ended="died" if died or process.ended is None else process.ended,
        error=None if died else process.error,
        open_phase=process.alive["open_phase"] if process.alive is not None else None,
        last_sign_at_seconds=round(max(ends), 9),
        process_start_from=process.start_from,
        trainings=trainings_of(process, segments, last_sign_at_seconds=max(ends), died=died),
    )


def _is_new(alive: dict[str, Any], recorded_until_seconds: float) -> bool:
    """Whether the span under way at the sign of life was not recorded afterwards."""
    return float(alive["started_at_seconds"]) >= recorded_until_seconds - 1e-6


def _first_step(process: ProcessSpans, first: SegmentSteps | None) -> float | None:
    if first is None or process.start_from == "records" or first.segment not in process.trains:
        return None
    return round(process.trains[first.segment] + first.first_ends_at_seconds - process.began_at_seconds, 9)


def _add(sums: dict[str, float], more: dict[str, float]) -> None:
    for name, seconds in more.items():
        sums[name] = sums.get(name, 0.0) + seconds


def _in_order(phases: dict[str, float]) -> dict[str, float]:
    """Rounded to the nanosecond, in the order in which a run goes through them; phases not known here come last."""
    names = [*(name for name in PHASES if name in phases), *(name for name in phases if name not in PHASES)]
    return {name: round(phases[name], 9) for name in names}


def _rest(wall: float, phases: dict[str, float]) -> float:
    """What no phase claimed, to the nanosecond; the rounding of sums is not time."""
    return round(wall - math.fsum(phases.values()), 9) + 0.0


def _time(accounts: Sequence[ProcessAccount], rank: RankSteps) -> TimeAccount:
    phases: dict[str, float] = {}
    device: dict[str, float] = {}
    for segment in rank.segments:
        _add(device, segment.device_seconds)
    for account in accounts:
        _add(phases, account.phase_seconds)
    wall = math.fsum(account.wall_seconds for account in accounts)
    return TimeAccount(
        wall_seconds=round(wall, 9),
        phase_seconds=_in_order(phases),
        unattributed_seconds=_rest(wall, phases),
        training_seconds=round(math.fsum(segment.training_seconds for segment in rank.segments), 9),
        time_to_first_step_seconds=accounts[0].time_to_first_step_seconds,
        processes=list(accounts),
        device_seconds=_in_order(device) or None,
    )


def _step_times(rank: RankSteps) -> StepTimes:
    warm, steady = array("d"), array("d")
    for segment in rank.segments:
        apart = warm_up_count(segment.steps)
        warm.extend(segment.step_seconds[:apart])
        steady.extend(segment.step_seconds[apart:])
    ordered = _ascending(steady)
    p50, p95, p99, longest = (_rounded(percentile(ordered, share)) for share in (0.5, 0.95, 0.99, 1.0))
    return StepTimes(
        count=len(warm) + len(steady),
        warm_up_count=len(warm),
        warm_up_rule=WARM_UP_RULE,
        p50_seconds=p50,
        p95_seconds=p95,
        p99_seconds=p99,
        max_seconds=longest,
        warm_up_max_seconds=_rounded(max(warm, default=None)),
    )


def _ascending(times: array[float]) -> Sequence[float]:
    if len(times) < _WORTH_NUMPY:
        return sorted(times)
    import numpy

    return cast("Sequence[float]", numpy.sort(numpy.frombuffer(times, dtype=numpy.float64)))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 9)


def _tokens(ranks: Sequence[RankSteps], seconds: float) -> TokenAccount:
    segments = [segment for rank in ranks for segment in rank.segments]
    sums = {kind: sum_if_known([segment.tokens[kind] for segment in segments]) for kind in TOKEN_KINDS}
    processed, real = sums["processed"], sums["non_padding"]
    return TokenAccount(
        processed=processed,
        non_padding=real,
        loss_bearing=sums["loss_bearing"],
        padding_share=1 - real / processed if processed and real is not None else None,
        non_padding_tokens_per_second=real / seconds if real is not None and seconds > 0 else None,
        processed_tokens_per_second=processed / seconds if processed is not None and seconds > 0 else None,
    )
