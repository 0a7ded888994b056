"""The launch of a run in a process of its own: signals, the exit code, and why a run ended that did not report it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hf_efficient.early import STOP_SIGNALS

if TYPE_CHECKING:
    import psutil

    from hf_efficient.launch.agent import Failure

_LAST_SECONDS = 35
"""More than the thirty that torch's agent gives processes that do not end."""
_PATIENCE_SECONDS: dict[int, float] = {signal.SIGINT: 10.0}
"""After the first signal; whoever sends another one later means that nothing came of it. Other than a person, a cluster
may repeat its signal while a large checkpoint is written."""
_PATIENCE_OTHERWISE_SECONDS = 30.0


def run_command(
    command: list[str], output_dir: str, environment: Mapping[str, str] | None = None, hang_minutes: float | None = None
) -> int:
    """Run the launch and return the exit code that the run itself left; report it where it left none. Signals go to the
    training processes, which save and end by themselves; a further signal ends all, hanging ones too. ``hang_minutes``:
    as ``faults.hang_minutes``."""
    from hf_efficient.launch.agent import agent_command, agent_environment, failure_in
    from hf_efficient.launch.checkpoints import EFFICIENCY
    from hf_efficient.launch.exits import read_code
    from hf_efficient.launch.hangs import HangWatch
    from hf_efficient.launch.started import STATUS_FILE
    from hf_efficient.recording.stop import exit_code

    with tempfile.TemporaryDirectory() as folder:
        status = Path(folder) / "status"
        variables = {**(environment or {}), **agent_environment(Path(folder)), STATUS_FILE: str(status)}
        records = Path(output_dir).expanduser() / EFFICIENCY
        watch = HangWatch(Path(folder), records, None if hang_minutes is None else 60 * hang_minutes)
        signals = _Signals(status)
        previous = {
            number: signal.signal(number, lambda received, frame: signals.pass_on(received, time.monotonic()))
            for number in (*STOP_SIGNALS, signal.SIGHUP)
        }
        try:
            # A group of its own: the terminal's Ctrl-C reaches this process alone, which passes it on.
            launcher = subprocess.Popen(agent_command(command), env={**os.environ, **variables}, start_new_session=True)
            signals.started(launcher.pid)
            watch.start()
            code = _end_of(launcher, status, signals)
        finally:
            watch.end()
            for number, handler in previous.items():
                signal.signal(number, handler)
        if signals.insisted and read_code(status) is None:
            print("error: the run did not end by the first signal, and was killed.", file=sys.stderr)
            return exit_code(signals.insisted)
        if signals.first and code and read_code(status) is None:
            name = signal.Signals(signals.first).name
            print(f"error: the run was ended by {name}, before it began to train or to report.", file=sys.stderr)
            return exit_code(signals.first)
        failure, stated = failure_in(Path(folder)), read_code(status)
        if watch.found and code and (stated is None or (failure is not None and failure.was_killed)):
            return 1  # it was said
        place = watch.place(0 if failure is None else failure.rank)
        found = _why(code, stated, failure, output_dir, place)
        return exit_code(signals.first) if signals.first and found in map(exit_code, STOP_SIGNALS) else found


def _why(code: int, stated: int | None, failure: Failure | None, output_dir: str, place: str) -> int:
    """The exit code; prints why where the processes did not: ``stated`` is theirs, ``failure`` the launcher's."""
    if stated is not None and (failure is None or not failure.was_killed):
        return stated
    code = 128 - failure.exit_code if failure is not None and failure.was_killed else code if code >= 0 else 128 - code
    if code:
        from hf_efficient.run_dir.checkpoints import how_to_resume

        who = "the training ended" if failure is None else f"rank {failure.rank} ended"
        how = f"exit code {code}" if failure is None else failure.how
        print(
            f"error: {who}{place} without a report ({how}): it was killed, perhaps because memory ran out, or crashed "
            f"outside Python. `hf-efficient report {shlex.quote(output_dir)}` shows its records. "
            f"{how_to_resume(Path(output_dir).expanduser())}",
            file=sys.stderr,
        )
    return code


class _Signals:
    """Sent on to the processes of a launch; ``insisted`` is a signal that came long after the ``first``; 0: none."""

    def __init__(self, status: Path) -> None:
        self._launcher: int | None = None
        self._status = status
        self._first: float | None = None
        self.first = self.insisted = 0

    def started(self, launcher: int) -> None:
        """Now there is somebody to send signals to, an earlier one first."""
        self._launcher = launcher
        if self.first:
            _pass_on(launcher, self.first, self._status)

    def pass_on(self, received: int, now: float) -> None:
        if self._first is None:
            self._first, self.first = now, received
            if received == signal.SIGINT:
                how = "a training ends after its step, with a checkpoint. Once more: it ends at once"
                print(f"\nCtrl-C: {how}.", file=sys.stderr)
        if now - self._first >= _PATIENCE_SECONDS.get(received, _PATIENCE_OTHERWISE_SECONDS):
            self.insisted = received
        if self._launcher is not None:
            _pass_on(self._launcher, received, self._status)


def _end_of(launcher: subprocess.Popen[bytes], status: Path, signals: _Signals) -> int:
    """Wait for it, and end one whose run hangs, or has failed and is not begun again (cut off from machine 0)."""
    from hf_efficient.launch.exits import ended

    begins_again = any(str(word).startswith("--max_restarts") for word in launcher.args)  # type: ignore[union-attr]
    failed_for = 0
    while failed_for < _LAST_SECONDS and not signals.insisted:
        try:
            return launcher.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            failed = status.is_file() and not (begins_again and _processes(launcher.pid)[1])
            failed_for = failed_for + 1 if failed else 0
    with ended(launcher):
        pass
    return launcher.returncode


def _pass_on(launcher: int, received: int, status: Path) -> None:
    """Send a signal to the processes that the launcher started; to itself while there are none yet."""
    import psutil

    from hf_efficient.launch.exits import announce_end

    announce_end(status)
    own, workers = _processes(launcher)
    with suppress(psutil.NoSuchProcess):
        for target in workers or own:
            target.send_signal(received if workers and received != signal.SIGHUP else signal.SIGTERM)


def _processes(launcher: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """accelerate's own process, under Nsight the innermost of those whose command line holds its ``launch``; and those
    that train. None after the launcher's end."""
    import psutil

    try:
        process = psutil.Process(launcher)
        found = [one for one in (process, *process.children(recursive=True)) if "launch" in one.cmdline()]
        return (found or [process])[-1:], (found or [process])[-1].children()
    except psutil.NoSuchProcess:
        return [], []
