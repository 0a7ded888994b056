"""What this machine is, how much of it this process may use, which packages it has and what they log; whether the hub
can be reached. Imports no torch by itself. What cannot be found out is None or absent."""

import ctypes
import functools
import importlib.metadata
import importlib.util
import logging
import os
import platform
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from hf_efficient.errors import MissingPackageError
from hf_efficient.version import __version__

logger = logging.getLogger(__name__)

PACKAGES = (
    "torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "evaluate", "tokenizers", "numpy",
)  # fmt: skip
_COMMAND_SECONDS = 10


def describe_environment(*, ask_torch: bool = True) -> dict[str, Any]:
    """The machine and its packages, by name; with ``ask_torch`` torch is imported to see the GPUs (a second or two).
    ``gpus`` are None where torch was not asked, each with ``name``, ``memory_bytes`` and CUDA's ``capability``
    (``"9.0"``). Logical cores include hyper-threads, usable ones are this process's. ``cuda`` is torch's.
    ``git_dirty``: tracked files of the current directory differ from the commit."""
    gpus, cuda = _gpus() if ask_torch else (None, None)
    git = ["git", "--no-optional-locks", "-C", str(Path.cwd())]
    commit = _output([*git, "rev-parse", "--verify", "HEAD"])
    changes = None if commit is None else _output([*git, "status", "--porcelain", "--untracked-files=no"])
    driver = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": os.cpu_count(),
        "usable_cores": allowed_cpus() if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus,
        "driver": driver.splitlines()[0] if driver else None,
        "cuda": cuda,
        "versions": {"hf_efficient": __version__, **{name: version_of(name) for name in PACKAGES}},
        "git_commit": commit,
        "git_dirty": None if changes is None else bool(changes),
    }


@functools.cache
def environment_facts() -> dict[str, Any]:
    """``describe_environment``, once per process; raises nothing, starts no CUDA, and asks other programs."""
    try:
        import torch

        asks_torch = torch.cuda.is_initialized() or not torch.cuda.is_available()
        return describe_environment(ask_torch=asks_torch)
    except Exception as error:  # noqa: BLE001  whatever a machine may be like, the run continues
        return {"missing": [{"what": "versions and hardware", "why": f"{type(error).__name__}: {error}"}]}


def machine_facts() -> dict[str, Any]:
    """Facts of topic ``system``; raises nothing, and leaves out what the system does not know. Hardware threads are
    ``cpus`` in all, ``allowed_cpus`` by affinity, ``usable_cpus`` also by the container's quota; ``ranks_here`` are
    processes of this launch, ``shared_memory_bytes`` room for batches of loader workers."""
    torch = sys.modules.get("torch")
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    shared_memory = psutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None
    facts: dict[str, Any] = {
        "hostname": platform.node() or None,
        "cpus": os.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False),
        "allowed_cpus": allowed_cpus() if hasattr(os, "sched_getaffinity") else None,
        "usable_cpus": usable_cpus(),
        "torch_threads": torch and torch.get_num_threads(),
        "torch_interop_threads": torch and torch.get_num_interop_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "ranks_here": int(ranks) if ranks.isdigit() else None,
        "load_1_minute": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "shared_memory_bytes": shared_memory,
    }
    return {name: value for name, value in facts.items() if value is not None}


def cpu_model() -> str | None:
    if platform.system() == "Darwin":
        return _output(["sysctl", "-n", "machdep.cpu.brand_string"])
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    named = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in named if key.strip() == "model name"), None)


def accelerator_count() -> int:
    import torch

    return int(torch.accelerator.device_count()) if torch.accelerator.is_available() else 0


def cpu_multiplies_bf16() -> bool:
    """Whether torch knows this CPU to have instructions for it: AVX512-BF16 or AMX."""
    import torch

    asked = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return any(bool(one()) for one in asked if one is not None)


def cpu_emulates_bf16() -> bool:
    """Whether it is an x86 without bfloat16, on which float32 is faster by far. Products of 800 x 576 by 576 x 1536
    took 7 times as long forwards and 28 times backwards on an AMD EPYC with AVX2 (torch 2.13)."""
    return platform.machine().lower() in ("x86_64", "amd64") and not cpu_multiplies_bf16()


