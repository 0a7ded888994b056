"""The recipe to the processes that run it: their layout, the configuration of accelerate and DeepSpeed, the command."""

import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from hf_efficient.errors import SetupError
from hf_efficient.recipe.load import rendered
from hf_efficient.recipe.schema import DistributedSection, OffloadSection, Recipe, mixed_precision

DEFAULT_PORT = 29500  # torchrun's and accelerate's own

Engine = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp2"]

ZERO_STAGES: dict[Engine, int] = {"zero1": 1, "zero2": 2, "zero3": 3}

BUFFER_ELEMENTS = 100_000_000
"""DeepSpeed's ``offload_param.buffer_size``: a parameter's share on a rank that has more cannot be read from NVMe."""

# For ``--config_file``: without one accelerate reads the user's own, in which FSDP makes a launch of one process fail.
FLAGS_ALONE = Path(__file__).with_name("flags_alone.yaml")


class Layout(NamedTuple):
    """The processes of a launch, and which of its machines this one is; for one machine ``address`` is None."""

    nodes: int
    processes: int  # on each machine
    cores: int  # that the processes of a machine share
    node_rank: int = 0
    address: str | None = None
    port: int | None = None

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes


def node_place(recipe: Recipe, rank: int, main_address: str | None) -> tuple[int, str, int] | None:
    """Of a ``Layout`` what ``--node-rank`` and ``--main-address`` say; None for a recipe of one machine."""
    nodes = recipe.distributed.nodes
    if nodes == 1:
        if main_address is None and rank == 0:
            return None
        given = "--main-address" if main_address is not None else "--node-rank"
        raise SetupError(f"{given}: distributed.nodes is 1; write distributed.nodes=N, or leave the flag out.")
    if main_address is None:
        raise SetupError(
            f"--main-address: is missing, and distributed.nodes is {nodes}. Start the same command on every machine, "
            f"with --node-rank 0 to {nodes - 1} and --main-address HOST:PORT of machine 0. As a job: hf-efficient "
            "submit RECIPE --on slurm."
        )
    if rank >= nodes:
        raise SetupError(f"--node-rank: is {rank}, but distributed.nodes is {nodes}: write 0 to {nodes - 1}.")
    return (rank, *_split(main_address))


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]") or (":" in host and not host.startswith("[")):
        return address.strip("[]"), DEFAULT_PORT
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise SetupError(f"--main-address: {port!r} is no port in {address!r}; write HOST:PORT, {host}:{DEFAULT_PORT}.")
    return host.strip("[]"), int(port)


def layout_of(recipe: Recipe, *, device_count: int, cores: int, place: tuple[int, str, int] | None = None) -> Layout:
    wanted, nodes = recipe.distributed.processes, recipe.distributed.nodes
    return Layout(nodes, max(1, device_count) if wanted == "auto" else wanted, cores, *(place or ()))


def strategy_of(recipe: Recipe, world_size: int) -> Engine:
    """The strategy by name: for one process ``auto`` and ``ddp`` are none, as accelerate refuses ``--multi_gpu``."""
    strategy = recipe.distributed.strategy
    if strategy == "auto" or strategy == "ddp":
        return "none" if world_size == 1 else "ddp"
    return strategy


def is_zero(engine: Engine) -> bool:
    return engine in ZERO_STAGES


def deepspeed_config(recipe: Recipe, engine: Engine, largest_share: int = 0) -> dict[str, Any]:
    offload = recipe.distributed.offload
    place: dict[str, Any] = {"device": "cpu", "pin_memory": True}
    if offload.nvme_path is not None:
        place |= {"device": "nvme", "nvme_path": offload.nvme_path}
    on_disk = offload.nvme_path is not None and largest_share > BUFFER_ELEMENTS
    return yaml.safe_load(
        rendered(
            Path(__file__).with_name("deepspeed.yaml.jinja"),
            stage=ZERO_STAGES[engine],
            offload=offload,
            place=place,
            buffer_size=largest_share if on_disk else 0,
        )
    )


def largest_share(recipe: Recipe, processes: int) -> int:
    """Elements of the largest parameter on one rank, where its way leads over NVMe; else 0."""
    offload = recipe.distributed.offload
    if not offload.parameters or offload.nvme_path is None:
        return 0
    from hf_efficient.planning.model_config import largest_parameter

    return math.ceil(largest_parameter(recipe.model) / processes)


def accelerate_config(recipe: Recipe, layout: Layout) -> dict[str, Any]:
    """What ``accelerate launch --config_file`` reads, for one machine, with every field that it would guess.
    ``MULTI_GPU`` starts several processes without a GPU too: with ``MULTI_CPU`` accelerate (1.15) starts one."""
    engine = strategy_of(recipe, layout.world_size)
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": {"none": "NO", "ddp": "MULTI_GPU", "fsdp2": "FSDP"}.get(engine, "DEEPSPEED"),
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
    if layout.nodes > 1:
        config |= {"main_process_ip": layout.address, "main_process_port": layout.port}
        if recipe.distributed.max_restarts:  # only there machines can meet once more
            config |= {"rdzv_backend": "c10d", "same_network": False}
    if engine in ("none", "ddp"):
        return config
    if engine == "fsdp2":
        return config | {"fsdp_config": fsdp_fields(recipe.distributed)}
    return config | {"deepspeed_config": deepspeed_fields(engine, recipe.distributed.offload, layout)}


def deepspeed_fields(engine: Engine, offload: OffloadSection, layout: Layout) -> dict[str, Any]:
    """What accelerate reads of DeepSpeed; the rest is in ``deepspeed_config``, which the process itself passes."""
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
    """What accelerate reads of FSDP2; without classes the model's own ``_no_split_modules`` are the units."""
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


def launch_flags(config: Mapping[str, Any], threads: int, max_restarts: int = 0) -> list[str]:
    """What ``accelerate_config`` says as flags. accelerate would give each process one thread, too slow for a CPU."""
    several = config["num_machines"] > 1
    names = ["num_machines", "num_processes", "mixed_precision"]
    names += ["machine_rank", "main_process_ip", "main_process_port", "rdzv_backend"] if several else []
    flags = [f"--{name}={config[name]}" for name in names]
    if several and config["same_network"]:
        flags.append("--same_network")
    flags += ["--dynamo_backend=no", f"--num_cpu_threads_per_process={threads}"]
    if max_restarts:
        flags.append(f"--max_restarts={max_restarts}")
    if several and config["rdzv_backend"] == "c10d":  # it would go by the machine's name, which may be another's
        flags.append(f"--rdzv_conf=is_host={str(config['machine_rank'] == 0).lower()}")
    engines = {"MULTI_GPU": ["--multi_gpu"], "DEEPSPEED": ["--use_deepspeed"], "FSDP": ["--use_fsdp"]}
    flags += engines.get(config["distributed_type"], [])
    fields = {**config.get("deepspeed_config", {}), **config.get("fsdp_config", {})}
    words = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}
    return [*flags, *(f"--{name}={word}" for name, word in words.items())]


def accelerate_command(
    recipe: Recipe, argument: str, overrides: Sequence[str], layout: Layout, *, module: str = "hf_efficient.train"
) -> list[str]:
    """``accelerate launch ...`` for one machine, independent of the user's own configuration file."""
    threads = recipe.distributed.cpu_threads or max(1, layout.cores // layout.processes)
    flags = launch_flags(accelerate_config(recipe, layout), threads, recipe.distributed.max_restarts)
    alone = f"--config_file={FLAGS_ALONE}"
    return [_accelerate(), "launch", "--quiet", alone, *flags, "-m", module, argument, *overrides]


def _accelerate() -> str:
    """``accelerate`` where the shell would find this environment's own, else its path, relative where that is below."""
    own = Path(sys.executable).with_name("accelerate")
    found = shutil.which("accelerate")
    if found is not None and (not own.exists() or Path(found).resolve() == own.resolve()):
        return "accelerate"
    relative = os.path.relpath(own)
    return relative if not relative.startswith("..") else str(own)
