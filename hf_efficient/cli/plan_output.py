"""What ``hf-efficient plan`` prints: each part as soon as it is there, or all of it as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hf_efficient.records.plan import Plan

__all__ = ["PlanOutput"]


class PlanOutput:
    """Prints every part when it is there, or all as JSON at the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def plan(self, planned: Plan) -> None:
        """The plan itself."""
        from hf_efficient.report.plan_console import plan_renderables

        self._print(plan_renderables(planned))

    def advice(self, planned: Plan) -> None:
        """What to change."""
        from hf_efficient.report.plan_advice import advice_renderables

        if planned.advice is not None:
            self._print(advice_renderables(planned.advice))

    def largest(self, planned: Plan) -> None:
        """The most that fits."""
        from hf_efficient.report.plan_advice import largest_renderables

        if planned.largest is not None:
            self._print(largest_renderables(planned.largest, planned.micro_batch_rows, planned.row_tokens))

    def end(self, planned: Plan) -> None:
        """All of it, for a machine."""
        if self._as_json:
            import dataclasses
            import json

            print(json.dumps(dataclasses.asdict(planned), indent=2))

    def page(self, planned: Plan, path: Path, command: str) -> None:
        """Write it as a page.

        Args:
            planned: all of it.
            path: of the page.
            command: that makes it again.

        Raises:
            OutputError: the file cannot be written.
        """
        from datetime import datetime

        from hf_efficient.cli.page_file import write_page_file
        from hf_efficient.report.html.plan_page import plan_page

        told_to = sys.stderr if self._as_json else None
        write_page_file(path, path, lambda: plan_page(planned, command, datetime.now().astimezone()), told_to)

    def _print(self, parts: list[RenderableType]) -> None:
        if self._as_json:
            return
        from rich.console import Console

        console = Console(highlight=False)
        for part in parts:
            console.print(part)
