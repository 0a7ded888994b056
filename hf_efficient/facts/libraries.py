"""Which packages are here and what they log, and whether the model hub can be reached."""

import functools
import importlib.util
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hf_efficient.errors import MissingPackageError

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
