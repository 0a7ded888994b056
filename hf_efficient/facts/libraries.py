"""Which packages are here and what they log, and whether the model hub can be reached."""

import functools
import importlib.util
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from hf_efficient.errors import MissingPackageError

# bitsandbytes looks for an optional CPU kernel package and reports its absence; transformers reports special
# tokens that it aligns; both are as intended here.
_CHATTY = (
    "bitsandbytes",
    "transformers.trainer",
    "transformers.integrations.bitsandbytes",
    "accelerate",
    "torch.utils.checkpoint",
)


_EXTRAS = {
    **dict.fromkeys(
        ("trl", "peft", "datasets", "evaluate", "gguf", "pyarrow"), ("recipes", "recipes and TRL's trainers")
    ),
    "bitsandbytes": ("quantization", "quantized models and 8-bit optimizers"),
    "deepspeed": ("deepspeed", "ZeRO"),
    "lm_eval": ("eval", "benchmark tasks"),
}
"""Package to the extra that brings it, and what it is for."""


def missing_package(name: str | None) -> MissingPackageError | None:
    """What to raise where the import of a module failed; None for one that no extra brings."""
    package = (name or "").partition(".")[0]
    if package not in _EXTRAS:
        return None
    extra, purpose = _EXTRAS[package]
    return MissingPackageError(
        f"The package {package}, for {purpose}, is not installed: run `pip install 'hf-efficient[{extra}]'`."
    )


def is_installed(module: str) -> bool:
    """Whether a top-level module can be imported; it is looked for, not run."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # it was put into sys.modules by hand, without a specification
        return True


@functools.lru_cache(maxsize=1)
def hub_reachable() -> bool:
    """Whether the hub's host name resolves, and offline mode is not asked for. A name that does not resolve shows,
    before half a minute of retries, that downloads cannot work. Honours ``HF_HUB_OFFLINE`` and ``HF_ENDPOINT``; a
    configured proxy counts as reachable."""
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


def quieten_libraries(*, debug: bool) -> None:
    """Set the log levels of the libraries that a run uses, before their import; ``debug`` leaves all as it is."""
    if debug:
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("DeepSpeed").addFilter(_is_news)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings(
        "ignore", category=UserWarning, module=r"torch\..*|transformers\..*|peft\..*|bitsandbytes\..*"
    )


def _is_news(record: logging.LogRecord) -> bool:
    """DeepSpeed warns of a machine without GPU when it is imported, whether it is used or not."""
    return not record.getMessage().startswith("Setting accelerator to CPU")


@contextmanager
def quiet_imports() -> Iterator[None]:
    before = {name: logging.getLogger(name).level for name in _CHATTY}
    logging.getLogger("DeepSpeed").addFilter(_is_news)
    try:
        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def replaced(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Within, the library's ``module.name`` is ``value``; afterwards as it was. It must exist."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextmanager
def replaced_item(table: Any, key: str, value: Any) -> Iterator[None]:
    before = table[key]
    table[key] = value
    try:
        yield
    finally:
        table[key] = before
