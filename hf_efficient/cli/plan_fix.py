"""``hf-efficient plan --fix``: the recipe that fits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hf_efficient.version import __version__

if TYPE_CHECKING:
    from hf_efficient.recipe.schema import Recipe
    from hf_efficient.records.plan import Plan

__all__ = ["write_fix"]


def write_fix(recipe: Recipe, planned: Plan, path: Path) -> bool:
    """Write the cheapest change as a recipe that extends this one, and say so.

    Args:
        recipe: the original.
        planned: its plan for one accelerator, with advice where it does not fit.
        path: of the new recipe.

    Returns:
        Whether the recipe fits, or the one that was written.

    Raises:
        OutputError: the file cannot be written.
    """
    from hf_efficient.planning.advised import cheapest_fix
    from hf_efficient.planning.fixed_recipe import fixed_recipe
    from hf_efficient.recipe.new_file import write_new_file

    name = planned.gpus[0].name
    if planned.gpus[0].fits:
        print(f"--fix: it fits {name} as it is; nothing is written.", file=sys.stderr)
        return True
    overrides = cheapest_fix(planned)
    if overrides is None:
        print(f"--fix: no change makes it fit {name}; nothing is written.", file=sys.stderr)
        return False
    remark = f"Fits {name} by hf-efficient plan {__version__}."
    write_new_file(path, fixed_recipe(recipe, overrides, path, remark), "--fix")
    print(f"--fix: {path} fits {name}. Run it: hf-efficient train {path}", file=sys.stderr)
    return True
