"""What is asked of this machine before any process is started: engine, port, network, hub, Nsight."""

import ctypes
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Literal

import psutil

from hf_efficient.errors import HfEfficientError, SetupError
from hf_efficient.facts.environment import hub_reachable, is_installed
from hf_efficient.launch.checkpoints import EFFICIENCY
from hf_efficient.launch.command import Engine, Layout, is_zero, strategy_of
from hf_efficient.model.source import resolve_model_source, resolve_tokenizer_source
from hf_efficient.recipe.schema import CaptureSection, Recipe, told_where
from hf_efficient.run_dir.json_file import PROFILE
from hf_efficient.text import counted


def check_engine(recipe: Recipe, layout: Layout, device_count: int = 0) -> None:
    """Refuse what lacks a package, a library, a folder or a device; without a device any number shares the CPU."""
    engine, distributed = strategy_of(recipe, layout.world_size), recipe.distributed
    where = told_where(recipe, "distributed.strategy")
    if is_zero(engine) and not is_installed("deepspeed"):
        raise SetupError(
            f"{where}distributed.strategy: {engine} is DeepSpeed's, which is not installed. Install it (pip install "
            "'hf-efficient[deepspeed]'), or write `distributed.strategy: fsdp2`, which is torch's own."
        )
    on_cpu = bool(recipe.train.get("use_cpu"))
    if device_count and on_cpu:
        check_use_cpu(recipe, engine)
    if 0 < device_count < layout.processes and not on_cpu:
        raise SetupError(
            f"distributed.processes: is {layout.processes}, but this machine has "
            f"{counted(device_count, 'accelerator')}, one for each process. Write at most {device_count}, or auto."
        )
    path = distributed.offload.nvme_path
    if path is not None and not (Path(path).is_dir() and os.access(path, os.W_OK)):
        raise SetupError(
            f"distributed.offload.nvme_path: {path} is no folder that can be written here. Make it, on a fast "
            "local disk of every machine, or leave the key out: then the host's memory takes what is offloaded."
        )


def check_use_cpu(recipe: Recipe, engine: Engine) -> None:
    """On a machine with an accelerator only the Trainer can be kept from it, not the engines."""
    if recipe.train.get("use_cpu") and (is_zero(engine) or engine == "fsdp2"):
        raise SetupError(
            f"train.use_cpu: is true, and {engine} would not follow it on this machine, which has an accelerator. Hide "
            "it from the whole run (CUDA_VISIBLE_DEVICES= in front of the command), or leave the key out."
        )


def launch_environment(layout: Layout) -> dict[str, str]:
    """What the processes of several machines need to know, beside the launcher's flags; what is set already stays."""
    if layout.address is None:
        return {}
    # The processes meet in a store of their own at every start: in the one that torch's launcher keeps (c10d), those
    # that it starts again would find the addresses of those that are gone.
    mine = own_address(layout.address)
    named = [(one.address.partition("%")[0], name) for name, held in psutil.net_if_addrs().items() for one in held]
    wanted = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PET_LOCAL_ADDR": mine,
        "GLOO_SOCKET_IFNAME": next((name for address, name in named if address == mine), None),
    }
    return {name: value for name, value in wanted.items() if value is not None and name not in os.environ}


def own_address(address: str) -> str | None:
    """That this machine would send from to that one, without sending; None where it cannot. By its own name gloo and
    torch's launcher would often take 127.0.0.1, where no other machine reaches it."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def go_offline_without_hub(recipe: Recipe) -> bool:
    """Set ``HF_HUB_OFFLINE``, before libraries are imported, where the recipe needs the hub, which is unreachable."""
    if not needs_hub(recipe) or hub_reachable():
        return False
    os.environ["HF_HUB_OFFLINE"] = "1"
    return True


def check_uploads(recipe: Recipe) -> None:
    if recipe.train.get("push_to_hub") and not hub_reachable():
        raise SetupError(
            f"{told_where(recipe, 'train.push_to_hub')}train.push_to_hub: is true, and the hub cannot be reached from "
            "here. Write false, and upload output_dir with `hf upload` from a machine that reaches it."
        )


def needs_hub(recipe: Recipe) -> bool:
    try:
        local = resolve_model_source(recipe.model).is_local and resolve_tokenizer_source(recipe.model).is_local
    except HfEfficientError:
        local = True  # said in full when the model is loaded
    paths = [source.path for source in recipe.data.sources().values()]
    return not local or any(not path.startswith("builtin:") and not _exists(path) for path in paths)


def _exists(path: str) -> bool:
    """Below a folder that may not be read, it counts as local."""
    try:
        return Path(path).expanduser().exists()
    except OSError:
        return True


NsightTool = Literal["nsys", "ncu"]

_PRODUCTS = {"nsys": "Systems", "ncu": "Compute"}
_MOST_KERNELS = 200  # Nsight Compute runs every kernel dozens of times over: a whole step would take hours


def check_installed(tool: NsightTool) -> None:
    if shutil.which(tool) is None:
        product = _PRODUCTS[tool]
        raise SetupError(
            f"--{tool}: Nsight {product} is not installed here: there is no `{tool}` on the PATH. Get it from "
            f"https://developer.nvidia.com/nsight-{product.lower()}, or with NVIDIA's CUDA toolkit; "
            "`profile.trace={}` traces some steps without it."
        )


def nsight_overrides(recipe: Recipe) -> list[str]:
    """``a.b=value`` that make the run name its steps and bound the capture, where the recipe does not say so itself."""
    profile = recipe.profile
    overrides = [] if profile.nvtx else ["profile.nvtx=true"]
    return overrides if profile.capture is not None else [*overrides, "profile.capture={}"]


def nsight_command(tool: NsightTool, recipe: Recipe, *, has_gpu: bool) -> list[str]:
    """What goes before the launch. nsys: CUDA, its libraries, NVTX, the operating system's calls and the CPU's stacks,
    for the steps of ``profile.capture``. ncu: rooflines of the first kernels of the first of these."""
    output = Path(recipe.output_dir).expanduser() / EFFICIENCY / PROFILE / tool
    capture = recipe.profile.capture or CaptureSection()
    if tool == "nsys":
        bounds = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"] if has_gpu else []
        what = ["--trace=cuda,nvtx,osrt,cudnn,cublas", "--sample=process-tree", "--cuda-memory-usage=true"]
        return ["nsys", "profile", *what, *bounds, "--force-overwrite=true", f"--output={output}"]
    where = [f"--nvtx-include=step {capture.after_step + 1}", f"--launch-count={_MOST_KERNELS}"]
    what = ["--target-processes=all", "--set=roofline", "--nvtx"]
    return ["ncu", *what, *where, "--force-overwrite", f"--export={output}"]


_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Let a process that trains on a CPU use freed tensors' memory again, in pages of 2 MiB where the kernel has them.
    Nothing where there is an accelerator, or where ``GLIBC_TUNABLES`` says otherwise.

    glibc gives each large block back to the kernel, which clears it at the next allocation. SmolLM2-135M, LoRA, bf16,
    4 x 512 packed tokens, two cores of an AMD EPYC: 662 tokens/s without, 815 with the same settings given by
    ``GLIBC_TUNABLES``; the peak 3.5 and 3.3 GiB.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # read by torch at its first allocation
    import torch

    if torch.accelerator.is_available():
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None or "GLIBC_TUNABLES" in os.environ:
        return
    for name, value in ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1)):
        mallopt(name, value)
