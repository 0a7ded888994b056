"""Whether the model hub can be reached, asked before a library spends half a minute on retries."""

from __future__ import annotations

import functools
import os
import socket
from urllib.parse import urlsplit

__all__ = ["hub_reachable"]

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
