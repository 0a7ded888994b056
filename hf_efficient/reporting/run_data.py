"""The trace that a run's profiler left beside its records, broken down.

Everything that the page of a run is made from, gathered from its folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_efficient.accounting.account import RUN_JSON, build_account, read_account
from hf_efficient.accounting.evaluations import SampleAnswers, sample_answers
from hf_efficient.accounting.run_records import RunReader
from hf_efficient.accounting.series import build_series
from hf_efficient.diagnosis.case import StepColumns, case_of
from hf_efficient.diagnosis.engine import diagnose_case
from hf_efficient.errors import OutputError
from hf_efficient.recipe.writing import ResolvedRecipe, read_resolved
from hf_efficient.records.account import RunAccount
from hf_efficient.records.findings import Diagnosis
from hf_efficient.records.series import RunSeries
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.run_dir.json_file import PROFILE
from hf_efficient.run_dir.reading import rank_files
from hf_efficient.text import size
from hf_efficient.trace.breakdown import trace_breakdown

_NAME = re.compile(r"trace\.rank(\d+)\.cycle(\d+)(\.pt\.trace)?\.json(\.gz)?")
_LARGEST_BYTES = 32 << 20
"""Of a trace that a page reads, as it lies on the disk: a few seconds' work."""


@dataclass(frozen=True)
class RunTrace:
    """One trace of a run.

    Attributes:
        name: of its file, inside the folder of records.
        path: of its file, for a command line.
        breakdown: None where it was not read.
        why: it was not.
        others: names of the run's other traces.
    """

    name: str
    path: str
    breakdown: TraceBreakdown | None
    why: str
    others: list[str]


def read_run_trace(directory: Path) -> RunTrace | None:
    """The first trace of the first rank; None where the run left none.

    Args:
        directory: the ``efficiency`` folder of the run.
    """
    found = [(match, path) for path in directory.glob(f"{PROFILE}/trace.*") if (match := _NAME.fullmatch(path.name))]
    paths = [path for _, path in sorted(found, key=lambda one: (int(one[0][1]), int(one[0][2])))]
    if not paths:
        return None
    names = [f"{PROFILE}/{path.name}" for path in paths]
    breakdown, why = _read(paths[0])
    return RunTrace(names[0], str(paths[0]), breakdown, why, names[1:])


def _read(path: Path) -> tuple[TraceBreakdown | None, str]:
    try:
        held = path.stat().st_size
        if held > _LARGEST_BYTES:
            return None, f"it holds {size(held)}, which is more than a page reads"
        return trace_breakdown(path), ""
    except OutputError as error:  # the rest of the page can do without
        return None, str(error)
    except OSError as error:
        return None, f"{path}: cannot be read: {error.strerror}"


RESOLVED = "recipe.resolved.yaml"


@dataclass(frozen=True)
class RunData:
    """One run.

    Attributes:
        name: of its recipe, else of its output directory.
        directory: its output directory, as it was named.
        account: where everything went.
        series: over its time; None where only ``run.json`` was kept.
        recipe: None without one, or without its file.
        no_recipe: why there is none.
        answers: sample answers by question.
        diagnosis: what is wrong with it; None where only ``run.json`` was kept.
        rank_step_seconds: mean seconds of a step by phase, of each rank whose steps were kept.
        memory_bytes: all that the device has that trains; None: not known.
        cpus: hardware threads of the machine; None: not known.
        trace: of its profiler; None where it left none, or it was not asked for.
    """

    name: str
    directory: str
    account: RunAccount
    series: RunSeries | None = None
    recipe: ResolvedRecipe | None = None
    no_recipe: str = ""
    answers: list[SampleAnswers] = field(default_factory=list)
    diagnosis: Diagnosis | None = None
    rank_step_seconds: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    memory_bytes: int | None = None
    cpus: int | None = None
    trace: RunTrace | None = None

    @property
    def environment(self) -> Mapping[str, Any]:
        """Versions and hardware; empty where nobody told them."""
        return self.account.environment or (self.recipe.environment if self.recipe is not None else {})


def read_run(directory: Path, reader: RunReader | None = None, *, trace: bool = False) -> RunData:
    """Read a run's records, and diagnose it.

    Args:
        directory: the ``efficiency`` folder of a run.
        reader: one that has read them before, so that only what is new is read.
        trace: whether to read the trace of its profiler too, which may take seconds.

    Raises:
        OutputError: there are no records, or they cannot be read.
    """
    recipe, why = _recipe(directory / RESOLVED)
    output = directory.parent if directory.name == "efficiency" else directory
    name = recipe.name if recipe and recipe.name else output.absolute().name
    traced = read_run_trace(directory) if trace else None
    if _only_the_account(directory):
        return RunData(name, str(output), read_account(directory / RUN_JSON), None, recipe, why, trace=traced)
    records = (reader or RunReader(directory)).look()
    account = build_account(records)
    case = case_of(directory, records, account, build_series(account, records))
    return RunData(
        name,
        str(output),
        account,
        case.series,
        recipe,
        why,
        sample_answers(records.processes),
        diagnosis=diagnose_case(case),
        rank_step_seconds={rank: _step_seconds(columns) for rank, columns in case.steps.items()},
        memory_bytes=case.settings("device").get("memory_bytes"),
        cpus=case.facts.get("system", {}).get("cpus"),
        trace=traced,
    )


def _step_seconds(columns: StepColumns) -> dict[str, float]:
    """Means over the steps."""
    return {name: float(sums.mean()) for name, sums in columns.phase_seconds.items()} if len(columns) else {}


def _only_the_account(directory: Path) -> bool:
    records = rank_files(directory, "spans") or rank_files(directory, "steps")
    return not records and (directory / RUN_JSON).exists()


def _recipe(path: Path) -> tuple[ResolvedRecipe | None, str]:
    if not path.exists():
        return None, f"there is no {path.name} beside the records: only a recipe's run writes one"
    try:
        return read_resolved(path), ""
    except OutputError as error:  # the rest of the page can do without
        return None, str(error)
