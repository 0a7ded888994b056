"""The recipe to the accelerate command that runs it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_efficient.recipe.precision import mixed_precision
from hf_efficient.recipe.schema import Recipe

__all__ = ["accelerate_command", "printable"]


def accelerate_command(
    recipe: Recipe,
    recipe_argument: str,
    overrides: Sequence[str],
    *,
    device_count: int,
    cores: int,
    module: str = "hf_efficient.train",
) -> list[str]:
    """The command ``accelerate launch ... -m hf_efficient.train RECIPE a.b=value ...``.

    Every option that accelerate would otherwise take from its own configuration file, or warn about, is given.

    Args:
        recipe: the resolved recipe; names the processes and the precision.
        recipe_argument: the recipe as the user wrote it.
        overrides: the overrides and flags as the user wrote them.
        device_count: accelerators of this machine, for ``distributed.processes: auto``.
        cores: processor cores that this process may use; the processes share them. accelerate would give each one
            thread, and a CPU then trains at the speed of one core.
        module: that every process runs.
    """
    processes = recipe.distributed.processes
    count = max(1, device_count) if processes == "auto" else processes
    command = [
        _accelerate(),
        "launch",
        "--quiet",
        "--num_machines=1",
        f"--num_processes={count}",
        f"--mixed_precision={mixed_precision(recipe)}",
        "--dynamo_backend=no",
        f"--num_cpu_threads_per_process={max(1, cores // count)}",
    ]
    if count > 1:
        command.append("--multi_gpu")
    return [*command, "-m", module, recipe_argument, *overrides]


def printable(command: Sequence[str]) -> str:
    """The command quoted for a POSIX shell."""
    return shlex.join(command)


def _accelerate() -> str:
    """``accelerate`` where the shell would find this environment's own, else its path."""
    own = Path(sys.executable).with_name("accelerate")
    found = shutil.which("accelerate")
    if found is not None and (not own.exists() or Path(found).resolve() == own.resolve()):
        return "accelerate"
    relative = os.path.relpath(own)
    return relative if not relative.startswith("..") else str(own)
