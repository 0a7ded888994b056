"""Whether as many processes were started as the recipe asks for."""

from __future__ import annotations

from hf_efficient.recipe.schema import Recipe

__all__ = ["launch_contradiction"]


def launch_contradiction(recipe: Recipe, world_size: int) -> str | None:
    """What to tell where a launch and ``distributed.processes`` disagree; None where they agree.

    A launch starts its processes before any of them reads the recipe, so that a bare ``accelerate launch`` would
    train with one process, and another batch size, than the recipe says.

    Args:
        recipe: the resolved recipe; ``auto``, and one that does not say, agree with every launch.
        world_size: processes that train together; 1 without a launcher.
    """
    wanted = recipe.distributed.processes
    if wanted in ("auto", world_size) or "processes" not in recipe.distributed.model_fields_set:
        return None
    said = recipe.provenance.get("distributed.processes")
    where = f"{said}: " if said is not None and said.source != "default" else ""
    started = "1 process was" if world_size == 1 else f"{world_size} processes were"
    return (
        f"{where}distributed.processes: is {wanted}, but {started} started. Start with `hf-efficient train`, which "
        f"derives the launch from the recipe; or pass {_flags(int(wanted))} to `accelerate launch`; or write "
        f"distributed.processes={world_size}."
    )


def _flags(processes: int) -> str:
    return f"--num_processes={processes}" + (" --multi_gpu" if processes > 1 else "")
