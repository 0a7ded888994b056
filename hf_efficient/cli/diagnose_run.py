"""``hf-efficient diagnose RUN_DIR``."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from hf_efficient.account.load import records_folder
from hf_efficient.diagnosis.apply import applied_recipe, remedy_of
from hf_efficient.diagnosis.engine import diagnose_case
from hf_efficient.diagnosis.prediction import prediction
from hf_efficient.diagnosis.read_case import read_case
from hf_efficient.diagnosis.run import to_json
from hf_efficient.recipe.new_file import check_new_file, write_new_file
from hf_efficient.report.diagnosis_console import diagnosis_renderables
from hf_efficient.report.diagnosis_words import told_change, told_gain

__all__ = ["diagnose_run"]


def diagnose_run(run_dir: Path, apply: Path | None, number: int | None, as_json: bool) -> None:
    """Print the diagnosis of a run; write the recipe with a remedy.

    Args:
        run_dir: its output directory.
        apply: of the new recipe; None: none is written.
        number: of the finding whose remedy it takes, from 1; None: the first that changes a recipe.
        as_json: print it as JSON.

    Raises:
        OutputError: there are no records, they cannot be read, or the file cannot be written.
    """
    if apply is not None:
        check_new_file(apply, "--apply")
    directory = records_folder(run_dir)
    case = read_case(directory)
    found = diagnose_case(case)
    if as_json:
        print(to_json(found), end="")
    else:
        console = Console(highlight=False)
        for part in diagnosis_renderables(found):
            console.print(part)
    if apply is None:
        return
    finding, remedy = remedy_of(found, number)
    confirms = prediction(case, finding, remedy)
    write_new_file(apply, applied_recipe(directory, finding, remedy, confirms), "--apply")
    gain = f", {told_gain(remedy.gain)} predicted for the same tokens" if remedy.gain is not None else ""
    changes = " ".join(told_change(key, value) for key, value in remedy.overrides.items())
    then = f"hf-efficient train {apply}{'; its report says whether it came' if confirms else ''}"
    print(f"--apply: {apply} is the recipe with {changes}{gain}. Run it: {then}", file=sys.stderr)
