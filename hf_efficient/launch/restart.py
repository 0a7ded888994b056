"""Launches that ``hf-efficient train`` starts again, processes that their launcher does, and machines that are gone.

torch's elastic agent, which ``distributed.max_restarts`` asks of several processes, starts the processes of one launch
again. ``Starts`` does so for the launch itself, which also helps one process, and a launcher that is killed.

A process in a collective waits in C for ``train.ddp_timeout`` (1,800 s), and neither gloo nor NCCL learns of a pulled
cable. So a thread of each machine's first process counts in the store on machine 0, and looks whether the others count.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_efficient.errors import HfEfficientError, OutputError, SetupError
from hf_efficient.launch.output import OutputPlan, plan_output, take_from_mirror
from hf_efficient.launch.started import ALONE, MET_AT, STATUS_FILE, Launch, own_agent, started_nodes
from hf_efficient.recipe.schema import Recipe, told_where
from hf_efficient.run_dir.checkpoints import checkpoints, damage_of, fault_of, step_of
from hf_efficient.text import counted

if TYPE_CHECKING:
    from torch.distributed import TCPStore
    from transformers import TrainingArguments

TRIES = 5  # starts in a row that bring no new checkpoint, after which ``--keep-going`` gives up
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 5.0, 300.0
_FAULTS = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
_AGENT_FLAGS = {"--multi_gpu", "--use_deepspeed", "--use_fsdp"}
"""Of accelerate's launcher: with one of them it starts processes by torch's elastic agent."""
_CRASHES = {1, *(128 + getattr(signal, name).value for name in _FAULTS if hasattr(signal, name))}
"""Exit codes of faults not foreseen and of killed processes; others ended as asked, or are for the user to correct."""

BEAT_SECONDS = 3.0
SILENT_SECONDS = 20.0
"""Longer than a busy machine pauses; the launcher, which gives processes thirty seconds more, ends within a minute."""

_MEET_SECONDS = 300
_STALE_SECONDS = 60  # that a machine may not see what another one has written to an NFS: its ``acdirmax``, see nfs(5)
_PAUSE_SECONDS = 5
_open: list[TCPStore] = []
_begun: set[Path] = set()  # directories in which this process has begun a run

logger = logging.getLogger(__name__)


@dataclass
class Starts:
    """``most``: failures that are started again, in a row without a new checkpoint or, with ``in_all``, altogether."""

    directory: Path
    most: int
    in_all: bool = False
    failed: int = 0
    step: int = 0  # of the newest checkpoint after the last failure

    def pause_after(self, code: int) -> float | None:
        """Seconds until the next start; None where there is none."""
        if code not in _CRASHES:
            return None
        whole = (step_of(path) for path in reversed(checkpoints(self.directory)) if fault_of(path) is None)
        before, self.step = self.step, next(whole, 0)
        self.failed = 1 if self.step > before and not self.in_all else self.failed + 1
        if self.failed > self.most:
            return None
        return float(min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (self.failed - 1)))

    def words(self, pause: float) -> str:
        where = f"from checkpoint-{self.step}" if self.step else "from the first step"
        kind = "" if self.in_all else " in a row without a new checkpoint"
        tries = f"failure {self.failed} of at most {self.most}{kind}"
        return f"Starting again in {counted(round(pause), 'second')}, {where} ({tries})"


def starts_of(recipe: Recipe, command: Sequence[str], *, keep_going: bool) -> Starts:
    """For ``--keep-going``; without it for ``distributed.max_restarts`` where ``command`` starts one process, without
    an elastic agent. ``SetupError``: several machines, which only their agents can start together."""
    directory = Path(recipe.output_dir).expanduser()
    if not keep_going:
        alone = not _AGENT_FLAGS.intersection(command)
        return Starts(directory, recipe.distributed.max_restarts if alone else 0, in_all=True)
    if recipe.distributed.nodes > 1:
        raise SetupError(
            f"--keep-going: starts the processes of one machine, and distributed.nodes is {recipe.distributed.nodes}. "
            "Write distributed.max_restarts, with which the machines start together."
        )
    return Starts(directory, TRIES)


def next_tail(tail: Sequence[str], recipe: Recipe, step: int) -> list[str]:
    """It resumes, and never replaces. A checkpoint that the recipe names counts until the run has one of its own."""
    kept = [word for word in tail if word not in ("--overwrite", "--resume")]
    if not recipe.train.get("resume_from_checkpoint"):
        return [*kept, "--resume"]
    return [*kept, "train.resume_from_checkpoint=null", "--resume"] if step else [*kept, "--overwrite"]


def starts_again(environment: Mapping[str, str]) -> bool:
    return int(environment.get("TORCHELASTIC_MAX_RESTARTS", "0")) > _restarts(environment)


def restarts_remark(recipe: Recipe, environment: Mapping[str, str]) -> str | None:
    if not recipe.distributed.max_restarts or "TORCHELASTIC_RUN_ID" in environment or STATUS_FILE in environment:
        return None
    where = told_where(recipe, "distributed.max_restarts")
    return (
        f"{where}distributed.max_restarts: has no effect, because nothing starts this process again: accelerate "
        "launches one process alone without torch's agent. Start with `hf-efficient train`, which does."
    )


def agreed_output(recipe: Recipe, args: TrainingArguments, environment: Mapping[str, str] = os.environ) -> OutputPlan:
    """All processes have to see the directory alike. The bytes of a checkpoint were read on the main process."""
    directory, nodes = Path(recipe.output_dir).expanduser().resolve(), started_nodes(environment)
    launch = ALONE
    if agent := own_agent(environment):
        launch = _launch(from_all((agent, _restarts(environment), directory in _begun), args.world_size), nodes)
    _begun.add(directory)
    damaged: dict[Path, str] = {}
    mirrored = _mirrored(recipe, launch, args)
    while True:
        plan = _seen_alike(recipe, launch, nodes, damaged, args.world_size)
        plan = replace(plan, remark="; ".join(filter(None, (mirrored, plan.remark))))
        if plan.checkpoint is None:
            return plan
        mine = damage_of(plan.checkpoint, hashes=True) if args.process_index == 0 else None
        damage = from_all(mine, args.world_size)[0]
        if damage is None:
            return plan
        damaged[plan.checkpoint] = damage


def _mirrored(recipe: Recipe, launch: Launch, args: TrainingArguments) -> str:
    """What the main process has fetched from the mirror, in words. Its error is raised on all."""
    if recipe.checkpoints.mirror is None:
        return ""
    found: str | HfEfficientError = ""
    if args.process_index == 0:
        try:
            found = take_from_mirror(recipe, recipe.checkpoints.mirror, launch)
        except HfEfficientError as error:
            found = error
    found = from_all(found, args.world_size)[0]
    if isinstance(found, HfEfficientError):
        raise found
    return found


def _seen_alike(recipe: Recipe, launch: Launch, nodes: int, damaged: Mapping[Path, str], world_size: int) -> OutputPlan:
    """``plan_output``, once all machines see the same; ``OutputError`` where they do not in time."""
    stale = launch.is_restart and nodes > 1
    for left in reversed(range(1 + (_STALE_SECONDS // _PAUSE_SECONDS if stale else 0))):
        try:  # all have to meet again, whatever one of them finds
            found: OutputPlan | HfEfficientError = plan_output(recipe, launch, damaged)
        except HfEfficientError as error:
            found = error
        plan = found if isinstance(found, OutputPlan) else None
        start = plan and (f"from {plan.checkpoint.name}" if plan.checkpoint else "from the first step")
        seen = from_all((socket.gethostname(), start), world_size)
        first_host, first = seen[0]
        other = next((one for one in seen if one[1] != first), None)
        if other is None or not left:
            break
        time.sleep(_PAUSE_SECONDS)
    if isinstance(found, HfEfficientError):
        raise found
    if other is not None:
        raise OutputError(
            f"output_dir: {recipe.output_dir} starts {first or 'nothing'} on {first_host}, and "
            f"{other[1] or 'nothing'} on {other[0]}: it must be on storage that all machines share."
        )
    return found


def _launch(reports: Sequence[tuple[str, int, bool]], nodes: int) -> Launch:
    """By each process's report: its agent, the restarts that this has counted, whether it has begun a run here."""
    agents, restarts, begun = zip(*reports, strict=True)
    restarted = not any(begun) and any(restarts)
    return Launch(tuple(dict.fromkeys(agents)), restarted, any(begun) or (nodes == 1 and not restarted))


