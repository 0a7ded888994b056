"""How near is a plan to what others have published of real GPUs?

    python benchmarks/published.py [--json FILE]

Each case of ``published_cases.py`` has a figure, where it was read, and the recipe that comes nearest to its setting.
The table holds the plan's peak of allocated bytes against it, and says what is not the same. Of an LM head that was
measured alone the same operators run on tensors without values.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from published_cases import HEADS, NOT_COMPARED, RECIPES, HeadCase, RecipeCase
from results import write_result
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from hf_efficient.facts.libraries import quieten_libraries
from hf_efficient.planning.plan import plan
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe
from hf_efficient.simulate.blank import blank
from hf_efficient.simulate.tensor_log import TensorLog, find_peak

console = Console()


def main() -> None:
    """Plan all cases, print and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every case")
    options = parser.parse_args()
    quieten_libraries(debug=False)
    started = datetime.datetime.now(datetime.timezone.utc)
    found = [*map(planned, RECIPES), *map(simulated_head, HEADS)]
    console.print(_table(found))
    for what, why in NOT_COMPARED.items():
        console.print(f"not compared: {what}: {why}", highlight=False)
    if options.json is not None:
        write_result(options.json, "published", started, {"found": found, "not_compared": dict(NOT_COMPARED)})


def planned(case: RecipeCase) -> dict[str, Any]:
    """The plan of a recipe against the figure."""
    with tempfile.TemporaryDirectory() as folder:
        made = plan(recipe_of(case, Path(folder)), [case.gpu])
    gpu = made.gpus[0]
    told = _compared(case.name, case.source, case.published_bytes, made.memory.peak_allocated_bytes)
    kinds = {name: size for name, size in made.memory.categories.items() if size}
    more = {"predicted_needed_bytes": gpu.needed_bytes, "predicted_categories": kinds, "case": asdict(case)}
    return {**told, "bound": case.bound, "differs": case.differs, **more}


def recipe_of(case: RecipeCase, folder: Path) -> Recipe:
    """The shipped recipe as the case has it; ``folder`` takes a model's configuration where it needs one."""
    own: tuple[str, ...] = ()
    if case.config is not None:
        (folder / "config.json").write_text(json.dumps(dict(case.config)))
        own = (f"model.id={folder}",)
    return load_recipe(case.recipe, [*case.overrides, *own])


def simulated_head(case: HeadCase) -> dict[str, Any]:
    """The peak of a head and its loss: forward and backward, for a second time, so that gradients are there."""
    log = TensorLog()
    heads = [blank(case.vocabulary, case.hidden, dtype=torch.bfloat16).requires_grad_() for _ in range(2)]
    values = blank(case.tokens, case.hidden, dtype=torch.bfloat16).requires_grad_()
    labels = torch.zeros(case.tokens, dtype=torch.int64)
    for tensor in (*heads, values, labels):
        log.add(tensor, "", "weights")
    with log:
        for _ in range(2):
            functional.cross_entropy(functional.linear(values, heads[0]), labels).backward()
    peak = find_peak(log)
    assert peak is not None  # the heads are there
    name = (
        f"Liger-Kernel's benchmark, head of {case.vocabulary:,} x {case.hidden:,}, {case.tokens:,} tokens, torch's loss"
    )
    differs = "two workspaces of cuBLAS, 16.25 MiB; a second head lies on the device there and here, and is not used"
    told = _compared(name, case.source, case.published_bytes, peak.bytes)
    return {**told, "bound": False, "differs": differs, "case": asdict(case)}


def _compared(name: str, source: str, published: float, predicted: int) -> dict[str, Any]:
    ratio = predicted / published
    return {"name": name, "source": source, "published_bytes": published, "predicted_bytes": predicted, "ratio": ratio}


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table("setting", "published", "predicted", "ratio", "what differs", box=None)
    for one in found:
        table.add_row(
            one["name"],
            ("< " if one["bound"] else "") + _gib(one["published_bytes"]),
            _gib(one["predicted_bytes"]),
            f"{one['ratio']:.2f}",
            one["differs"],
        )
    return table


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


if __name__ == "__main__":
    main()
