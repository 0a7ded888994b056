"""Where the time of a run's processes went: their phases, their ``train()`` calls, and what restarts cost."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from hf_efficient.accounting.run_records import ProcessSpans
from hf_efficient.accounting.steps import RankSteps, SegmentSteps
from hf_efficient.estimate.cost import cost_usd
from hf_efficient.estimate.statistics import WARM_UP_RULE, percentile, sum_if_known
from hf_efficient.records import account as rec
from hf_efficient.records.events import PriceFacts
from hf_efficient.records.steps import PHASES

_V = TypeVar("_V")


def phase_order(phases: Mapping[str, _V]) -> dict[str, _V]:
    """In the order in which a run goes through them; phases not known here come last."""
    names = [*(name for name in PHASES if name in phases), *(name for name in phases if name not in PHASES)]
    return {name: phases[name] for name in names}


def in_seconds(nanoseconds: Mapping[str, int]) -> dict[str, float]:
    return {name: value / 1e9 for name, value in phase_order(nanoseconds).items()}


def segments_of(process: ProcessSpans, rank: RankSteps, lived: Sequence[ProcessSpans]) -> list[SegmentSteps]:
    """The ``train()`` calls of a process. One without a line (broken, or not written yet) belongs to the last process
    without any between its neighbours' ones, or else to that of the call before."""
    owners = {segment: index for index, one in enumerate(lived) for segment in one.trains}
    for segment in (one.segment for one in rank.segments if one.segment not in owners):
        before = max((index for known, index in owners.items() if known < segment), default=0)
        after = min((index for known, index in owners.items() if known > segment), default=len(lived))
        owners[segment] = max((index for index in range(before, after) if not lived[index].trains), default=before)
    return [segment for segment in rank.segments if lived[owners[segment.segment]] is process]


def time_account(accounts: Sequence[rec.ProcessAccount], first: RankSteps) -> rec.TimeAccount:
    phases: Counter[str] = Counter()
    for account in accounts:
        phases.update(account.phase_seconds)
    wall = math.fsum(account.wall_seconds for account in accounts)
    return rec.TimeAccount(
        wall_seconds=round(wall, 9),
        phase_seconds=_rounded_phases(phases),
        unattributed_seconds=_rest(wall, phases),
        training_seconds=round(first.training_seconds, 9),
        time_to_first_step_seconds=accounts[0].time_to_first_step_seconds,
        processes=list(accounts),
        device_seconds=in_seconds(first.total("device_ns")) or None,
        held=_held(first),
    )


def _held(first: RankSteps) -> list[rec.HeldTime]:
    loop = math.fsum(segment.wall_seconds for segment in first.segments)
    found = []
    for key, nanoseconds in first.total("held_ns").most_common():
        phase, _, name = key.partition("/")
        seconds = nanoseconds / 1e9
        found.append(rec.HeldTime(name, phase, seconds, round(seconds / loop, 6) if loop > 0 else 0.0))
    return found


def spans_of(process: ProcessSpans, segments: Sequence[SegmentSteps]) -> list[tuple[float, float, dict[str, float]]]:
    """Start, end and phases of what lay outside the loops, and of what was under way unless that is recorded."""
    found = [(one.started_at_seconds, one.ends_at_seconds, one.phase_seconds) for one in process.spans]
    until = max((end for _, end, _ in found), default=0.0)
    until = max([until, *(process.ends_at_seconds(segment) for segment in segments)])
    alive = process.alive
    if alive is not None and alive.started_at_seconds >= until - 1e-6:
        found.append((alive.started_at_seconds, alive.at_seconds, alive.phase_seconds))
    return found


def process_account(process: ProcessSpans, segments: Sequence[SegmentSteps]) -> rec.ProcessAccount:
    phases: Counter[str] = Counter()
    for _, _, spent in spans_of(process, segments):
        phases.update(spent)
    for segment in segments:
        phases.update({name: value / 1e9 for name, value in segment.phase_ns.items()})
    last_sign = max([process.last_at_seconds, *(process.ends_at_seconds(segment) for segment in segments)])
    wall = last_sign - process.began_at_seconds
    first = segments[0] if segments else None
    end, to_first_step = None if process.died else process.end, None
    if first is not None and first.segment in process.trains:
        to_first_step = process.trains[first.segment] + first.first_ends_at_seconds - process.began_at_seconds
    return rec.ProcessAccount(
        process=process.process,
        began_at_seconds=process.began_at_seconds,
        wall_seconds=round(wall, 9),
        phase_seconds=_rounded_phases(phases),
        unattributed_seconds=_rest(wall, phases),
        time_to_first_step_seconds=_rounded(to_first_step),
        steps=sum(segment.steps for segment in segments),
        first_step=first.first_step if first else None,
        last_step=segments[-1].last_step if segments else None,
        ended="died" if end is None else end.ended,
        error=None if end is None else end.error,
        open_phase=process.alive.open_phase if process.alive is not None else None,
        last_sign_at_seconds=round(last_sign, 9),
        process_start_from=process.start_from,
        trainings=_trainings(process, segments, last_sign),
    )


