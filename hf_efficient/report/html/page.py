"""The page of a run, and what every page has in common."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from hf_efficient.report.html.assets import ICON, library_name, library_script, page_scripts, style_sheet
from hf_efficient.report.html.embed import json_for_script, policy, script_text
from hf_efficient.report.html.sections.cost import cost_section
from hf_efficient.report.html.sections.evaluations import evaluations_section
from hf_efficient.report.html.sections.gaps import gaps
from hf_efficient.report.html.sections.learning import learning
from hf_efficient.report.html.sections.memory import memory_section
from hf_efficient.report.html.sections.plan import plan_section
from hf_efficient.report.html.sections.profile import profile_section
from hf_efficient.report.html.sections.recipe import machine_facts, recipe_section
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.html.sections.segments import segments, told_end
from hf_efficient.report.html.sections.speed import speed
from hf_efficient.report.html.sections.summary import summary
from hf_efficient.report.html.sections.time import time_section
from hf_efficient.report.html.sections.tokens import tokens_section
from hf_efficient.report.plots.figure import Figure
from hf_efficient.report.plots.span_data import span_data
from hf_efficient.report.run_data import RunData
from hf_efficient.units import seconds, short_seconds, size
from hf_efficient.version import __version__

__all__ = ["render", "run_page"]

_UNIT = re.compile(
    r"(?<=\d)\s?(%|(?:[KMGT]i)?B|ms|µs|s|min|h|k?Wh|J|W|k?g(?:/kWh)?|[kMGTPE]?FLOPs?(?:/s)?|tokens/s)(?![\w/])"
)
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
        plan_section(run),
        time_section(run),
        memory_section(run),
        learning(run),
        speed(run),
        tokens_section(run),
        cost_section(run),
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


def render(
    template: str,
    sections: Sequence[Section],
    *,
    span: dict[str, Any] | None,
    written: datetime | None,
    **context: Any,
) -> str:
    """A whole page.

    Args:
        template: its name.
        sections: in order.
        span: the columns behind the figures of a selected span; None where there are none.
        written: when; told in the footer.
        context: what else the template is given.
    """
    figures = {fig.id: _for_page(fig) for section in sections for fig in section.figures if isinstance(fig, Figure)}
    first, *others = page_scripts()
    scripts = [first, library_script(), *others]
    return (
        _templates()
        .get_template(template)
        .render(
            sections=sections,
            figures_json=json_for_script({"figures": figures, "span": span}),
            scripts=[script_text(script) for script in scripts],
            style=Markup(style_sheet()),
            policy=policy(scripts),
            icon=ICON,
            library=library_name(),
            version=__version__,
            written=f"{written:%Y-%m-%d %H:%M} {written.tzname() or ''}".strip() if written else "",
            **context,
        )
    )


def _for_page(figure: Figure) -> dict[str, Any]:
    return {
        "traces": figure.traces,
        "layout": figure.layout,
        "height": figure.height,
        "x": figure.x,
        "x_per_second": figure.x_per_second,
        "zoomable": figure.zoomable,
    }


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"units": _units, "bytes": size, "duration": seconds, "short_duration": short_seconds}
    return environment


def _units(text: str) -> Markup:
    """A figure with its units set smaller; the text is escaped."""
    return Markup(_UNIT.sub(_small, str(escape(text))))


def _small(unit: re.Match[str]) -> str:
    return f'<span class="u">{"" if unit[1] == "%" else " "}{unit[1]}</span>'


def _ended(run: RunData) -> _Ended:
    account = run.account
    told = told_end(account.time.processes[-1])
    if account.ended == "done":
        budget = account.money.budget
        stopped = f"Its budget ended it: {budget.reached}" if budget and budget.reached else ""
        return _Ended("warn" if stopped else "good", "stopped" if stopped else "finished", stopped)
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