def _restarts(environment: Mapping[str, str]) -> int:
    return int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))


def from_all(mine: Any, world_size: int) -> list[Any]:
    if world_size == 1:
        return [mine]
    from accelerate.utils import gather_object

    return list(gather_object([mine]))


def meet_anew(environment: MutableMapping[str, str]) -> None:
    """Let the processes of every start meet in a store of their own, before they join a process group. On one machine
    torch's agent keeps its store (``rdzv_backend=static``) with addresses of dead processes (torch 2.13: every second
    restart failed so). So rank 0 of a restart opens another one, whose port is in that of the agent. Agents of several
    machines choose a new address each time."""
    if "TORCHELASTIC_RUN_ID" not in environment:
        return
    is_first = environment["RANK"] == "0"
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        if is_first:
            _opened(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]))
        else:
            _reached_store(environment, _MEET_SECONDS)
    elif _restarts(environment) and started_nodes(environment) == 1:
        kept = _reached_store(environment, _MEET_SECONDS)
        key = f"hf_efficient/port/{environment['TORCHELASTIC_RESTART_COUNT']}"
        if is_first:
            kept.set(key, str(_opened(environment["MASTER_ADDR"], 0).port))
        environment[MET_AT] = environment["MASTER_PORT"]
        environment["MASTER_PORT"] = kept.get(key).decode()
        environment["TORCHELASTIC_USE_AGENT_STORE"] = str(False)