def _rounded_phases(phases: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds, 9) for name, seconds in phase_order(phases).items()}


def _rest(wall: float, phases: Mapping[str, float]) -> float:
    """What no phase claimed, to the nanosecond; the rounding of sums is not time."""
    return round(wall - math.fsum(phases.values()), 9) + 0.0


def _trainings(
    process: ProcessSpans, segments: Sequence[SegmentSteps], last_sign_at_seconds: float
) -> list[rec.TrainingAccount]:
    steps = {one.segment: one for one in segments}
    last = max(process.trains, key=lambda segment: process.trains[segment], default=None)
    found = []
    for segment, called in sorted(process.trains.items(), key=lambda item: item[1]):
        done = steps.get(segment, SegmentSteps(segment))
        end = process.train_ends.get(segment)
        has_died = end is None and process.died and segment == last
        until = end.at_seconds if end is not None else last_sign_at_seconds
        told = end is not None or has_died
        found.append(
            rec.TrainingAccount(
                segment=segment,
                called_at_seconds=round(called, 9),
                wall_seconds=round(until - called if told else done.last_ends_at_seconds, 9),
                steps=done.steps,
                first_step=done.first_step,
                last_step=done.last_step,
                time_to_first_step_seconds=round(done.first_ends_at_seconds, 9) if done.steps else None,
                ended="died" if has_died else end.ended if end is not None else None,
                error=end.error if end is not None else None,
            )
        )
    return found


def step_times(first: RankSteps) -> rec.StepTimes:
    times, steady = first.columns.step_seconds, first.columns.steady
    ordered = np.sort(times[steady]).tolist()
    p50, p95, p99, longest = (_rounded(percentile(ordered, share)) for share in (0.5, 0.95, 0.99, 1.0))
    warm = times[~steady]
    return rec.StepTimes(
        count=len(times),
        warm_up_count=len(warm),
        warm_up_rule=WARM_UP_RULE,
        p50_seconds=p50,
        p95_seconds=p95,
        p99_seconds=p99,
        max_seconds=longest,
        warm_up_max_seconds=_rounded(float(warm.max())) if len(warm) else None,
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 9)


def restarts_of(
    lived: Sequence[ProcessSpans], accounts: Sequence[rec.ProcessAccount], first: RankSteps
) -> list[rec.RestartAccount]:
    """Each process after the first, against what had been done before it."""
    found = []
    before: SegmentSteps | None = None
    for process, account in zip(lived, accounts, strict=True):
        own = [segment for segment in first.segments if segment.segment in process.trains and segment.steps]
        if account is not accounts[0]:
            found.append(_restart(process, account, before, own[0] if own else None, first))
        before = own[-1] if own else before
    return found


def _restart(
    process: ProcessSpans,
    account: rec.ProcessAccount,
    before: SegmentSteps | None,
    own: SegmentSteps | None,
    first: RankSteps,
) -> rec.RestartAccount:
    """Done again are the steps beyond the one resumed after, which the last call ``before`` had done."""
    start_seconds = account.wall_seconds
    resumed, again, seconds = None, 0, 0.0
    if own is not None and own.first_step is not None:
        resumed = own.first_step - 1
        start_seconds = process.called_at_seconds(own.segment) - account.began_at_seconds
        start_seconds += own.first_ends_at_seconds - float(first.step_seconds(own.segment)[0])
        if before is not None and before.last_step is not None:
            again = min(max(0, before.last_step - resumed), before.steps)
            seconds = math.fsum(first.step_seconds(before.segment)[-again:]) if again else 0.0
    price = process.stated("price", PriceFacts)
    return rec.RestartAccount(
        process=account.process,
        last_step_before=None if before is None else before.last_step,
        resumed_after_step=resumed,
        steps_again=again,
        seconds_again=round(seconds, 9),
        start_seconds=round(start_seconds, 9),
        cost_usd=cost_usd(seconds + start_seconds, None if price is None else price.price_usd_per_hour),
    )


def badput_of(account: rec.RunAccount, lived: Sequence[ProcessSpans]) -> rec.BadputAccount | None:
    saves = sum(len({note.get("step") for note in one.notes.get("save", ())}) for one in lived)
    if not saves and not account.restarts:
        return None
    time, restarts, usd = account.time, account.restarts, account.money.phase_usd
    checkpoints = time.phase_seconds.get("checkpointing", 0.0)
    starts = round(math.fsum(one.start_seconds for one in restarts), 9)
    again = round(math.fsum(one.seconds_again for one in restarts), 9)
    share = round((checkpoints + starts + again) / time.wall_seconds, 6) if time.wall_seconds > 0 else 0.0
    saving = None if usd is None else usd.get("checkpointing", 0.0)
    cost = sum_if_known([saving, *(one.cost_usd for one in restarts)])
    undone = round(time.training_seconds / saves / 2, 9) if saves else None
    return rec.BadputAccount(saves, checkpoints, starts, again, share, cost, undone)
