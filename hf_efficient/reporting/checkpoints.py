"""The checkpoints of a run: a table of all, and what the report of the run says of those that are not whole."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from hf_efficient.reporting.terminal import FoundTable, drawn
from hf_efficient.run_dir.checkpoints import MANIFEST, CheckpointState, checkpoints, fault_of
from hf_efficient.text import size


def checkpoint_table(states: Sequence[CheckpointState], *, hashes: bool) -> list[RenderableType]:
    held = "hashes" if hashes else "sizes"
    rows = [
        (
            state.path.name,
            f"{state.step:,}",
            "" if state.loss is None else f"{state.loss:.4g}",
            size(state.size),
            "no" if state.fault else "yes" if state.has_manifest else f"yes, without {MANIFEST}",
        )
        for state in states
    ]
    columns = ("checkpoint", "step", "loss", "size", f"whole (by {held})")
    faults = [Text(f"{state.path.name}: {state.fault}.", "red") for state in states if state.fault]
    return [drawn(FoundTable(columns, rows, words=(0, 4))), *faults, Text(_next(states))]


def _next(states: Sequence[CheckpointState]) -> str:
    whole = [state.path.name for state in states if state.fault is None]
    return f"--resume continues from {whole[-1]}." if whole else "None of them can be resumed from."


def damage_lines(run_dir: Path) -> list[RenderableType]:
    """A line for each checkpoint of a run that is not whole by the sizes of its files; none where all are."""
    faults = {path: fault_of(path) for path in checkpoints(run_dir)}
    return [Text(f"{path.name} cannot be resumed from: {fault}.", "red") for path, fault in faults.items() if fault]
