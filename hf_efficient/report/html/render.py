"""What every page has in common: its frame, its scripts and the data of its figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from hf_efficient.report.html.assets import ICON, library_name, library_script, page_scripts, style_sheet
from hf_efficient.report.html.embed import json_for_script, policy, script_text
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.plots.figure import Figure
from hf_efficient.units import seconds, short_seconds, size
from hf_efficient.version import __version__

__all__ = ["render"]

_UNIT = re.compile(
    r"(?<=\d)\s?(%|(?:[KMGT]i)?B|ms|µs|s|min|h|k?Wh|J|W|k?g(?:/kWh)?|[kMGTPE]?FLOPs?(?:/s)?|tokens/s)(?![\w/])"
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
