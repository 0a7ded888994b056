"""The account of a run: built once from its records, written to ``run.json``, read again. Run as a program it writes
the JSON Schema of ``run.json`` beside this file."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from hf_efficient.accounting import work as work_parts
from hf_efficient.accounting.evaluations import evaluations_of
from hf_efficient.accounting.money import Gap, energy_account, money_account
from hf_efficient.accounting.plan import plan_account, profile_account
from hf_efficient.accounting.ranks import across_ranks, rank_account
from hf_efficient.accounting.run_records import ProcessSpans, RunReader, RunRecords, last_stated
from hf_efficient.accounting.series import build_series
from hf_efficient.accounting.time import badput_of, process_account, restarts_of, segments_of, step_times, time_account
from hf_efficient.errors import OutputError
from hf_efficient.records import account as rec
from hf_efficient.records.prepared import PreparedFacts
from hf_efficient.run_dir.json_file import read_record, strict_json, write_whole
from hf_efficient.run_dir.paths import RUN_JSON, has_only_account, records_folder
from hf_efficient.text import counted
from hf_efficient.version import __version__

SCHEMA = Path(__file__).with_name("run.schema.json")


@dataclass(frozen=True)
class AccountedRun:
    """A run from its records, which are good until their reader looks again."""

    records: RunRecords
    account: rec.RunAccount

    @cached_property
    def series(self) -> rec.RunSeries:
        return build_series(self.account, self.records)


def account_run(directory: Path, reader: RunReader | None = None) -> AccountedRun:
    """The run in an ``efficiency`` folder, whether it runs, ended or died; a ``reader`` reads only what is new.
    Raises ``OutputError``: there are no records, or they cannot be read."""
    records = (reader or RunReader(directory)).look()
    return AccountedRun(records, build_account(records))


def account_of(directory: Path) -> rec.RunAccount:
    return account_run(directory).account


def load_run(run_dir: str | Path) -> rec.RunAccount:
    """The account of a run from its records as they are now, or else from ``run.json``. Raises ``OutputError``: there
    is no such folder, no record in it, or they cannot be read."""
    directory = records_folder(run_dir)
    return read_account(directory / RUN_JSON) if has_only_account(directory) else account_of(directory)


def read_account(path: Path) -> rec.RunAccount:
    """The account in a ``run.json``. Raises ``OutputError``: the file cannot be read, is no account, or was written by
    a newer version."""
    return read_record(path, rec.RunAccount, rec.ACCOUNT_SCHEMA_VERSION, "the account of a run")


def write_account(directory: Path, account: rec.RunAccount) -> None:
    """Put ``run.json`` beside the records; raises OSError where it cannot be written, and leaves an earlier one."""
    write_whole(directory / RUN_JSON, strict_json(account))


def build_account(records: RunRecords) -> rec.RunAccount:
    """The account of records that were read; raises OutputError where no spans are among them."""
    ranks, first, lived = records.ranks, records.first, records.processes
    if not lived:
        raise OutputError(
            f"{records.directory}: holds no records of a run; name an OUTPUT_DIR of one, or its efficiency folder"
        )
    accounts = [process_account(process, segments_of(process, first, lived)) for process in lived]
    slowest = max((round(rank.training_seconds, 9) for rank in ranks), default=0.0)
    by_rank = {0: lived, **records.others}
    tokens = work_parts.token_account(ranks, slowest)
    sequences = work_parts.sequence_account(lived, ranks, tokens.non_padding, slowest)
    work = work_parts.work_account(lived, ranks, slowest)
    energy, energy_gaps = energy_account(records.system, lived, accounts, first)
    money, money_gaps = money_account(lived, accounts, tokens.non_padding)
    each = [rank_account(rank, by_rank.get(rank.rank, ())) for rank in ranks]
    across = across_ranks(each, ranks, money, by_rank)
    facts = next((one.facts["environment"] for one in reversed(lived) if "environment" in one.facts), {})
    account = rec.RunAccount(
        schema_version=rec.ACCOUNT_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        recorded_by=lived[-1].way,
        ended=accounts[-1].ended,
        error=accounts[-1].error,
        time=time_account(accounts, first),
        steps=step_times(first),
        tokens=tokens,
        memory=work_parts.memory_account(lived, first.columns),
        sequences=sequences,
        work=work,
        energy=energy,
        money=money,
        evaluations=evaluations_of(lived),
        ranks=each,
        not_measured=[],
        environment={name: value for name, value in facts.items() if name != "missing"} or None,
        profile=profile_account(lived, records.directory),
        loader=work_parts.loader_account(lived, first.columns),
        across=across,
        preflight=last_stated(lived, "preflight", rec.Preflight),
        restarts=restarts_of(lived, accounts, first),
        preferences=work_parts.preference_account(lived, first.columns),
        faults=_faults(lived),
        prepared=last_stated(lived, "prepared", PreparedFacts),
    )
    gaps = [rec.NotMeasured(*gap) for gap in _gaps(lived, records, account, [*energy_gaps, *money_gaps])]
    plan, badput = plan_account(lived, account), badput_of(account, lived)
    return dataclasses.replace(account, not_measured=gaps, plan=plan, badput=badput)


def _faults(lived: Sequence[ProcessSpans]) -> rec.FaultAccount | None:
    """Each process counts from 0."""
    stated = [one for process in lived if (one := process.stated("faults", rec.FaultAccount)) is not None]
    names = rec.FaultAccount.__dataclass_fields__
    return rec.FaultAccount(**{name: sum(getattr(one, name) for one in stated) for name in names}) if stated else None


_LACKING = {
    "processed": "input_ids",
    "non_padding": "an attention_mask for each row",
    "target": "a label for each token",
}
"""By kind of token, what a batch lacks where it is not counted."""


def _gaps(
    lived: Sequence[ProcessSpans], records: RunRecords, account: rec.RunAccount, of_the_meters: Iterable[Gap]
) -> Iterator[Gap]:
    """What an account leaves out, and why."""
    last = lived[-1]
    yield from _of_the_process(last)
    yield from _of_the_steps(last, records)
    yield from _of_the_parts(account)
    yield from of_the_meters
    if last.died:
        yield "the end of the run", "the process left no end: it was killed, or it is still running"
    for gap in (gap for facts in last.facts.values() for gap in facts.get("missing", ())):
        yield str(gap["what"]), str(gap["why"])
    if any("device_peak_allocated_bytes" in process.memory for process in lived):
        steps, timed = records.first.steps, sum(segment.device_steps for segment in records.first.segments)
        if not timed:
            why = "phases are host time: work queued on the device shows in the phase where the host waits for it"
            yield "time on the device", why
        elif timed < steps:
            what = f"time on the device in {steps - timed} of {counted(steps, 'step')}"
            yield what, "their events were not done in time"
    for name, lines in records.unreadable.items():
        skipped = f"1 unreadable line in {name} was" if lines == 1 else f"{lines} unreadable lines in {name} were"
        yield f"a part of {name}", f"{skipped} skipped"


def _of_the_process(last: ProcessSpans) -> Iterator[Gap]:
    if last.start_from == "records":
        yield "where the run began in its process", "the first line of its records is lost"
        return
    if last.start_from == "import":
        yield "time before hf_efficient was imported", "the system does not say when the process started"
    if last.way == "recipe":
        yield "the launcher", "it runs before this process starts; its time is in no record"
    else:
        what = "imports, model load and data preparation, each by itself"
        yield what, "they belong to the script, and are in `before_trainer` together"
    yield "the interpreter's own end", "Python exits after the last record that a run can write"


def _of_the_steps(last: ProcessSpans, records: RunRecords) -> Iterator[Gap]:
    if last.way == "callback":
        yield "forward and backward, each by itself", "no event marks where one ends: `forward_backward`"
        yield "data wait and logging, each by itself", "no event marks where one ends: both are `between_steps`"
        yield "evaluations outside train()", "no event marks where one begins: `outside_trainer`"
        yield "tokens", "a callback is not given the batches; EfficientTrainer counts them"
    else:
        counts = [one.counts for rank in records.ranks for one in rank.segments]
        lacking = [name for kind, name in _LACKING.items() if any(one[kind] is None for one in counts)]
        if lacking:
            yield "tokens of some kinds", f"batches without {' or '.join(lacking)}"
    for rank in records.ranks:
        own = {segment.segment: segment.steps for segment in rank.segments}
        missing = sum(max(0, one.steps - own.get(one.segment, 0)) for one in records.first.segments)
        if missing:
            why = "its records end before those of rank 0, perhaps with its process; tokens and work lack them"
            yield f"{counted(missing, 'step')} of rank {rank.rank}", why


def _of_the_parts(account: rec.RunAccount) -> Iterator[Gap]:
    across, work = account.across, account.work
    if across is not None and across.exposed_by is None:
        yield "communication between the ranks, by itself", "it happens inside other phases, `backward` above all"
    elif across is not None and across.covered_seconds is None:
        why = "only what is waited for is shown; a trace shows the rest: profile.trace"
        yield "communication that computation covers", why
    if account.sequences.samples is None and account.tokens.non_padding is not None:
        why = "position_ids do not begin at 0 in each row, or records of a version that did not count them"
        yield "sequences and their lengths", f"batches whose {why}"
    if work.reason is not None:
        what = "FLOPs, MFU and HFU" if work.model_flops is None else "MFU and HFU"
        if work.model_flops is not None and work.hardware_flops is None and work.mfu is not None:
            what = "FLOPs computed beyond those of the model, and HFU"
        yield what, work.reason


def run_schema() -> dict[str, Any]:
    """Of ``run.json`` (2020-12): every key is required, none beside them is valid."""
    (schema,), parts = msgspec.json.schema_components([rec.RunAccount], ref_template="#/$defs/{name}")
    for part in parts.values():
        if "properties" in part:
            part["additionalProperties"] = False
            part["required"] = list(part["properties"])
            part["description"] = " ".join(part.get("description", "").split("\n\n")[0].split())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": parts}


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(run_schema(), indent=2) + "\n", encoding="utf-8")
