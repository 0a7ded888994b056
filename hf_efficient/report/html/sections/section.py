"""What a section of the page is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hf_efficient.report.plots.figure import Figure, Missing

__all__ = ["Section"]


@dataclass(frozen=True)
class Section:
    """One part of the page.

    Attributes:
        id: of its heading, and of its template ``sections/ID.html.jinja`` unless ``template`` names another.
        title: the heading.
        figures: its plots, in order.
        context: what else its template is given.
        short: the title in the table of contents.
        template: name of the template; empty: the id's.
    """

    id: str
    title: str
    figures: list[Figure | Missing] = field(default_factory=list)
    context: dict[str, Any] = field(default_factory=dict)
    short: str = ""
    template: str = ""
