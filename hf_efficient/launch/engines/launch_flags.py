"""accelerate's configuration as flags of ``accelerate launch``, so that the command needs no file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["FLAGS_ALONE", "launch_flags"]

FLAGS_ALONE = Path(__file__).with_name("flags_alone.yaml")
"""For ``--config_file``. Without one accelerate takes what no flag says from the user's own default configuration, in
which FSDP makes a launch of one process fail.
"""

_ENGINES = {"MULTI_GPU": "--multi_gpu", "DEEPSPEED": "--use_deepspeed", "FSDP": "--use_fsdp"}
_ALWAYS = ("num_machines", "num_processes", "mixed_precision")
_SEVERAL_MACHINES = ("machine_rank", "main_process_ip", "main_process_port", "rdzv_backend")


def launch_flags(config: Mapping[str, Any], threads: int, max_restarts: int = 0) -> list[str]:
    """The flags that say what ``accelerate_config`` does.

    Args:
        config: of a launch.
        threads: processor cores for each process. accelerate would give each one, and a CPU then trains at the speed
            of one core.
        max_restarts: of the elastic agent.
    """
    several = config["num_machines"] > 1
    names = [*_ALWAYS, *(_SEVERAL_MACHINES if several else ())]
    flags = [f"--{name}={config[name]}" for name in names]
    if several and config["same_network"]:
        flags.append("--same_network")
    flags += ["--dynamo_backend=no", f"--num_cpu_threads_per_process={threads}"]
    if max_restarts:
        flags.append(f"--max_restarts={max_restarts}")
    if several and config["rdzv_backend"] == "c10d":  # it would go by the machine's name, which may be another's
        flags.append(f"--rdzv_conf=is_host={str(config['machine_rank'] == 0).lower()}")
    engine = _ENGINES.get(config["distributed_type"])
    if engine is not None:
        flags.append(engine)
    fields = {**config.get("deepspeed_config", {}), **config.get("fsdp_config", {})}
    return [*flags, *(f"--{name}={_word(value)}" for name, value in fields.items())]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
