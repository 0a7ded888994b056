"""A start that is perhaps not the first of its launch: all processes decide alike where it goes on."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_efficient.errors import HfEfficientError, OutputError
from hf_efficient.launch.engines.started import started_nodes
from hf_efficient.launch.identity import MET_AT, Launch, own_agent
from hf_efficient.launch.output import OutputPlan, plan_output
from hf_efficient.recipe.origins import told_where
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from torch.distributed import TCPStore
    from transformers import TrainingArguments

__all__ = ["agreed_output", "meet_anew", "restarts_remark", "starts_again"]

_MEET_SECONDS = 300
_STALE_SECONDS = 60
"""That a machine may not see what another one has written to an NFS: its ``acdirmax``, see nfs(5)."""
_PAUSE_SECONDS = 5
_open: list[TCPStore] = []
_begun: set[Path] = set()
"""Directories in which this process has begun a run."""


def starts_again(environment: Mapping[str, str]) -> bool:
    """Whether the launcher would start the processes once more if they failed now."""
    return int(environment.get("TORCHELASTIC_MAX_RESTARTS", "0")) > _restarts(environment)


def restarts_remark(recipe: Recipe, environment: Mapping[str, str]) -> str | None:
    """What to tell where nothing starts the processes again; only the launch itself shows it, not the recipe.

    Args:
        recipe: of the run.
        environment: of this process.
    """
    if not recipe.distributed.max_restarts or "TORCHELASTIC_RUN_ID" in environment:
        return None
    where = told_where(recipe, "distributed.max_restarts")
    return (
        f"{where}distributed.max_restarts: has no effect, because nothing starts this process again: accelerate "
        "launches one process alone without torch's agent. The same command with --resume goes on."
    )


def agreed_output(recipe: Recipe, args: TrainingArguments, environment: Mapping[str, str] = os.environ) -> OutputPlan:
    """What becomes of the output directory, which all processes have to see alike.

    Raises:
        OutputError: what ``plan_output`` refuses; or not all machines see the same checkpoints.
    """
    agent = own_agent(environment)
    if agent is None:
        return plan_output(recipe)
    directory = Path(recipe.output_dir).expanduser().resolve()
    told = _from_all((agent, _restarts(environment), directory in _begun), args.world_size)
    _begun.add(directory)
    launch = _launch(told, started_nodes(environment))
    looks = 1 + (_STALE_SECONDS // _PAUSE_SECONDS if launch.is_restart and started_nodes(environment) > 1 else 0)
    for left in reversed(range(looks)):
        found = _look(recipe, launch)
        plan = found if isinstance(found, OutputPlan) else None
        seen = _from_all((socket.gethostname(), _start(plan) if plan else None), args.world_size)
        if left and any(start != seen[0][1] for _, start in seen):
            time.sleep(_PAUSE_SECONDS)
            continue
        break
    if isinstance(found, HfEfficientError):
        raise found
    for host, start in seen:
        if start != seen[0][1]:
            raise OutputError(
                f"output_dir: {recipe.output_dir} starts {seen[0][1] or 'nothing'} on {seen[0][0]}, and "
                f"{start or 'nothing'} on {host}: it must lie on storage that all machines share."
            )
    return found


def _look(recipe: Recipe, launch: Launch) -> OutputPlan | HfEfficientError:
    """What this process alone makes of the output directory; all have to meet again, whatever one of them finds."""
    try:
        return plan_output(recipe, launch)
    except HfEfficientError as error:
        return error


def _launch(told: Sequence[tuple[str, int, bool]], nodes: int) -> Launch:
    """Of all processes.

    Args:
        told: by each: its agent, the restarts that this one has counted, and whether it has begun a run here before.
        nodes: machines that they are on.
    """
    begun = any(one[2] for one in told)
    restarted = not begun and any(one[1] for one in told)
    is_first = begun or (nodes == 1 and not restarted)
    return Launch(tuple(dict.fromkeys(one[0] for one in told)), restarted, is_first)


def _restarts(environment: Mapping[str, str]) -> int:
    return int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _start(plan: OutputPlan) -> str:
    return "from the first step" if plan.checkpoint is None else f"from {Path(plan.checkpoint).name}"


def _from_all(mine: Any, world_size: int) -> list[Any]:
    """What each process says, by rank."""
    if world_size == 1:
        return [mine]
    from accelerate.utils import gather_object

    return list(gather_object([mine]))


def meet_anew(environment: MutableMapping[str, str]) -> None:
    """Let the processes of every start meet in a store of their own.

    On one machine torch's agent keeps its store (``rdzv_backend=static``), and with it the addresses of the processes
    that are gone, which new ones would try to reach (torch 2.13: every second restart failed so). So rank 0 of a
    restart opens another one. The launch of several machines has its agents choose a new address each time, where
    rank 0 has to be there before the others ask.

    Args:
        environment: of this process, before it joins a process group; changed.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        _open_or_reach(environment)
    elif _restarts(environment) and started_nodes(environment) == 1:
        _move(environment)


def _move(environment: MutableMapping[str, str]) -> None:
    """To a store of rank 0, whose port the others learn in that of the agent."""
    kept = _reached(environment)
    key = f"hf_efficient/port/{environment['TORCHELASTIC_RESTART_COUNT']}"
    if environment["RANK"] == "0":
        kept.set(key, str(_opened(environment["MASTER_ADDR"], 0).port))
    environment[MET_AT] = environment["MASTER_PORT"]
    environment["MASTER_PORT"] = kept.get(key).decode()
    environment["TORCHELASTIC_USE_AGENT_STORE"] = str(False)


def _open_or_reach(environment: Mapping[str, str]) -> None:
    if environment["RANK"] == "0":
        _opened(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]))
    else:
        _reached(environment)


def _opened(host: str, port: int) -> TCPStore:
    """It is there as long as this process; the process group, which opens it too, is given the same."""
    from torch.distributed import TCPStore

    store = TCPStore(host, port, is_master=True, wait_for_workers=False, multi_tenant=True)
    _open.append(store)
    return store


def _reached(environment: Mapping[str, str]) -> TCPStore:
    from torch.distributed import TCPStore

    host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_MEET_SECONDS), wait_for_workers=False)