def thread_count() -> int:
    """Threads worth computing with: ``OMP_NUM_THREADS`` where it is set, else the physical cores usable here."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    usable = allowed_cpus()
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def usable_cpus(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Hardware threads that this process may keep busy: its affinity, and ``quota`` (microseconds per period)."""
    usable = float(allowed_cpus())
    try:
        granted, period = quota.read_text(encoding="ascii").split()
        return usable if granted == "max" else min(usable, int(granted) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return usable


def allowed_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def end_with_parent(number: int = 9) -> None:
    """Let this process get a signal, SIGKILL by default, once the one that started it is gone; on Linux alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> tuple[list[dict[str, Any]] | None, str | None]:
    try:
        import torch
    except (ImportError, OSError) as error:
        logger.debug("torch cannot be imported: %s", error)
        return None, None
    if not torch.cuda.is_available():
        return [], torch.version.cuda
    found: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        # ROCm builds report an architecture name instead, and their major and minor are no CUDA capability.
        capability = None if torch.version.hip else f"{facts.major}.{facts.minor}"
        found.append({"name": facts.name, "memory_bytes": facts.total_memory, "capability": capability})
    return found, torch.version.cuda


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_COMMAND_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("%s: %s", command[0], error)
        return None
    return done.stdout.strip()


# bitsandbytes looks for an optional CPU kernel package and reports its absence; transformers reports special
# tokens that it aligns; torchao of kernels for other GPUs, and torch of torchao's enums: all as intended here.
_CHATTY = (
    "bitsandbytes", "transformers.trainer", "transformers.integrations.bitsandbytes", "accelerate",
    "torch.utils.checkpoint", "torch.utils._pytree", "torch.onnx", "transformers.exporters", "torchao",
)  # fmt: skip


def missing_package(name: str | None) -> MissingPackageError | None:
    """What to raise where the import of a module failed; None for one that no extra brings."""
    import yaml

    package = (name or "").partition(".")[0]
    for extra, held in yaml.safe_load(Path(__file__).with_name("data").joinpath("packages.yaml").read_text()).items():
        if package in held["packages"]:
            told = f"The package {package}, for {held['purpose']}, is not installed"
            return MissingPackageError(f"{told}: run `pip install 'hf-efficient[{extra}]'`.")
    return None


def is_installed(module: str) -> bool:
    """Whether a top-level module can be imported; it is looked for, not run."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # it was put into sys.modules by hand, without a specification
        return True


@functools.lru_cache(maxsize=1)
def hub_reachable() -> bool:
    """Whether the hub's host name resolves, which shows before half a minute of retries, and offline mode is not asked
    for. Honours ``HF_HUB_OFFLINE`` and ``HF_ENDPOINT``; a configured proxy counts as reachable."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return True


_NO_NEWS = ("Setting accelerator to CPU", "Warning: The following arguments do not match the ones in")


def quieten_libraries(*, debug: bool) -> None:
    """Set the log levels of the libraries that a run uses, before their import; ``debug`` leaves all as it is."""
    if debug:
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    _hush()
    logging.getLogger("transformers.trainer_utils").addFilter(_is_news)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module=r"(torch|transformers|peft|bitsandbytes)\..*")


def _hush() -> None:
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("DeepSpeed").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """DeepSpeed warns of a machine without GPU when it is imported, whether it is used or not; transformers of a
    resumed run's other ``save_steps``, which a recipe may change: what it may not change is refused before."""
    return not record.getMessage().startswith(_NO_NEWS)


@contextmanager
def quiet_imports() -> Iterator[None]:
    before = {name: logging.getLogger(name).level for name in _CHATTY}
    try:
        _hush()
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Within, ``holder.name``, of a library's module perhaps, is ``value``; afterwards as it was. It must exist."""
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


@contextmanager
def replaced_item(table: Any, key: str, value: Any) -> Iterator[None]:
    before = table[key]
    table[key] = value
    try:
        yield
    finally:
        table[key] = before
