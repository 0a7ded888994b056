"""The room's door: a recipe in, its variants run, the time of its step out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hf_efficient.errors import OutputError
from hf_efficient.hardware.devices import accelerator_count, thread_count
from hf_efficient.isolate.experiment import Progress, run_variants
from hf_efficient.isolate.result import isolation_of
from hf_efficient.isolate.run_variant import Launch, run_variant
from hf_efficient.isolate.variants import VARIANTS
from hf_efficient.isolate.whole_models import check_whole_models
from hf_efficient.recipe.load import load_recipe
from hf_efficient.records.isolation import Isolation

__all__ = ["FEWEST_STEPS", "STEPS", "WARM_UP", "isolate"]

STEPS = 12
WARM_UP = 3
FEWEST_STEPS = 6
"""With fewer pairs no interval of 95% is known (``estimate/paired.py``)."""


def isolate(argument: str, overrides: Sequence[str], steps: int, progress: Progress) -> Isolation:
    """Run the variants of a recipe; nothing is left of them but what is returned.

    They write to a folder of their own beside the recipe's output directory, on the disk where its checkpoints would
    go, which is not touched.

    Args:
        argument: a recipe file, or the name of a shipped one.
        overrides: ``a.b=value`` each.
        steps: to be measured of each, at least ``FEWEST_STEPS``.
        progress: is told.

    Raises:
        HfEfficientError: the recipe is wrong, cannot be launched, or does not train as it is.
    """
    recipe = load_recipe(argument, overrides)
    check_whole_models(recipe)
    automatic = recipe.distributed.processes == "auto"
    with tempfile.TemporaryDirectory(prefix=".hf-efficient-isolate-", dir=_place(recipe.output_dir)) as name:
        launch = Launch(
            recipe=recipe,
            argument=argument,
            overrides=overrides,
            steps=steps,
            warm_up=WARM_UP,
            parent=Path(name),
            device_count=accelerator_count() if automatic else 0,
            cores=thread_count(),
        )
        outcomes = run_variants(VARIANTS, recipe, lambda variant: run_variant(variant, launch), progress)
    return isolation_of(recipe, outcomes, steps, WARM_UP)


def _place(output_dir: str) -> Path:
    """The folder that holds the output directory, or would: the nearest that is there.

    Raises:
        OutputError: nothing can be written there.
    """
    folder = Path(output_dir).expanduser().absolute().parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        raise OutputError(
            f"output_dir: {folder} cannot be written, and the variants' checkpoints go there. "
            "Write another output_dir=..."
        )
    return folder
