"""Everything that the page of a run is made from, gathered from its folder."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from hf_efficient.accounting.account import AccountedRun, account_run, read_account
from hf_efficient.accounting.evaluations import SampleAnswers, sample_answers
from hf_efficient.accounting.steps import StepColumns
from hf_efficient.diagnosis.case import case_of
from hf_efficient.diagnosis.engine import diagnose_case
from hf_efficient.errors import OutputError
from hf_efficient.recipe.load import ResolvedRecipe, read_resolved
from hf_efficient.records.account import RunAccount, RunSeries
from hf_efficient.records.findings import Diagnosis
from hf_efficient.records.prepared import MANIFEST_JSON, PreparedSet
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.records.trained_model import EVALUATION_JSON, EVALUATION_VERSION, TaskScores
from hf_efficient.run_dir.json_file import PROFILE, read_record, read_table
from hf_efficient.run_dir.paths import RESOLVED, RUN_JSON, has_only_account
from hf_efficient.text import size
from hf_efficient.trace.breakdown import trace_breakdown

_T = TypeVar("_T")
_NAME = re.compile(r"trace\.rank(\d+)\.cycle(\d+)(\.pt\.trace)?\.json(\.gz)?")
_LARGEST_BYTES = 32 << 20  # of a trace that a page reads, compressed as on disk: a few seconds' work


@dataclass(frozen=True)
class RunTrace:
    """One trace of a run; ``breakdown`` is None where it was not read, ``others`` are the run's other traces."""

    name: str
    path: str
    breakdown: TraceBreakdown | None
    why: str
    others: list[str]


@dataclass(frozen=True)
class RunData:
    """One run; series and diagnosis are None where only ``run.json`` was kept."""

    name: str  # of its recipe, else of its output directory
    directory: str
    account: RunAccount
    series: RunSeries | None = None
    recipe: ResolvedRecipe | None = None
    no_recipe: str = ""
    answers: list[SampleAnswers] = field(default_factory=list)
    diagnosis: Diagnosis | None = None
    cpus: int | None = None  # hardware threads of the machine
    trace: RunTrace | None = None
    prepared: PreparedSet | None = None  # what it trained on, where that still lies in its folder
    task_scores: TaskScores | None = None  # of `hf-efficient eval`
    steps: Mapping[int, StepColumns] = field(default_factory=dict)  # of each rank; of a long run the last
    settings: Mapping[str, Any] = field(default_factory=dict)  # by part, as ``callbacks.run_facts`` notes them

    @property
    def environment(self) -> Mapping[str, Any]:
        return self.account.environment or (self.recipe.environment if self.recipe is not None else {})


def read_run(directory: Path, *, trace: bool = False) -> RunData:
    """Read an ``efficiency`` folder and diagnose the run. Raises ``OutputError`` where no records can be read."""
    if has_only_account(directory):
        run = _known(directory, read_account(directory / RUN_JSON))
    else:
        run = run_data(account_run(directory))
    return replace(run, trace=read_run_trace(directory)) if trace else run


def run_data(run: AccountedRun) -> RunData:
    case = case_of(run)
    return replace(
        _known(run.records.directory, run.account),
        series=run.series,
        answers=sample_answers(run.records.processes),
        diagnosis=diagnose_case(case),
        steps=case.steps,
        settings=case.facts.get("settings", {}),
        cpus=case.facts.get("system", {}).get("cpus"),
    )


def _known(directory: Path, account: RunAccount) -> RunData:
    nothing = f"there is no {RESOLVED} beside the records: only a recipe's run writes one"
    resolved = directory / RESOLVED
    recipe, why = _read(read_resolved, resolved) if resolved.exists() else (None, nothing)
    output = directory.parent if directory.name == "efficiency" else directory
    name = recipe.name if recipe and recipe.name else output.absolute().name
    scores = directory / EVALUATION_JSON
    found = read_record(scores, TaskScores, EVALUATION_VERSION, "the scores of tasks") if scores.exists() else None
    facts = account.prepared
    prepared = None if facts is None else read_table(Path(facts.folder) / MANIFEST_JSON, PreparedSet)
    return RunData(name, str(output), account, None, recipe, why, prepared=prepared, task_scores=found)


def _read(read: Callable[[Path], _T], path: Path) -> tuple[_T | None, str]:
    """What the rest of a page can do without; else why it cannot be read."""
    try:
        return read(path), ""
    except OutputError as error:
        return None, str(error)


def read_run_trace(directory: Path) -> RunTrace | None:
    found = ((_NAME.fullmatch(path.name), path) for path in directory.glob(f"{PROFILE}/trace.*"))
    paths = [path for _, _, path in sorted((int(one[1]), int(one[2]), path) for one, path in found if one)]
    if not paths:
        return None
    names = [f"{PROFILE}/{path.name}" for path in paths]
    held = paths[0].stat().st_size
    large = f"it holds {size(held)}, which is more than a page reads"
    breakdown, why = _read(trace_breakdown, paths[0]) if held <= _LARGEST_BYTES else (None, large)
    return RunTrace(names[0], str(paths[0]), breakdown, why, names[1:])
