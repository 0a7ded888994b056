"""The recipe to the accelerate command that runs it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_efficient.launch.engines.accelerate_config import accelerate_config
from hf_efficient.launch.engines.launch_flags import FLAGS_ALONE, launch_flags
from hf_efficient.launch.engines.layout import Layout
from hf_efficient.recipe.schema import Recipe

__all__ = ["accelerate_command", "printable"]


def accelerate_command(
    recipe: Recipe,
    recipe_argument: str,
    overrides: Sequence[str],
    layout: Layout,
    *,
    module: str = "hf_efficient.train",
) -> list[str]:
    """The command ``accelerate launch ... -m hf_efficient.train RECIPE a.b=value ...`` for one machine.

    Every option that accelerate would otherwise guess, or warn about, is given; what no flag says comes from a file of
    ours, not from the user's own default configuration.

    Args:
        recipe: the resolved recipe; names the strategy and the precision.
        recipe_argument: the recipe as the user wrote it.
        overrides: the overrides and flags as the user wrote them.
        layout: the processes, and which machine this one is.
        module: that every process runs.
    """
    threads = max(1, layout.cores // layout.processes)
    flags = launch_flags(accelerate_config(recipe, layout), threads, recipe.distributed.max_restarts)
    alone = f"--config_file={FLAGS_ALONE}"
    return [_accelerate(), "launch", "--quiet", alone, *flags, "-m", module, recipe_argument, *overrides]


def printable(command: Sequence[str]) -> str:
    """The command quoted for a POSIX shell."""
    return shlex.join(command)


def _accelerate() -> str:
    """``accelerate`` where the shell would find this environment's own, else its path."""
    own = Path(sys.executable).with_name("accelerate")
    found = shutil.which("accelerate")
    if found is not None and (not own.exists() or Path(found).resolve() == own.resolve()):
        return "accelerate"
    return _from_here(own)


def _from_here(path: Path) -> str:
    """Relative where it is below the current folder."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