def _opened(host: str, port: int) -> TCPStore:
    """It is there as long as this process; the process group, which opens it too, is given the same."""
    from torch.distributed import TCPStore

    store = TCPStore(host, port, is_master=True, wait_for_workers=False, multi_tenant=True)
    _open.append(store)
    return store


def _reached_store(environment: Mapping[str, str], patience_seconds: float) -> TCPStore:
    from torch.distributed import TCPStore

    host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=patience_seconds), wait_for_workers=False)


class Silence(Exception):
    """A machine is no longer heard of; ``str`` says which, and for how long."""


Clock = Callable[[], float]
Met = Callable[[], bool]  # whether the processes have met; ``bool``: not yet


class PeerWatch:
    def __init__(self, store: TCPStore, node: int, nodes: int, now: Clock = time.monotonic, met: Met = bool) -> None:
        self._store, self._node, self._nodes, self._now, self._met = store, node, nodes, now, met
        self._count = 0
        self._lock = threading.Lock()
        # What the others have counted so far may be left from an earlier start of theirs: it must change first.
        there = [peer for peer in range(nodes) if peer != node and store.check([f"peer/{peer}"])]
        self._heard: dict[int, tuple[bytes, float | None]] = {peer: (store.get(f"peer/{peer}"), None) for peer in there}
        store.set(f"peer/{node}", f"{time.time_ns()} began")
        store.set(f"peer/{node}/host", socket.gethostname())

    def beat(self) -> None:
        began = self._now()
        try:
            with self._lock:
                if self._count < 0:
                    return
                self._count += 1
                self._store.set(f"peer/{self._node}", str(self._count))
            others = [node for node in range(self._nodes) if node != self._node]
            counts = {node: self._store.get(f"peer/{node}") for node in others if self._store.check([f"peer/{node}"])}
        except Exception as error:  # the store raises its own kinds of RuntimeError
            raise Silence(f"machine 0 does not answer ({type(error).__name__}, {self._now() - began:.0f} s)") from error
        met = self._met()
        for node, count in counts.items():
            self._listen(node, count, met)

    def _listen(self, node: int, count: bytes, met: bool) -> None:
        known, since = self._heard.get(node, (None, None))
        if count == b"done":
            return
        if count != known or (met and since is None):  # who has been met was there, though he never counts again
            self._heard[node] = (count, self._now())
        elif since is not None and self._now() - since > SILENT_SECONDS:
            host = self._store.get(f"peer/{node}/host").decode(errors="replace")
            raise Silence(f"machine {node} ({host}) has not been heard of for {self._now() - since:.0f} s")

    def done(self) -> None:
        """This machine ends as it should; the others do not miss it."""
        with self._lock:
            self._count = -1
            self._store.set(f"peer/{self._node}", "done")

    def see_off(self, patience_seconds: float, look_every: float = 0.2) -> None:
        """Wait until all others end as they should, for whom the store has to be there so long."""
        until = self._now() + patience_seconds
        others = [f"peer/{node}" for node in range(self._nodes) if node != self._node]
        while any(self._store.check([one]) and self._store.get(one) != b"done" for one in others):
            if self._now() > until:
                return
            time.sleep(look_every)


def watch_peers(environment: Mapping[str, str], leave: Callable[[str], Any]) -> Callable[[], None]:
    """Watch the other machines from a thread, where there are any; returns what ends that."""
    nodes = started_nodes(environment)
    if nodes < 2 or int(environment.get("LOCAL_RANK", "0")) != 0 or "GROUP_RANK" not in environment:
        return lambda: None
    import torch.distributed

    store = _reached_store(environment, SILENT_SECONDS)
    watch = PeerWatch(store, int(environment["GROUP_RANK"]), nodes, met=torch.distributed.is_initialized)
    ended = threading.Event()
    answered = [time.monotonic()]

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            try:
                watch.beat()
            except Silence as silence:
                if not ended.is_set():
                    leave(str(silence))
                return
            answered[0] = time.monotonic()

    def look() -> None:
        """A store behind a cut cable does not even fail: whoever asks it waits."""
        looked = time.monotonic()
        while not ended.wait(BEAT_SECONDS):
            before, looked = looked, time.monotonic()
            if looked - before > 2 * BEAT_SECONDS:  # this process itself was held up
                answered[0] = looked
            silent = looked - answered[0]
            if silent > SILENT_SECONDS:
                leave(f"machine 0 ({environment['MASTER_ADDR']}) has not answered for {silent:.0f} s")
                return

    def end() -> None:
        ended.set()
        try:
            watch.done()
            if environment.get("RANK") == "0" and environment.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
                watch.see_off(SILENT_SECONDS)  # it ends with this process
        except RuntimeError as error:
            logger.info("machine 0 has ended before this one could say good-bye (%s)", error)

    for work in (beat, look):
        threading.Thread(target=work, name=f"machines: {work.__name__}", daemon=True).start()
    return end
