"""The account of a run: built once from its records, written to ``run.json``, read again. Run as a program it writes
the JSON Schema of ``run.json`` beside this file."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from hf_efficient.accounting import work as work_parts
from hf_efficient.accounting.evaluations import evaluations_of, few_evaluations
from hf_efficient.accounting.gaps import across_gaps, not_measured, sequence_gaps, work_gaps
from hf_efficient.accounting.money import energy_account, money_account
from hf_efficient.accounting.plan import plan_account, profile_account
from hf_efficient.accounting.processes import ProcessSpans, last_stated
from hf_efficient.accounting.ranks import across_ranks, rank_account
from hf_efficient.accounting.run_records import RunReader, RunRecords
from hf_efficient.accounting.series import build_series
from hf_efficient.accounting.steps import RankSteps
from hf_efficient.accounting.time import badput_of, process_account, restarts_of, segments_of, step_times, time_account
from hf_efficient.errors import OutputError
from hf_efficient.records.account import ACCOUNT_SCHEMA_VERSION, FaultAccount, Preflight, RunAccount, RunSeries
from hf_efficient.records.prepared import PreparedFacts
from hf_efficient.run_dir.json_file import read_record, strict_json, write_whole
from hf_efficient.run_dir.paths import RUN_JSON, has_only_account, records_folder
from hf_efficient.version import __version__

SCHEMA = Path(__file__).with_name("run.schema.json")


@dataclass(frozen=True)
class AccountedRun:
    """A run from its records, which are good until their reader looks again."""

    records: RunRecords
    account: RunAccount

    @cached_property
    def series(self) -> RunSeries:
        return build_series(self.account, self.records)


def account_run(directory: Path, reader: RunReader | None = None) -> AccountedRun:
    """The run in an ``efficiency`` folder, whether it runs, ended or died; a ``reader`` reads only what is new.
    Raises ``OutputError``: there are no records, or they cannot be read."""
    records = (reader or RunReader(directory)).look()
    return AccountedRun(records, build_account(records))


def account_of(directory: Path) -> RunAccount:
    return account_run(directory).account


def load_run(run_dir: str | Path) -> RunAccount:
    """The account of a run from its records as they are now, or else from ``run.json``. Raises ``OutputError``: there
    is no such folder, no record in it, or they cannot be read."""
    directory = records_folder(run_dir)
    return read_account(directory / RUN_JSON) if has_only_account(directory) else account_of(directory)


def read_account(path: Path) -> RunAccount:
    """The account in a ``run.json``. Raises ``OutputError``: the file cannot be read, is no account, or was written by
    a newer version."""
    return read_record(path, RunAccount, ACCOUNT_SCHEMA_VERSION, "the account of a run")


def write_account(directory: Path, account: RunAccount) -> None:
    """Put ``run.json`` beside the records; raises OSError where it cannot be written, and leaves an earlier one."""
    write_whole(directory / RUN_JSON, strict_json(account))


def build_account(records: RunRecords) -> RunAccount:
    """The account of records that were read; raises OutputError where neither spans nor steps are among them."""
    ranks, first = records.ranks, records.first
    lived = list(records.processes) or ([_before_spans(first)] if first.segments else [])
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
    gaps = [*across_gaps(across), *sequence_gaps(sequences, tokens), *work_gaps(work), *energy_gaps, *money_gaps]
    facts = next((one.facts["environment"] for one in reversed(lived) if "environment" in one.facts), {})
    account = RunAccount(
        schema_version=ACCOUNT_SCHEMA_VERSION,
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
        evaluations=few_evaluations(evaluations_of(lived)),
        ranks=each,
        not_measured=not_measured(lived, ranks, gaps, records.unreadable),
        environment={name: value for name, value in facts.items() if name != "missing"} or None,
        profile=profile_account(lived, records.directory),
        loader=work_parts.loader_account(lived, first.columns),
        across=across,
        preflight=last_stated(lived, "preflight", Preflight),
        restarts=restarts_of(lived, accounts, first),
        preferences=work_parts.preference_account(lived, first.columns),
        faults=_faults(lived),
        prepared=last_stated(lived, "prepared", PreparedFacts),
    )
    return dataclasses.replace(account, plan=plan_account(lived, account), badput=badput_of(account, lived))


def _faults(lived: Sequence[ProcessSpans]) -> FaultAccount | None:
    """Each process counts from 0."""
    stated = [process.stated("faults", FaultAccount) for process in lived]
    counted = [dataclasses.asdict(one) for one in stated if one is not None]
    return FaultAccount(**{name: sum(one[name] for one in counted) for name in counted[0]}) if counted else None


def _before_spans(rank: RankSteps) -> ProcessSpans:
    """Steps without spans: what is outside the loops is not known."""
    end = sum(segment.wall_ns for segment in rank.segments) / 1e9
    return ProcessSpans(0, last_at_seconds=end, trains={segment.segment: 0.0 for segment in rank.segments})


def run_schema() -> dict[str, Any]:
    """Of ``run.json`` (2020-12): every key is required, none beside them is valid."""
    (schema,), parts = msgspec.json.schema_components([RunAccount], ref_template="#/$defs/{name}")
    for part in parts.values():
        if "properties" in part:
            part["additionalProperties"] = False
            part["required"] = list(part["properties"])
            part["description"] = " ".join(part.get("description", "").split("\n\n")[0].split())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": parts}


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(run_schema(), indent=2) + "\n", encoding="utf-8")
