"""Arms in processes of their own, for instrumentation that patches a whole process and cannot be taken off again.

TraceML replaces ``nn.Module.__call__``, ``Tensor.to`` and others for the life of its process, and its launcher starts
the script through torchrun, under which the Trainer wraps the model for one rank of data parallelism. So each arm gets
a fresh process, the arms alternate, and TraceML is compared with what its documentation names as the baseline: the
same launcher with ``--disable-traceml``.

    python overhead_processes.py CASE ARM SKIP STEPS FILE     trains one block and writes it to FILE as JSON
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

__all__ = ["PROCESS_ARMS", "traceml_is_installed", "train_in_process"]

PROCESS_ARMS = ("plain", "efficient", "launcher", "traceml")
"""``Trainer``; ``EfficientTrainer``; ``Trainer`` under ``traceml run --disable-traceml``, and under ``traceml run``."""
_SCRIPT = Path(__file__).resolve()
_SECONDS = 1800


def traceml_is_installed() -> bool:
    """Whether the package ``traceml-ai`` is here."""
    return importlib.util.find_spec("traceml_ai") is not None


def train_in_process(case: str, arm: str, skip: int, steps: int) -> dict[str, Any]:
    """A block in a fresh process, as ``Block.to_json`` gives it; TraceML's also tells ``steps_traced``.

    Raises:
        RuntimeError: the process failed, or TraceML did not trace its steps; tells the end of what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        result, logs = Path(folder, "block.json"), Path(folder, "logs")
        script = [str(_SCRIPT), case, arm, str(skip), str(steps), str(result)]
        command = [sys.executable, *script] if arm in ("plain", "efficient") else _traceml(arm, logs, script)
        returncode, printed = _run(command, folder)
        if returncode != 0 or not result.is_file():
            raise RuntimeError(f"the process of {arm} ended with {returncode}: {printed[-2000:]}")
        block: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        if arm == "traceml":
            block["steps_traced"] = _steps_traced(logs)
            if block["steps_traced"] != skip + steps:
                raise RuntimeError(f"TraceML traced {block['steps_traced']} of {skip + steps} steps")
        return block


def _run(command: list[str], folder: str) -> tuple[int, str]:
    """Exit status and output; no process that it started outlives it, whatever interrupts the wait."""
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            printed, _ = process.communicate(timeout=_SECONDS)
        except BaseException:
            family = psutil.Process(process.pid)
            for one in (*family.children(recursive=True), family):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            raise
    return process.returncode, printed


def _traceml(arm: str, logs: Path, script: list[str]) -> list[str]:
    """The documented command, ``traceml run SCRIPT --args ...``, as a module of this interpreter."""
    return [
        *(sys.executable, "-m", "traceml_ai.launcher.cli", "run", script[0]),
        *("--logs-dir", str(logs), "--run-name", "overhead"),
        *("--aggregator-port", str(_free_port()), "--master-port", str(_free_port())),
        *(("--disable-traceml",) if arm == "launcher" else ()),
        *("--args", *script[1:]),
    ]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _steps_traced(logs: Path) -> int:
    """From TraceML's own summary, so that what is called its cost is not that of an instrumentation that is off."""
    summary = json.loads((logs / "overhead" / "final_summary.json").read_text(encoding="utf-8"))
    return int(summary["step_time"]["metadata"]["training_total_steps"] or 0)


def main() -> None:
    """Train the block that the command line names."""
    from overhead_blocks import prepared_model, run_block
    from overhead_cases import CASES

    name, arm, skip, steps, result = sys.argv[1:]
    case = CASES[name]
    block = run_block(case, arm, prepared_model(case), int(skip), int(steps))
    Path(result).write_text(json.dumps(block.to_json()), encoding="utf-8")


if __name__ == "__main__":
    main()
