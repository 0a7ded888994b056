"""The page of a run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime

from hf_efficient.report.html.render import render
from hf_efficient.report.html.sections.cost import cost_section
from hf_efficient.report.html.sections.evaluations import evaluations_section
from hf_efficient.report.html.sections.findings import findings_section
from hf_efficient.report.html.sections.gaps import gaps
from hf_efficient.report.html.sections.learning import learning
from hf_efficient.report.html.sections.memory import memory_section
from hf_efficient.report.html.sections.plan import plan_section
from hf_efficient.report.html.sections.preflight import preflight_section
from hf_efficient.report.html.sections.profile import profile_section
from hf_efficient.report.html.sections.recipe import machine_facts, recipe_section
from hf_efficient.report.html.sections.segments import segments, told_end
from hf_efficient.report.html.sections.speed import speed
from hf_efficient.report.html.sections.summary import summary
from hf_efficient.report.html.sections.system import system_section
from hf_efficient.report.html.sections.time import time_section
from hf_efficient.report.html.sections.tokens import tokens_section
from hf_efficient.report.html.sections.trace import trace_section
from hf_efficient.report.plots.span_data import span_data
from hf_efficient.report.run_data import RunData

__all__ = ["run_page"]

_WAYS = {
    "recipe": "a recipe's run",
    "trainer": "EfficientTrainer in a script",
    "callback": "AccountCallback in a plain Trainer",
    "unknown": "records of an older version",
}


@dataclass(frozen=True)
class _Ended:
    kind: str
    word: str
    told: str


def run_page(run: RunData, written: datetime | None = None) -> str:
    """The report of one run.

    Args:
        run: what was recorded.
        written: when; told in the footer.
    """
    made = [
        summary(run),
        findings_section(run),
        plan_section(run),
        preflight_section(run),
        time_section(run),
        system_section(run),
        memory_section(run),
        learning(run),
        speed(run),
        tokens_section(run),
        cost_section(run),
        trace_section(run),
        profile_section(run),
        evaluations_section(run),
        recipe_section(run),
        segments(run),
        gaps(run),
    ]
    sections = [section for section in made if section is not None]
    return render(
        "run.html.jinja",
        sections,
        span=span_data(run.series.steps) if run.series is not None else None,
        title=f"{run.name} · hf_efficient",
        kind="run report",
        command=f"hf-efficient report {shlex.quote(run.directory)}",
        written=written,
        run=run,
        ended=_ended(run),
        facts=_facts(run),
    )


def _ended(run: RunData) -> _Ended:
    account = run.account
    told = told_end(account.time.processes[-1])
    if account.ended == "done":
        budget = account.money.budget
        stopped = f"Its budget ended it: {budget.reached}" if budget and budget.reached else ""
        return _Ended("warn" if stopped else "good", "stopped" if stopped else "finished", stopped)
    if account.ended == "stopped":
        return _Ended("warn", "stopped", f"It was asked to: {account.error}. --resume goes on.")
    if account.ended == "error":
        return _Ended("bad", "failed", account.error or "")
    return _Ended("warn", "did not end", f"It was killed, or is still running: {told}.")


def _facts(run: RunData) -> list[str]:
    """The line below the title: what was trained, on what."""
    facts = []
    if run.recipe is not None:
        values = {value.key: value.value for value in run.recipe.values}
        facts += [values[key] for key in ("model.id", "adapter.method", "method") if key in values]
    machine = machine_facts(run.environment)
    facts += [told for name, told in machine if name in ("GPU", "CPU") and told != "none"][:1]
    ranks = len(run.account.ranks)
    if ranks > 1:
        facts.append(f"{ranks} ranks")
    return [*facts, _WAYS.get(run.account.recorded_by, run.account.recorded_by)]
