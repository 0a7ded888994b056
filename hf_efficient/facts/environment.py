"""Which Python packages are here, without importing them.

Whether the model hub can be reached, asked before a library spends half a minute on retries.

The libraries' chatter, off unless asked for: the terminal shows what the user can act on.

What this machine can compute with.

What this machine is and which versions it runs: facts for a bug report or a record of a run.

What cannot be found out is None; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import logging
import os
import platform
import shutil
import socket
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from hf_efficient.version import __version__


def is_installed(module: str) -> bool:
    """Whether a top-level module can be imported; it is looked for, not run."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # it was put into sys.modules by hand, without a specification
        return True


_DEFAULT_ENDPOINT = "https://huggingface.co"


@functools.lru_cache(maxsize=1)
def hub_reachable() -> bool:
    """Whether the hub's host name resolves, and offline mode is not asked for.

    A name that resolves does not prove that downloads work; one that does not resolve proves that they cannot.
    Honours ``HF_HUB_OFFLINE`` and ``HF_ENDPOINT``; behind a proxy the name need not resolve here, so a configured
    proxy counts as reachable.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT", _DEFAULT_ENDPOINT)).hostname
    try:
        socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return True


# bitsandbytes looks for an optional CPU kernel package and reports its absence; transformers reports special
# tokens that it aligns; both are as intended here.
_CHATTY = (
    "bitsandbytes",
    "transformers.trainer",
    "transformers.integrations.bitsandbytes",
    "accelerate",
    "torch.utils.checkpoint",
)


def quieten_libraries(*, debug: bool) -> None:
    """Set the log levels of the libraries that a run uses, and the warnings that nobody can act on.

    Called before they are imported. With ``debug`` everything is left as it is.
    """
    if debug:
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings(
        "ignore", category=UserWarning, module=r"torch\..*|transformers\..*|peft\..*|bitsandbytes\..*"
    )


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Import libraries in the block without what they log meanwhile; the log levels are put back after it."""
    before = {name: logging.getLogger(name).level for name in _CHATTY}
    try:
        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def accelerator_count() -> int:
    """Accelerators that torch sees here; 0 on a CPU."""
    import torch

    return int(torch.accelerator.device_count()) if torch.accelerator.is_available() else 0


def cpu_multiplies_bf16() -> bool:
    """Whether torch knows this CPU to have instructions for it: AVX512-BF16 or AMX."""
    import torch

    asked = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return any(bool(one()) for one in asked if one is not None)


def cpu_emulates_bf16() -> bool:
    """Whether it is an x86 without them, on which float32 is faster by far.

    Products of 800 x 576 by 576 x 1536 took 7 times as long in bfloat16 forwards and 28 times backwards on an AMD EPYC
    with AVX2 (torch 2.13). Of other architectures torch does not tell.
    """
    return platform.machine().lower() in ("x86_64", "amd64") and not cpu_multiplies_bf16()


def thread_count() -> int:
    """Threads worth computing with: ``OMP_NUM_THREADS`` where it is set, else the physical cores usable here."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    usable = _allowed_cpus()
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def usable_cpus(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Hardware threads that this process may keep busy: those it may run on, and no more than its container's quota.

    Args:
        quota: of the control group, version 2: microseconds of CPU time, or ``max``, per period of microseconds.
    """
    usable = float(_allowed_cpus())
    try:
        granted, period = quota.read_text(encoding="ascii").split()
        return usable if granted == "max" else min(usable, int(granted) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return usable


def _allowed_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


logger = logging.getLogger(__name__)

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "bitsandbytes",
    "evaluate",
    "tokenizers",
    "numpy",
)
_COMMAND_SECONDS = 10


@dataclass(frozen=True)
class GpuFacts:
    """One GPU as torch sees it.

    Attributes:
        name: the vendor's name.
        memory_bytes: total device memory.
        capability: CUDA compute capability, ``"9.0"``; None where the vendor has none.
    """

    name: str
    memory_bytes: int
    capability: str | None


@dataclass(frozen=True)
class Environment:
    """The machine and its packages.

    Attributes:
        python: version of the interpreter.
        platform: operating system and architecture.
        cpu: model name.
        physical_cores: cores without hyper-threads.
        logical_cores: processors that the system shows.
        usable_cores: processors that this process may use.
        memory_bytes: memory of the machine.
        gpus: GPUs that torch can use; empty where it can use none; None where torch cannot be imported or was
            not asked.
        driver: version of the NVIDIA driver.
        cuda: CUDA version that torch was built with.
        versions: package to installed version.
        git_commit: commit of the current directory.
        git_dirty: whether tracked files there differ from that commit.
    """

    python: str
    platform: str
    cpu: str | None
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int | None
    memory_bytes: int
    gpus: tuple[GpuFacts, ...] | None
    driver: str | None
    cuda: str | None
    versions: dict[str, str | None]
    git_commit: str | None
    git_dirty: bool | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        held = dataclasses.asdict(self)
        if self.gpus is not None:
            held["gpus"] = [dataclasses.asdict(gpu) for gpu in self.gpus]
        return held


def describe_environment(*, ask_torch: bool = True) -> Environment:
    """Gather the facts.

    Args:
        ask_torch: import torch to see the GPUs, which takes a second or two.
    """
    gpus, cuda = _gpus() if ask_torch else (None, None)
    commit, dirty = _git(Path.cwd())
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_model(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=os.cpu_count(),
        usable_cores=_usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        gpus=gpus,
        driver=_driver(),
        cuda=cuda,
        versions={"hf_efficient": __version__, **{name: _version(name) for name in PACKAGES}},
        git_commit=commit,
        git_dirty=dirty,
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_model() -> str | None:
    """The name that the processor gives itself; None where the system does not tell."""
    if platform.system() == "Darwin":
        return _output(["sysctl", "-n", "machdep.cpu.brand_string"])
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    named = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in named if key.strip() == "model name"), None)


def _usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _gpus() -> tuple[tuple[GpuFacts, ...] | None, str | None]:
    try:
        import torch
    except (ImportError, OSError) as error:
        logger.debug("torch cannot be imported: %s", error)
        return None, None
    if not torch.cuda.is_available():
        return (), torch.version.cuda
    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        # ROCm builds report an architecture name instead, and their major and minor are no CUDA capability.
        capability = None if torch.version.hip else f"{facts.major}.{facts.minor}"
        found.append(GpuFacts(facts.name, facts.total_memory, capability))
    return tuple(found), torch.version.cuda


def _driver() -> str | None:
    told = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return told.splitlines()[0] if told else None


def _git(folder: Path) -> tuple[str | None, bool | None]:
    git = ["git", "--no-optional-locks", "-C", str(folder)]
    commit = _output([*git, "rev-parse", "--verify", "HEAD"])
    if commit is None:
        return None, None
    changes = _output([*git, "status", "--porcelain", "--untracked-files=no"])
    return commit, None if changes is None else bool(changes)


def _output(command: list[str]) -> str | None:
    """What a command prints; None where it is not installed, fails or takes longer than ten seconds."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_COMMAND_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("%s: %s", command[0], error)
        return None
    return done.stdout.strip()
