"""Run notebooks and store their outputs: ``python labs/refresh.py [NAME.ipynb ...]``; all of them without a name.

A notebook runs in an empty folder. Standard error is left out; what is stored names no path and no machine.
"""

import os
import platform
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

LABS = Path(__file__).parent
MOST_BYTES = 300_000
SOLUTION = re.compile(r"<summary>Solution[^<]*</summary>(.*?)</details>", re.DOTALL)
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def execute(path: Path, folder: Path, more: list[str] | None = None) -> nbformat.NotebookNode:
    """Run a notebook in a folder, then further cells; an exception in a cell is raised here."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in more or []]
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    NotebookClient(notebook, timeout=2400, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return notebook


def solutions(notebook: nbformat.NotebookNode) -> list[str]:
    """The code of the exercises' solutions, which stands in hidden sections of the text."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return [code for section in SOLUTION.findall(text) for code in CODE.findall(section)]


def clean(notebook: nbformat.NotebookNode) -> None:
    """Keep standard output, results and pictures; count the cells from 1."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.metadata.pop("execution", None)
        cell.execution_count = number
        kept: list[nbformat.NotebookNode] = []
        for output in cell.outputs:
            if output.output_type == "stream" and kept and kept[-1].output_type == "stream":
                kept[-1].text += output.text if output.name == "stdout" else ""
            elif output.output_type != "stream" or output.name == "stdout":
                kept.append(output)
            if output.output_type == "execute_result":
                output.execution_count = number
        cell.outputs = kept


def faults(notebook: nbformat.NotebookNode) -> list[str]:
    """What must not be committed: paths and the name of this machine, terminal codes, errors, large pictures."""
    found = []
    here = {str(LABS.parents[1]), str(Path.home()), tempfile.gettempdir()} - {"/"}
    unwanted = re.compile(rf"{'|'.join(map(re.escape, here))}|site-packages|\x1b|\b{re.escape(platform.node())}\b")
    for place, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            found += [f"cell {place}: {hit[0]!r} in the output" for hit in unwanted.finditer(text)]
            found += [f"cell {place}: an error is stored"] * (output.output_type == "error")
    size = len(nbformat.writes(notebook))
    return [*found, *([f"{size:,} bytes: more than {MOST_BYTES:,}"] if size > MOST_BYTES else [])]


def refresh(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        notebook = execute(path, Path(folder))
    clean(notebook)
    if found := faults(notebook):
        raise SystemExit(f"{path.name} is not written:\n" + "\n".join(found))
    nbformat.write(notebook, path)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(one.name for one in LABS.glob("*.ipynb")):
        refresh(LABS / name)
