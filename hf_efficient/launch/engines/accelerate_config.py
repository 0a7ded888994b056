"""The recipe to accelerate's configuration: what its file holds, and what its launcher's flags say."""

from __future__ import annotations

from typing import Any

from hf_efficient.launch.engines.deepspeed_config import ZERO_STAGES
from hf_efficient.launch.engines.layout import Engine, Layout, strategy_of
from hf_efficient.recipe.precision import mixed_precision
from hf_efficient.recipe.schema import DistributedSection, OffloadSection, Recipe

__all__ = ["accelerate_config", "deepspeed_fields", "fsdp_fields"]

_TYPES = {"none": "NO", "ddp": "MULTI_GPU", "fsdp2": "FSDP"}


def accelerate_config(recipe: Recipe, layout: Layout) -> dict[str, Any]:
    """What ``accelerate launch --config_file`` reads, for one machine of the layout.

    Every field that accelerate would otherwise guess, warn about, or take from the user's own configuration is there.
    ``MULTI_GPU`` is also what starts several processes where there is no GPU: a configuration that says ``MULTI_CPU``
    starts one (accelerate 1.15).
    """
    engine = strategy_of(recipe, layout.world_size)
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": _TYPES.get(engine, "DEEPSPEED"),
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "machine_rank": layout.node_rank,
        "main_training_function": "main",
        "mixed_precision": mixed_precision(recipe),
        "num_machines": layout.nodes,
        "num_processes": layout.world_size,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if layout.nodes > 1 and recipe.distributed.max_restarts:  # only there machines can meet once more
        config |= {"rdzv_backend": "c10d", "same_network": False}
    if layout.nodes > 1:
        config |= {"main_process_ip": layout.address, "main_process_port": layout.port}
    if engine in ("none", "ddp"):
        return config
    if engine == "fsdp2":
        return config | {"fsdp_config": fsdp_fields(recipe.distributed)}
    return config | {"deepspeed_config": deepspeed_fields(engine, recipe.distributed.offload, layout)}


def deepspeed_fields(engine: Engine, offload: OffloadSection, layout: Layout) -> dict[str, Any]:
    """What accelerate is told of DeepSpeed; the rest is in ``deepspeed_config``, which the process itself passes."""
    device = "cpu" if offload.nvme_path is None else "nvme"
    fields: dict[str, Any] = {
        "zero_stage": ZERO_STAGES[engine],
        "offload_optimizer_device": device if offload.optimizer else "none",
        "offload_param_device": device if offload.parameters else "none",
        "zero3_init_flag": engine == "zero3",
        "zero3_save_16bit_model": engine == "zero3",
    }
    if layout.nodes > 1:
        fields["deepspeed_multinode_launcher"] = "standard"  # each machine starts its own processes
    return fields


def fsdp_fields(distributed: DistributedSection) -> dict[str, Any]:
    """What accelerate is told of FSDP2. Which layers are units is the model's own ``_no_split_modules``, unless the
    recipe names them.
    """
    fields = {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_offload_params": distributed.offload.parameters,
        "fsdp_reshard_after_forward": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    named = distributed.wrap_classes
    return fields if named is None else {**fields, "fsdp_transformer_layer_cls_to_wrap": ",".join(named)}
