"""Arms in processes of their own, for instrumentation that patches a whole process and cannot be taken off again.

TraceML replaces ``nn.Module.__call__``, ``Tensor.to`` and others for the life of its process, and its launcher starts
the script through torchrun, under which the Trainer wraps the model for one rank of data parallelism. So each arm gets
a fresh process, the arms alternate, and TraceML is compared with what its documentation names as the baseline: the
same launcher with ``--disable-traceml``.

    python overhead_processes.py CASE ARM SKIP STEPS FILE     trains one block and writes it to FILE as JSON
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from processes import run_to_end, traceml_command, traceml_summary

__all__ = ["PROCESS_ARMS", "train_in_process"]

PROCESS_ARMS = ("plain", "efficient", "launcher", "traceml")
"""``Trainer``; ``EfficientTrainer``; ``Trainer`` under ``traceml run --disable-traceml``, and under ``traceml run``."""
_SCRIPT = Path(__file__).resolve()
_SECONDS = 1800
_RUN_NAME = "overhead"


def train_in_process(case: str, arm: str, skip: int, steps: int) -> dict[str, Any]:
    """A block in a fresh process, as ``Block.to_json`` gives it; TraceML's also tells ``steps_traced``.

    Raises:
        RuntimeError: the process failed, or TraceML did not trace its steps; tells the end of what it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        result, logs = Path(folder, "block.json"), Path(folder, "logs")
        script = [str(_SCRIPT), case, arm, str(skip), str(steps), str(result)]
        command = [sys.executable, *script] if arm in ("plain", "efficient") else _traceml(arm, logs, script)
        returncode, printed = run_to_end(command, folder, _SECONDS)
        if returncode != 0 or not result.is_file():
            raise RuntimeError(f"the process of {arm} ended with {returncode}: {printed[-2000:]}")
        block: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        if arm == "traceml":
            block["steps_traced"] = _steps_traced(logs)
            if block["steps_traced"] != skip + steps:
                raise RuntimeError(f"TraceML traced {block['steps_traced']} of {skip + steps} steps")
        return block


def _traceml(arm: str, logs: Path, script: list[str]) -> list[str]:
    return traceml_command(script, logs, _RUN_NAME, traced=arm == "traceml")


def _steps_traced(logs: Path) -> int:
    """From TraceML's own summary, so that what is called its cost is not that of an instrumentation that is off."""
    summary = traceml_summary(logs, _RUN_NAME)
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
