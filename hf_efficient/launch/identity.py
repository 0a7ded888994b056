"""Which launch a process belongs to: its launcher may start it again, on its own or because another one failed.

Of one machine ``TORCHELASTIC_RESTART_COUNT`` tells whether it did. Of several it does not: every machine's agent counts
the failures of its own processes alone, and one that starts them again for another machine's sake counts nothing. But
an agent lives as long as its launch. So a launch is known by its agents, and the run directory by those of the launch
that trains in it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

__all__ = ["ALONE", "LAUNCH", "MET_AT", "Launch", "own_agent"]

LAUNCH = "HF_EFFICIENT_LAUNCH"
"""Environment variable: what the launcher of `hf-efficient train` calls itself, on this machine."""

MET_AT = "HF_EFFICIENT_MET_AT"
"""Environment variable of a process that has left its agent's store: the port that it was told first."""


@dataclass(frozen=True)
class Launch:
    """Of all processes that train together.

    Attributes:
        agents: of all machines; none without a launcher that starts processes again.
        is_restart: whether one of them has started processes before.
        is_first: whether this is surely no restart: the only agent has started none before, or these very processes
            have begun a run in this directory, as a script does that trains twice.
    """

    agents: tuple[str, ...] = ()
    is_restart: bool = False
    is_first: bool = False

    def goes_on_in(self, agents: Iterable[str]) -> bool:
        """Whether this is a restart of the launch of these: a machine may have been replaced, not all of them."""
        return not self.is_first and bool(set(self.agents) & set(agents))


ALONE = Launch()
"""No launcher starts this process again."""


def own_agent(environment: Mapping[str, str]) -> str | None:
    """The agent that started this process, as no other is called; None where none did.

    Args:
        environment: of this process.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    told = environment.get(LAUNCH)
    if told:
        return f"{socket.gethostname()}/{told}"
    agent = psutil.Process(os.getppid())
    since_boot = agent.create_time() - psutil.boot_time()  # psutil adds it up by the clock, which may be set meanwhile
    return f"{socket.gethostname()}/{agent.pid}/{since_boot:.2f}"
