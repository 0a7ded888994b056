"""The file of a benchmark's figures: what was run, where, and with which versions, beside them."""

import contextlib
import datetime
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from hf_efficient.facts.environment import describe_environment

_LIST_OF_VALUES = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")


def write_result(
    path: Path, benchmark: str, started: datetime.datetime, figures: Mapping[str, Any], packages: Sequence[str] = ()
) -> None:
    """Write the figures with command, time, machine and versions.

    Args:
        path: JSON file, usually ``benchmarks/results/NAME.json``.
        benchmark: its name.
        started: when it began, in UTC.
        figures: joined at the top level.
        packages: distributions whose versions matter, beside those that every result tells.
    """
    environment = describe_environment()
    environment["versions"].update({name: _version(name) for name in packages})
    environment["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS")
    head = {
        "benchmark": benchmark,
        "command": shlex.join(["python", *sys.argv]),
        "started_at": started.isoformat(timespec="seconds"),
        "environment": environment,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result_text({**head, **figures}), encoding="utf-8")


def result_text(facts: Mapping[str, Any]) -> str:
    """JSON with a line per key, and a list of numbers or names on one line."""
    text = json.dumps(facts, indent=1, allow_nan=False)
    return _LIST_OF_VALUES.sub(lambda found: "[" + re.sub(r",\s+", ", ", found[1]) + "]", text) + "\n"


def load_average() -> float | None:
    """Processes that wanted to run, averaged over the last minute; None where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def run_to_end(
    command: Sequence[str], folder: str | Path, seconds: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Exit status and output; no process that it started outlives it, whatever interrupts the wait.

    Args:
        command: program and arguments.
        folder: that it runs in.
        seconds: that it may take.
        environment: of the process; None: ours.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            printed, _ = process.communicate(timeout=seconds)
        except BaseException:
            family = psutil.Process(process.pid)
            for one in (*family.children(recursive=True), family):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            raise
    return process.returncode, printed


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def traceml_is_installed() -> bool:
    """Whether the package ``traceml-ai`` is here."""
    return importlib.util.find_spec("traceml_ai") is not None


def traceml_command(
    script: Sequence[str], logs: Path, run_name: str, *, traced: bool = True, ranks: int = 1
) -> list[str]:
    """The documented command, ``traceml run SCRIPT --args ...``, as a module of this interpreter.

    Args:
        script: path and arguments.
        logs: folder that TraceML writes to.
        run_name: of its folder in there.
        traced: False: the same launcher without instrumentation.
        ranks: processes that train.
    """
    return [
        *(sys.executable, "-m", "traceml_ai.launcher.cli", "run", script[0]),
        *("--logs-dir", str(logs), "--run-name", run_name),
        *("--aggregator-port", str(free_port()), "--master-port", str(free_port())),
        *(("--nproc-per-node", str(ranks)) if ranks > 1 else ()),
        *(() if traced else ("--disable-traceml",)),
        *("--args", *script[1:]),
    ]


def traceml_summary(logs: Path, run_name: str) -> dict[str, Any]:
    """What TraceML said of a run in the end.

    Raises:
        OSError: it left no summary.
    """
    found: dict[str, Any] = json.loads((logs / run_name / "final_summary.json").read_text(encoding="utf-8"))
    return found
