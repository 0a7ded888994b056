"""The processes that were started, against those that the recipe asks for."""

from __future__ import annotations

from collections.abc import Mapping

from hf_efficient.errors import SetupError
from hf_efficient.launch.engines.started import engine_contradiction, started_nodes, started_processes
from hf_efficient.recipe.global_batch import with_accumulation
from hf_efficient.recipe.origins import is_set, told_where
from hf_efficient.recipe.schema import Recipe

__all__ = ["launch_contradiction", "started_recipe"]


def started_recipe(recipe: Recipe, environment: Mapping[str, str]) -> Recipe:
    """The recipe for the processes that a launcher has started, told before they meet.

    Args:
        recipe: the resolved recipe.
        environment: of this process.

    Raises:
        SetupError: launcher and recipe disagree.
        RecipeError: the processes do not divide the global batch that the recipe names.
    """
    told = engine_contradiction(recipe, environment)
    if told is None and "WORLD_SIZE" in environment:
        told = launch_contradiction(recipe, started_processes(environment), started_nodes(environment))
    if told is not None:
        raise SetupError(told)
    return with_accumulation(recipe, started_processes(environment))


def launch_contradiction(recipe: Recipe, world_size: int, nodes: int = 1) -> str | None:
    """What to tell where a launch and ``distributed.processes`` or ``nodes`` disagree; None where they agree.

    A launch starts its processes before any of them reads the recipe, so that a bare ``accelerate launch`` would
    train with one process, and another batch size, than the recipe says.

    Args:
        recipe: the resolved recipe; ``auto``, and one that does not say, agree with every launch.
        world_size: processes that train together, on all machines; 1 without a launcher.
        nodes: machines that they are on.
    """
    if is_set(recipe, "distributed.nodes") and recipe.distributed.nodes != nodes:
        return (
            f"distributed.nodes: is {recipe.distributed.nodes}, but the processes of {nodes} were started. Start "
            "`hf-efficient train` on every machine, with --node-rank and --main-address; or write "
            f"distributed.nodes={nodes}."
        )
    wanted = recipe.distributed.processes
    if wanted == "auto" or wanted * nodes == world_size or not is_set(recipe, "distributed.processes"):
        return None
    if nodes > 1:
        return (
            f"distributed.processes: is {wanted} on each of {nodes} machines, but {world_size} were started in all. "
            f"Write distributed.processes={world_size // nodes}, or start as many as it says."
        )
    where = told_where(recipe, "distributed.processes")
    started = "1 process was" if world_size == 1 else f"{world_size} processes were"
    return (
        f"{where}distributed.processes: is {wanted}, but {started} started. Start with `hf-efficient train`, which "
        f"derives the launch from the recipe; or pass {_flags(int(wanted))} to `accelerate launch`; or write "
        f"distributed.processes={world_size}."
    )


def _flags(processes: int) -> str:
    return f"--num_processes={processes}" + (" --multi_gpu" if processes > 1 else "")
