"""What an account leaves out, and why.

A run's account from its sums: who lived when, and what the steps came to.

``run.json``: written whole or not at all, read with a check.

A run's account by the name of its folder.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from hf_efficient.accounting.calls import restarts_of, segments_of, trainings_of
from hf_efficient.accounting.evaluations import evaluations_of, few_evaluations
from hf_efficient.accounting.money import budget_of, energy_account, money_account
from hf_efficient.accounting.plan import plan_account, preflight_account, profile_account
from hf_efficient.accounting.processes import ProcessSpans
from hf_efficient.accounting.ranks import across_gaps, across_ranks, rank_account, rank_accounts
from hf_efficient.accounting.run_records import RunReader, RunRecords, read_records
from hf_efficient.accounting.step_sums import TOKEN_KINDS, loader_account
from hf_efficient.accounting.steps import RankSteps, SegmentSteps
from hf_efficient.accounting.work import memory_account, sequence_account, sequence_gaps, work_account, work_gaps
from hf_efficient.errors import OutputError
from hf_efficient.estimate.statistics import WARM_UP_RULE, percentile, sum_if_known, warm_up_count
from hf_efficient.records.account import (
    ACCOUNT_SCHEMA_VERSION,
    NotMeasured,
    ProcessAccount,
    RunAccount,
    StepTimes,
    TimeAccount,
)
from hf_efficient.records.amounts import TokenAccount
from hf_efficient.records.steps import PHASES
from hf_efficient.run_dir.json_file import read_record, strict_json, write_whole
from hf_efficient.run_dir.reading import rank_files
from hf_efficient.version import __version__


def not_measured(
    processes: Sequence[ProcessSpans],
    ranks: Sequence[RankSteps],
    parts: Sequence[NotMeasured] = (),
    unreadable: Mapping[str, int] | None = None,
) -> list[NotMeasured]:
    """The gaps of this run's records, in the order in which an account tells its parts.

    Args:
        processes: of rank 0.
        ranks: of all ranks.
        parts: the gaps that the parts of the account name themselves.
        unreadable: name of a file to how many of its lines were skipped.
    """
    last = processes[-1]
    found = [*_of_the_process(last), *_of_the_steps(last, ranks), *parts]
    if last.alive is not None or last.ended is None:
        found.append(
            NotMeasured("the end of the run", "the process left no end: it was killed, or it is still running")
        )
    found.extend(_told_by_itself(last))
    if any("device_peak_allocated_bytes" in process.memory for process in processes):
        found.extend(_of_the_device(ranks))
    found.extend(_of_the_files(unreadable or {}))
    return found


def _of_the_files(unreadable: Mapping[str, int]) -> Iterator[NotMeasured]:
    for name, lines in unreadable.items():
        were = "line in {} was" if lines == 1 else "lines in {} were"
        yield NotMeasured(f"a part of {name}", f"{lines} unreadable {were.format(name)} skipped")


def _told_by_itself(last: ProcessSpans) -> Iterator[NotMeasured]:
    """What the process said itself that it could not see: ``missing`` of its facts, whatever their topic."""
    for facts in last.facts.values():
        for gap in facts.get("missing", ()):
            yield NotMeasured(str(gap["what"]), str(gap["why"]))


def _of_the_device(ranks: Sequence[RankSteps]) -> Iterator[NotMeasured]:
    segments = [segment for rank in ranks if rank.rank == 0 for segment in rank.segments]
    steps, timed = sum(segment.steps for segment in segments), sum(segment.device_steps for segment in segments)
    if not timed:
        yield NotMeasured(
            "time on the device",
            "phases are host time: work queued on the device shows in the phase where the host waits for it",
        )
    elif timed < steps:
        yield NotMeasured(
            f"time on the device in {steps - timed} of {steps} steps", "their events did not come to pass in time"
        )


def _of_the_process(last: ProcessSpans) -> list[NotMeasured]:
    if last.start_from == "records":
        return [NotMeasured("time outside the training loop", "the records are of a version that did not tell it")]
    found = []
    if last.start_from == "import":
        found.append(
            NotMeasured("time before hf_efficient was imported", "the system does not tell when the process started")
        )
    if last.way == "recipe":
        found.append(NotMeasured("the launcher", "it runs before this process starts; its time is in no record"))
    else:
        found.append(
            NotMeasured(
                "imports, model load and data preparation, each by itself",
                "they belong to the script, and lie in `before_trainer` together",
            )
        )
    found.append(
        NotMeasured("the interpreter's own end", "Python takes itself down after the last record that a run can write")
    )
    return found


def _of_the_steps(last: ProcessSpans, ranks: Sequence[RankSteps]) -> list[NotMeasured]:
    found = []
    if last.way == "callback":
        found += [
            NotMeasured("forward and backward, each by itself", "no event marks where one ends: `forward_backward`"),
            NotMeasured(
                "data wait and logging, each by itself", "no event marks where one ends: both are `between_steps`"
            ),
            NotMeasured("evaluations outside train()", "no event marks where one begins: `outside_trainer`"),
            NotMeasured("tokens", "a callback is not given the batches; EfficientTrainer counts them"),
        ]
    elif any(count is None for rank in ranks for segment in rank.segments for count in segment.tokens.values()):
        found.append(NotMeasured("tokens of some kinds", "batches without input_ids, attention_mask or labels"))
    found += _of_killed_ranks(ranks)
    last_steps = {rank.rank: rank.segments[-1].last_step for rank in ranks if rank.segments}
    behind = [rank for rank, step in last_steps.items() if step != last_steps.get(0)]
    if behind:
        names = ", ".join(str(rank) for rank in behind)
        found.append(NotMeasured(f"the last steps of rank {names}", "their records end before those of rank 0"))
    return found


def _of_killed_ranks(ranks: Sequence[RankSteps]) -> Iterator[NotMeasured]:
    """Steps of earlier calls that rank 0 did and another rank left no record of."""
    first = next((rank for rank in ranks if rank.rank == 0), None)
    for rank in ranks:
        own = {segment.segment: segment.steps for segment in rank.segments}
        missing = sum(max(0, one.steps - own.get(one.segment, 0)) for one in (first.segments[:-1] if first else ()))
        if missing and rank.rank:
            steps = f"{missing} step{'' if missing == 1 else 's'} of rank {rank.rank}"
            yield NotMeasured(steps, "its process was killed before it wrote their records; tokens and work lack them")


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


RUN_JSON = "run.json"


def to_json(account: RunAccount) -> str:
    """The account as strict JSON, indented, with a newline at its end."""
    return strict_json(account)


def write_account(directory: Path, reader: RunReader | None = None) -> RunReader:
    """Build the account of the records in a folder and put it beside them.

    Args:
        directory: the ``efficiency`` folder of a run.
        reader: what an earlier call returned, so that only what is new is read.

    Returns:
        A reader that has seen all that there is.

    Raises:
        OutputError: there are no records, or they cannot be read.
        OSError: the file cannot be written; one that was there stays as it is.
    """
    reader = reader or RunReader(directory)
    account = build_account(reader.look())
    write_whole(directory / RUN_JSON, to_json(account))
    return reader


def read_account(path: Path) -> RunAccount:
    """The account in a ``run.json``.

    Raises:
        OutputError: the file cannot be read, is no account, or was written by a newer version.
    """
    return read_record(path, RunAccount, ACCOUNT_SCHEMA_VERSION, "the account of a run")


STARTING = "starting"
"""Folder inside ``efficiency`` for the records of a start until its model and data are there."""


def records_folder(run_dir: str | Path, *, latest: bool = False) -> Path:
    """The folder of a run's records: ``RUN_DIR/efficiency``, or ``RUN_DIR`` itself where it has none.

    Where there is nothing yet but a start, on its way or killed, it is that of the start.

    Args:
        run_dir: output directory of a run, or its ``efficiency`` folder.
        latest: also take the start of a run that is to replace another one, where that start wrote last.

    Raises:
        OutputError: there is no such folder.
    """
    directory = Path(run_dir).expanduser()
    if (directory / "efficiency").is_dir():
        directory = directory / "efficiency"
    if not directory.is_dir():
        raise OutputError(f"{run_dir}: no such folder; name the OUTPUT_DIR of a run")
    start = _written_at(directory / STARTING)
    if start is None:
        return directory
    own = _written_at(directory)
    is_start = (own is None and not (directory / RUN_JSON).exists()) or (latest and own is not None and start > own)
    return directory / STARTING if is_start else directory


def load_run(run_dir: str | Path) -> RunAccount:
    """The account of a run, from its records as they are now: while it goes on, when it ended, after a crash.

    Where the records are gone it is what ``run.json`` holds.

    Args:
        run_dir: output directory of a run, or its ``efficiency`` folder.

    Raises:
        OutputError: there is no such folder, no record in it, or they cannot be read.
    """
    directory = records_folder(run_dir)
    if not rank_files(directory, "spans") and not rank_files(directory, "steps") and (directory / RUN_JSON).exists():
        return read_account(directory / RUN_JSON)
    return account_of(directory)


def _written_at(directory: Path) -> float | None:
    """When a run last recorded there; None where none did."""
    times = []
    for kind in ("spans", "steps"):
        for path in rank_files(directory, kind).values():
            with suppress(FileNotFoundError):  # a start that is ready moves its files
                times.append(path.stat().st_mtime)
    return max(times, default=None)
