"""accelerate's launcher for ``hf-efficient train``: as ``accelerate launch``, but it says what became of the processes.

A file says which rank failed and how, in place of torch's traceback. ``SIGTERM``, which a cluster sends to all
processes of a job, does not end the launcher while its processes save and end by themselves.
"""

import logging
import os
import re
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import hf_efficient.early  # first of all
from hf_efficient.run_dir.json_file import read_table, strict_json, write_whole

FAILURE_FILE = "HF_EFFICIENT_FAILURE_FILE"
"""Environment variable: the file in which the launcher says which of its processes failed, and how."""

_HANDLED = "SIGINT,SIGHUP,SIGQUIT"  # signals that torch's agent passes on and ends by: all of its own but SIGTERM
_FAILURE = "failure.json"


@dataclass(frozen=True)
class Failure:
    """The process that failed first; its exit code is negative for the signal that killed it."""

    rank: int
    exit_code: int
    starts: int = 1  # that the launcher made of the processes

    @property
    def was_killed(self) -> bool:
        """By a signal other than the one that the launcher ends the others with."""
        return self.exit_code < 0 and self.exit_code != -signal.SIGTERM

    @property
    def how(self) -> str:
        names = {-one.value: one.name for one in signal.Signals}
        code = f"exit code {self.exit_code}" if self.exit_code >= 0 else names.get(self.exit_code, "a signal")
        return code if self.starts == 1 else f"{code}, the last of {self.starts} starts"


def agent_command(command: Sequence[str]) -> list[str]:
    """``accelerate launch ...`` with this module in accelerate's place; another command, Nsight's, as it is."""
    program, *rest = command
    if Path(program).name == "accelerate":
        return [sys.executable, "-m", "hf_efficient.launch.agent", *rest]
    return list(command)


def agent_environment(folder: Path) -> dict[str, str]:
    return {FAILURE_FILE: str(folder / _FAILURE)}


def failure_in(folder: Path) -> Failure | None:
    return read_table(folder / _FAILURE, Failure)


def _launch() -> int:
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from hf_efficient.launch.started import LAUNCH

    if "--debug" not in sys.argv:
        logging.disable(logging.ERROR)  # of the agent: a process that fails has said why
    os.environ[LAUNCH] = uuid.uuid4().hex
    signal.signal(signal.SIGTERM, _ends_without_children)
    for number in set(hf_efficient.early.STOP_SIGNALS) - {signal.SIGINT, signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)  # for the processes, which hear them
    os.environ["PET_SIGNALS_TO_HANDLE"] = _HANDLED
    _keep_sigterm(api)
    from accelerate.commands.accelerate_cli import main

    try:
        main()
    except ChildFailedError as error:
        _report(error.failures)
        return 1
    return 0


def _report(failures: Mapping[int, Any]) -> None:
    """Of torch's ``ProcessFailure`` by rank, the first; one that was killed, before those that the agent, or its loss,
    ended."""
    found = [(failures[rank].timestamp, Failure(rank, failures[rank].exitcode, _starts())) for rank in failures]
    first = min(found, key=lambda one: (not one[1].was_killed, one[0], one[1].rank))[1]
    write_whole(Path(os.environ[FAILURE_FILE]), strict_json(first))


def _starts() -> int:
    found = re.search(r"--max_restarts[= ](\d+)", " ".join(sys.argv))
    return 1 + int(found.group(1)) if found else 1


def _keep_sigterm(api: Any) -> None:
    """torch's agent sets its handler of signals when it starts processes, in 2.6 to 2.8 that of SIGTERM too."""
    theirs = getattr(api, "_terminate_process_handler", None)
    if theirs is None:  # PET_SIGNALS_TO_HANDLE has to do
        return

    def handle(number: int, frame: FrameType | None) -> None:
        (_ends_without_children if number == signal.SIGTERM else theirs)(number, frame)

    api._terminate_process_handler = handle


def _ends_without_children(number: int, frame: FrameType | None) -> None:
    import psutil

    if not psutil.Process().children():
        os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(_launch())
