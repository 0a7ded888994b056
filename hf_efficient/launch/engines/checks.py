"""Whether this machine can start what a recipe asks for, asked before any process is."""

from __future__ import annotations

import ctypes.util
import os
import socket
import sys
from pathlib import Path

from hf_efficient.errors import SetupError
from hf_efficient.hardware.packages import is_installed
from hf_efficient.launch.engines.deepspeed_config import is_zero
from hf_efficient.launch.engines.layout import Engine, Layout, strategy_of
from hf_efficient.recipe.origins import told_where
from hf_efficient.recipe.schema import Recipe

__all__ = ["check_engine", "check_port", "check_use_cpu", "has_libaio", "is_free"]


def check_engine(recipe: Recipe, layout: Layout, device_count: int = 0) -> None:
    """What the engine needs is here.

    Args:
        recipe: to be launched.
        layout: of its processes.
        device_count: accelerators of this machine; 0: a CPU, which any number of processes may share.

    Raises:
        SetupError: a package, a library, a folder or a device is missing.
    """
    engine, distributed = strategy_of(recipe, layout.world_size), recipe.distributed
    where = told_where(recipe, "distributed.strategy")
    if is_zero(engine) and not is_installed("deepspeed"):
        raise SetupError(
            f"{where}distributed.strategy: {engine} is DeepSpeed's, which is not installed. Install it (pip install "
            "'hf_efficient[deepspeed]'), or write `distributed.strategy: fsdp2`, which is torch's own."
        )
    on_cpu = bool(recipe.train.get("use_cpu"))
    if device_count and on_cpu:
        check_use_cpu(recipe, engine)
    if 0 < device_count < layout.processes and not on_cpu:
        raise SetupError(
            f"distributed.processes: is {layout.processes}, but this machine has {device_count} "
            f"accelerator{'s' if device_count > 1 else ''}, one for each process. "
            f"Write at most {device_count}, or auto."
        )
    if distributed.offload.nvme_path is not None:
        _check_disk(distributed.offload.nvme_path)


def check_use_cpu(recipe: Recipe, engine: Engine) -> None:
    """On a machine with an accelerator only the Trainer can be kept from it, not the engines.

    Raises:
        SetupError: the recipe wants the CPU, and DeepSpeed or FSDP2.
    """
    if recipe.train.get("use_cpu") and (is_zero(engine) or engine == "fsdp2"):
        raise SetupError(
            f"train.use_cpu: is true, and {engine} would not follow it on this machine, which has an accelerator. Hide "
            "it from the whole run (CUDA_VISIBLE_DEVICES= in front of the command), or leave the key out."
        )


def _check_disk(path: str) -> None:
    otherwise = "leave the key out: then the host's memory takes what is offloaded."
    if not (Path(path).is_dir() and os.access(path, os.W_OK)):
        raise SetupError(
            f"distributed.offload.nvme_path: {path} is no folder that can be written here. Make it, on a fast local "
            f"disk of every machine, or {otherwise}"
        )
    if not has_libaio():
        raise SetupError(
            "distributed.offload.nvme_path: DeepSpeed reads and writes there by libaio, which is not installed. "
            f"Install it with its headers (apt install libaio-dev), or {otherwise}"
        )


def has_libaio() -> bool:
    """Whether the linker would find it, as far as can be told: whoever sets ``LDFLAGS`` may have put it anywhere."""
    in_environment = any((Path(sys.prefix) / "lib").glob("libaio.so*"))
    return in_environment or "LDFLAGS" in os.environ or ctypes.util.find_library("aio") is not None


def check_port(layout: Layout) -> None:
    """Where this machine is the one that the others meet at, its port is free.

    Raises:
        SetupError: something listens there already.
    """
    if layout.port is None or layout.node_rank != 0:
        return
    if not is_free(layout.port):
        raise SetupError(
            f"--main-address: port {layout.port} of this machine is in use, by another run perhaps. Name another port "
            f"on every machine: --main-address {layout.address}:{layout.port + 1}."
        )


def is_free(port: int) -> bool:
    """Whether a server could listen at this port of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
