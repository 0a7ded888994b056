"""What a launcher has started this process as, against what the recipe asks for."""

from __future__ import annotations

from collections.abc import Mapping

from hf_efficient.launch.engines.accelerate_config import deepspeed_fields
from hf_efficient.launch.engines.deepspeed_config import is_zero
from hf_efficient.launch.engines.layout import Engine, Layout, strategy_of
from hf_efficient.recipe.origins import told_where
from hf_efficient.recipe.schema import OffloadSection, Recipe

__all__ = ["engine_contradiction", "started_engine", "started_nodes", "started_processes"]

_DEEPSPEED = "ACCELERATE_DEEPSPEED_"


def started_engine(environment: Mapping[str, str]) -> Engine:
    """The strategy that the launcher has told this process of (accelerate does so by environment variables)."""
    if _is_true(environment, "ACCELERATE_USE_DEEPSPEED"):
        stage = environment.get(f"{_DEEPSPEED}ZERO_STAGE", "2")
        return {"1": "zero1", "3": "zero3"}.get(stage, "zero2")  # type: ignore[return-value]
    if _is_true(environment, "ACCELERATE_USE_FSDP"):
        return "fsdp2"
    return "ddp" if started_processes(environment) > 1 else "none"


def started_processes(environment: Mapping[str, str]) -> int:
    """That train together, on all machines; 1 without a launcher."""
    return int(environment.get("WORLD_SIZE", "1"))


def started_nodes(environment: Mapping[str, str]) -> int:
    """Machines that the processes are on, as torchrun tells each of them; 1 where nobody tells."""
    here = int(environment.get("LOCAL_WORLD_SIZE", "0"))
    return max(1, started_processes(environment) // here) if here else 1


def engine_contradiction(recipe: Recipe, environment: Mapping[str, str]) -> str | None:
    """What to tell where launcher and recipe disagree on the engine, names both; None where they agree.

    Args:
        recipe: the resolved recipe.
        environment: of this process.
    """
    started = started_engine(environment)
    wanted = strategy_of(recipe, started_processes(environment))
    if recipe.distributed.strategy == "auto" and started in ("none", "ddp"):
        return None
    if started != wanted:
        return _told(recipe, "strategy", recipe.distributed.strategy, f"the launcher started {_words(started)}")
    if is_zero(started):
        return _deepspeed_contradiction(recipe, environment, started)
    if started == "fsdp2":
        return _fsdp_contradiction(recipe, environment)
    return None


def _deepspeed_contradiction(recipe: Recipe, environment: Mapping[str, str], engine: Engine) -> str | None:
    offload = recipe.distributed.offload
    if environment.get(f"{_DEEPSPEED}CONFIG_FILE", "none") != "none":
        return _told(
            recipe,
            "strategy",
            engine,
            f"the launcher names a DeepSpeed configuration of its own, {environment[f'{_DEEPSPEED}CONFIG_FILE']}",
        )
    fields = deepspeed_fields(engine, offload, Layout(1, 1, 1))
    for part, name in (("optimizer", "offload_optimizer_device"), ("parameters", "offload_param_device")):
        told = environment.get(f"{_DEEPSPEED}{name.upper()}", "none")
        if told != fields[name]:
            return _told(recipe, f"offload.{part}", str(_offloads(offload, part)).lower(), f"--{name} is {told}")
    return None


def _fsdp_contradiction(recipe: Recipe, environment: Mapping[str, str]) -> str | None:
    if environment.get("FSDP_VERSION", "1") != "2":
        return _told(recipe, "strategy", "fsdp2", "the launcher started FSDP version 1 (--fsdp_version)")
    told = _is_true(environment, "FSDP_OFFLOAD_PARAMS")
    if told != recipe.distributed.offload.parameters:
        said = str(recipe.distributed.offload.parameters).lower()
        return _told(recipe, "offload.parameters", said, f"--fsdp_offload_params is {str(told).lower()}")
    named, flag = recipe.distributed.wrap_classes, "--fsdp_transformer_layer_cls_to_wrap"
    classes = environment.get("FSDP_TRANSFORMER_CLS_TO_WRAP", "")
    if named is not None and set(classes.split(",")) != set(named):
        return _told(recipe, "wrap_classes", ",".join(named), f"{flag} is {classes or 'not given'}")
    return None


def _told(recipe: Recipe, key: str, value: str, launcher: str) -> str:
    where = told_where(recipe, f"distributed.{key}")
    return (
        f"{where}distributed.{key}: is {value}, but {launcher}. Start with `hf-efficient train`, which derives the "
        "launch from the recipe; or give `accelerate launch` what "
        "`hf-efficient recipes show RECIPE --launch` prints."
    )


def _offloads(offload: OffloadSection, part: str) -> bool:
    return offload.optimizer if part == "optimizer" else offload.parameters


def _words(engine: Engine) -> str:
    return {"none": "one process", "ddp": "data-parallel processes (DDP)"}.get(engine, engine)


def _is_true(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "false").lower() in ("true", "1")
