"""Two machines of one: network namespaces with an address each, joined by a cable that can be cut."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Machines", "can_make_machines", "two_machines"]


class Machines:
    """Of ``two_machines``: names of the namespaces, the address of the first, and the second's end of the cable."""

    def __init__(self, mark: str) -> None:
        self.names = (f"hf{mark}a", f"hf{mark}b")
        self.cable = (f"v{mark}a", f"v{mark}b")
        self.address = "10.213.7.1"

    def start(self, machine: int, command: list[str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
        """Run a command on one of them; it leads a process group of its own."""
        whole = ["ip", "netns", "exec", self.names[machine], *command]
        with log.open("wb") as output:
            return subprocess.Popen(whole, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

    def cut(self) -> None:
        """Nothing goes through the cable any more."""
        _ip("-n", self.names[1], "link", "set", self.cable[1], "down")


def can_make_machines() -> bool:
    """Whether this user may, and the kernel can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    probe = f"hfprobe{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode != 0:
        return False
    _ip("netns", "delete", probe)
    return True


@contextmanager
def two_machines() -> Iterator[Machines]:
    """They are gone afterwards, with the cable."""
    made = Machines(f"{os.getpid() % 100000}")
    (one, two), (here, there) = made.names, made.cable
    try:
        for name in made.names:
            _ip("netns", "add", name)
        _ip("link", "add", here, "type", "veth", "peer", "name", there)
        for name, end, number in ((one, here, 1), (two, there, 2)):
            _ip("link", "set", end, "netns", name)
            _ip("-n", name, "addr", "add", f"10.213.7.{number}/24", "dev", end)
            for device in (end, "lo"):
                _ip("-n", name, "link", "set", device, "up")
        yield made
    finally:
        for name in made.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
