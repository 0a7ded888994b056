"""What this machine is and which versions it runs: facts for a bug report or a record of a run.

What cannot be found out is None; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hf_efficient.version import __version__

__all__ = ["Environment", "GpuFacts", "cpu_model", "describe_environment"]

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
