"""What is inlined into the page: the plotting library, our scripts, the style."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from hf_efficient.report.html.theme import theme_css

__all__ = ["ICON", "library_name", "library_script", "page_scripts", "style_sheet", "vendored"]

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect x='1' y='8' width='4' height='7' fill='%2365b5f4'/%3E%3Crect x='6' y='4' width='4' height='11' "
    "fill='%232e548d'/%3E%3Crect x='11' y='1' width='4' height='14' fill='%23de9b24'/%3E%3C/svg%3E"
)
_REPORT = Path(__file__).parents[1]
_SCRIPTS = ("scheme.js", "plots.js", "span.js", "copy.js", "print.js")
_STYLES = ("report.css", "findings.css")


@cache
def vendored() -> dict[str, str]:
    """``assets/vendored.json``: package, version, licence, file and sha256 of the plotting library."""
    return dict(json.loads((_REPORT / "assets" / "vendored.json").read_text(encoding="utf-8")))


def library_name() -> str:
    """Name, version and licence of the plotting library."""
    held = vendored()
    return f"{held['name']} {held['version']} ({held['licence']})"


@cache
def library_script() -> str:
    """The plotting library, which defines ``Plotly``."""
    return (_REPORT / "assets" / vendored()["file"]).read_text(encoding="utf-8")


@cache
def page_scripts() -> list[str]:
    """Our own scripts, in the order in which they run; the first runs before the library."""
    return [(_REPORT / "html" / "static" / name).read_text(encoding="utf-8") for name in _SCRIPTS]


@cache
def style_sheet() -> str:
    """The style of the page."""
    held = [(_REPORT / "html" / "static" / name).read_text(encoding="utf-8") for name in _STYLES]
    return theme_css() + "".join(held)
