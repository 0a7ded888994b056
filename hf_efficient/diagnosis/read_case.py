"""A run's folder to the case that the rules see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from hf_efficient.account.build import build_account
from hf_efficient.account.files import RUN_JSON, read_account
from hf_efficient.account.processes import ProcessSpans
from hf_efficient.account.reading import rank_files
from hf_efficient.account.run_records import RunReader, RunRecords
from hf_efficient.account.series import build_series
from hf_efficient.diagnosis.case import Case, Pause
from hf_efficient.diagnosis.step_columns import read_columns
from hf_efficient.errors import OutputError
from hf_efficient.recipe.resolved import read_resolved
from hf_efficient.records import RunAccount
from hf_efficient.records.series import RunSeries

__all__ = ["case_of", "read_case"]

RESOLVED = "recipe.resolved.yaml"


def read_case(directory: Path, reader: RunReader | None = None) -> Case:
    """Read what a run left, whether it goes on, ended or died.

    Args:
        directory: the ``efficiency`` folder of the run.
        reader: one that has read the records before, so that only what is new is read.

    Raises:
        OutputError: there are no records, they cannot be read, or were written by a newer version.
    """
    if not any(rank_files(directory, kind) for kind in ("steps", "spans")) and (directory / RUN_JSON).exists():
        return Case(str(directory), read_account(directory / RUN_JSON), {}, recipe=_recipe(directory / RESOLVED))
    records = (reader or RunReader(directory)).look()
    account = build_account(records)
    return case_of(directory, records, account, build_series(account, records))


def case_of(directory: Path, records: RunRecords, account: RunAccount, series: RunSeries) -> Case:
    """The case of records that were read.

    Args:
        directory: where they lie.
        records, account, series: of the same.

    Raises:
        OutputError: the steps cannot be read again.
    """
    return Case(
        directory=str(directory),
        account=account,
        steps={rank: read_columns(path) for rank, path in rank_files(directory, "steps").items()},
        facts=_facts(records.processes),
        evaluations=_pauses(records.processes, "evaluation"),
        saves=_pauses(records.processes, "save"),
        series=series,
        recipe=_recipe(directory / RESOLVED),
    )


def _facts(processes: Iterable[ProcessSpans]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for process in processes:
        for topic, facts in process.facts.items():
            found.setdefault(topic, {}).update(facts)
    return found


def _pauses(processes: Iterable[ProcessSpans], kind: str) -> list[Pause]:
    notes = [note for process in processes for note in process.notes.get(kind, ())]
    return [Pause(int(note.get("step") or 0), float(note["seconds"])) for note in notes if note.get("seconds")]


def _recipe(path: Path) -> Mapping[str, Any] | None:
    """Values by dotted key; a file that cannot be read is as none, for the rules can do without."""
    if not path.exists():
        return None
    try:
        values = read_resolved(path).values
    except OutputError:
        return None
    return {value.key: yaml.safe_load(value.value) for value in values}
