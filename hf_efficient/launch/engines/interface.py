"""By which network interface this machine reaches machine 0."""

from __future__ import annotations

import os
import socket

import psutil

from hf_efficient.launch.engines.layout import Layout

__all__ = ["interface_of", "launch_environment", "own_address"]

_NEW_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""The processes meet in a store of their own at every start: in the one that torch's launcher keeps (c10d), those that
it starts again would find the addresses of those that are gone."""


def launch_environment(layout: Layout) -> dict[str, str]:
    """What the processes of several machines need to know, beside the launcher's flags; what is set already stays."""
    if layout.address is None:
        return {}
    mine, told = own_address(layout.address), dict(_NEW_STORE)
    if mine is not None:
        told["PET_LOCAL_ADDR"] = mine
        name = interface_of(mine)
        if name is not None:
            told["GLOO_SOCKET_IFNAME"] = name
    return {name: value for name, value in told.items() if name not in os.environ}


def own_address(address: str) -> str | None:
    """That this machine would send from to that one; None where it cannot. Nothing is sent.

    gloo and torch's launcher would take the address that the machine's own name stands for, which on many is 127.0.0.1,
    where no other machine reaches it.

    Args:
        address: host name or IP of machine 0.
    """
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_of(mine: str) -> str | None:
    """Its name, ``eth0``; None where no interface has this address.

    Args:
        mine: address of this machine.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == mine for one in addresses):
            return name
    return None
