"""The notebooks, executed from their first cell to their last as a reader would, and what they leave behind.

Run after the other tests (``make test``): each takes minutes on two cores.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from hf_efficient import load_run

LABS = Path(__file__).parent


def execute(name: str, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook in an empty folder; an exception in a cell is raised here."""
    notebook = nbformat.read(LABS / name, as_version=4)
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return notebook


def last_value(notebook: nbformat.NotebookNode) -> dict:
    (output,) = [one for one in notebook.cells[-1].outputs if one.output_type == "execute_result"]
    return ast.literal_eval(output.data["text/plain"])


@pytest.mark.parametrize("path", sorted(LABS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_committed_without_outputs(path):
    cells = nbformat.read(path, as_version=4).cells
    assert [cell for cell in cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)] == []


def test_01_first_qlora(tmp_path):
    found = last_value(execute("01_first_qlora.ipynb", tmp_path))
    assert found["adapter_parameters"] == found["adapter_parameters_predicted"] == 4_884_480
    assert found["bits_per_weight"] == pytest.approx(found["bits_per_weight_predicted"], rel=0.01)
    assert found["flops_per_parameter_and_token"] == pytest.approx(4.2, abs=0.2)
    assert found["loss_after"] < 0.92 * found["loss_before"]
    assert found["padding_share"]["random"] > 2 * found["padding_share"]["group_by_length"]

    run = tmp_path / "outputs/lab1-qlora"
    account = load_run(run)
    assert account.ended == "done"
    assert (account.steps.count, account.time.processes[0].last_step) == (24, 24)
    assert abs(account.time.unattributed_seconds) <= 0.02 * account.time.wall_seconds
    assert json.loads((run / "adapter_config.json").read_text())["r"] == 16
    assert (run / "efficiency/report.html").is_file()
    assert load_run(tmp_path / "outputs/lab1-lora").steps.count == 24
