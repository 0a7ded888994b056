"""What every page has in common: its frame, its colours and scripts, and the data of its figures, safely embedded."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape

from hf_efficient.reporting import labels
from hf_efficient.reporting.plots.figure import Figure, Missing
from hf_efficient.text import kilowatt_hours, seconds, sentence, share, size
from hf_efficient.version import __version__

_HTML = Path(__file__).parent
_STATIC, _ASSETS = _HTML / "static", _HTML.parent / "assets"
_VENDORED: dict[str, str] = json.loads((_ASSETS / "vendored.json").read_text(encoding="utf-8"))
_UNIT = re.compile(
    r"(?<=\d)\s?(%|(?:[KMGT]i)?B|ms|µs|s|min|h|k?Wh|J|W|k?g(?:/kWh)?|[kMGTPE]?FLOPs?(?:/s)?|tokens/s)(?![\w/])"
)
_OF_FIGURES = ("traces", "layout", "height", "x", "x_per_second")


@dataclass(frozen=True)
class Section:
    """A part of the page; ``macro`` (default: ``id``) gets ``context``; ``short`` is the title in the contents."""

    id: str
    title: str
    figures: list[Figure | Missing] = field(default_factory=list)
    context: dict[str, Any] = field(default_factory=dict)
    short: str = ""
    macro: str = ""


def render(
    template: str, sections: Sequence[Section | None], *, span: dict[str, Any] | None = None, **context: Any
) -> str:
    """A page from the template ``run``, ``compare`` or ``plan``. ``span``: columns for the figures of a selection."""
    now = datetime.now().astimezone()
    shown = [section for section in sections if section is not None]
    drawn = [fig for section in shown for fig in section.figures if isinstance(fig, Figure)]
    figures = {fig.id: {name: getattr(fig, name) for name in _OF_FIGURES} for fig in drawn}
    scripts = [_read(_STATIC / "scheme.js"), library_script(), _read(_STATIC / "page.js")]
    page = templates().get_template("page.html.jinja")
    return page.render(
        parts_file=f"{template}.html.jinja",
        sections=shown,
        figures_json=json_for_script({"figures": figures, "span": span}),
        scripts=[Markup(script) for script in scripts],
        style=Markup(_read(_STATIC / "report.css")),
        policy=policy(scripts),
        library=library_name(),
        version=__version__,
        written=f"{now:%Y-%m-%d %H:%M} {now.tzname() or ''}".strip(),
        **context,
    )


@cache
def templates() -> Environment:
    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=FileSystemLoader(_HTML / "templates"), undefined=StrictUndefined, **options)
    environment.filters |= {
        "bytes": size,
        "duration": seconds,
        "energy": kilowatt_hours,
        "evidence": lambda one: labels.evidence_value(one.value, one.unit),
        "kind": labels.category_label,
        "kind_color": labels.category_color,
        "phase": labels.phase_label,
        "phase_color": labels.phase_color,
        "sentence": sentence,
        "shape": labels.tensor_shape,
        "share": share,
        "units": _units,
    }
    return environment


def _units(text: str) -> Markup:
    spaced = _UNIT.sub(
        lambda unit: f'<span class="u">{unit[1] if unit[1] == "%" else f" {unit[1]}"}</span>', escape(text)
    )
    return Markup(spaced)


def library_name() -> str:
    return f"{_VENDORED['name']} {_VENDORED['version']} ({_VENDORED['licence']})"


def library_script() -> str:
    return _read(_ASSETS / _VENDORED["file"])


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def json_for_script(data: Any) -> Markup:
    """Strict JSON that stands in ``<script type="application/json">`` whatever texts it holds; NaN becomes null."""
    return htmlsafe_json_dumps(_finite(data), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items() if item is not None}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def policy(scripts: Iterable[str]) -> str:
    """A Content-Security-Policy under which these scripts run, no others, and nothing is fetched from anywhere."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    elsewhere = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {hashes}; {elsewhere}"
