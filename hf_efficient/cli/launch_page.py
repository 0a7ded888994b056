"""How a recipe is launched, for ``hf-efficient recipes show --launch``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hf_efficient.hardware.devices import accelerator_count, thread_count
from hf_efficient.launch.command import accelerate_command, printable
from hf_efficient.launch.engines.accelerate_config import accelerate_config
from hf_efficient.launch.engines.deepspeed_config import deepspeed_config, is_zero
from hf_efficient.launch.engines.largest_share import largest_share
from hf_efficient.launch.engines.layout import layout_of, strategy_of
from hf_efficient.launch.engines.place import DEFAULT_PORT, NodePlace
from hf_efficient.recipe.global_batch import with_accumulation
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.yaml_dump import dump_yaml

__all__ = ["launch_page"]


def launch_page(recipe: Recipe, argument: str, overrides: Sequence[str], *, as_json: bool) -> str:
    """accelerate's configuration file, DeepSpeed's JSON where DeepSpeed runs it, and the command that needs neither.

    Args:
        recipe: resolved.
        argument: the recipe as the user wrote it.
        overrides: as the user wrote them.
        as_json: one JSON object in place of pages to read.

    Raises:
        RecipeError: as many processes do not divide the global batch that the recipe names.
    """
    automatic = recipe.distributed.processes == "auto"
    place = NodePlace(0, "MACHINE_0", DEFAULT_PORT) if recipe.distributed.nodes > 1 else None
    layout = layout_of(recipe, device_count=accelerator_count() if automatic else 0, cores=thread_count(), place=place)
    with_accumulation(recipe, layout.world_size)
    engine = strategy_of(recipe, layout.world_size)
    config = accelerate_config(recipe, layout)
    zero = None
    if is_zero(engine):
        zero = deepspeed_config(recipe, engine, largest_share(recipe, layout.world_size))
    command = printable(accelerate_command(recipe, argument, overrides, layout))
    if as_json:
        return (
            json.dumps({"strategy": engine, "accelerate": config, "deepspeed": zero, "command": command}, indent=2)
            + "\n"
        )
    parts = [f"# accelerate launch --config_file FILE -m hf_efficient.train {argument}\n{dump_yaml(config)}"]
    if zero is not None:
        told = json.dumps(zero, indent=2)
        parts.append(f"# What the run tells DeepSpeed; `auto` is filled in from the recipe.\n{told}\n")
    parts.append(f"# The same by flags alone, as `hf-efficient train` does it:\n$ {command}\n")
    return "\n".join(parts)
