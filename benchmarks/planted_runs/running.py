"""A planted run from its launch to its diagnosis."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shared import free_port, load_average, run_to_end, traceml_command, traceml_summary

from hf_efficient.diagnosis.case import read_case
from hf_efficient.diagnosis.engine import diagnose_case
from hf_efficient.records.findings import Diagnosis
from hf_efficient.run_dir.paths import records_folder
from planted_runs.cases import PlantedCase

__all__ = ["Bench", "Ran", "as_json", "open_bench"]

_SCRIPT = Path(__file__).resolve().parents[1] / "planted_process.py"
_SECONDS = 600
_BUSY = "while True: pass"


@dataclass(frozen=True)
class Ran:
    """A run that is over.

    Attributes:
        folder: its output directory.
        process_seconds: from its launch to its end.
        load_average: of the machine when it ended, over the last minute; None where the system does not tell.
        tokens: that were no padding; None: not counted.
        diagnosis: of its records.
        traceml: TraceML's summary of the same run; None where it did not watch.
    """

    folder: Path
    process_seconds: float
    load_average: float | None
    tokens: int | None
    diagnosis: Diagnosis
    traceml: Mapping[str, Any] | None = None

    @property
    def seconds_per_token(self) -> float:
        """Of the training loop, evaluations and saves included.

        Raises:
            ValueError: the tokens were not counted.
        """
        if not self.tokens:
            raise ValueError(f"{self.folder}: its tokens were not counted, so that it cannot be compared")
        return self.diagnosis.loop_seconds / self.tokens


@dataclass(frozen=True)
class Bench:
    """Where runs are made: the corpus, the slow server, and a folder for what they write."""

    folder: Path
    corpus: Path
    server: str

    def run(
        self,
        case: PlantedCase,
        label: str,
        overrides: Mapping[str, Any] | None = None,
        *,
        mended: bool = False,
        traceml: bool = False,
    ) -> Ran:
        """Train a case in processes of its own and diagnose it.

        Args:
            case: what to train.
            label: of its folder, beside others of the case.
            overrides: of a remedy.
            mended: without the fault.
            traceml: under TraceML's launcher.

        Raises:
            RuntimeError: the process failed; tells the end of what it printed.
        """
        folder = self.folder / f"{case.name}-{label}"
        spec = {
            **{"case": case.name, "folder": str(folder), "corpus": str(self.corpus), "server": self.server},
            **{"overrides": dict(overrides or {}), "mended": mended},
        }
        script = [str(_SCRIPT), json.dumps(spec)]
        logs = self.folder / "traceml"
        began = time.monotonic()
        with _busy(0 if mended else case.busy_cores):
            command = traceml_command(script, logs, folder.name, ranks=case.ranks) if traceml else _launch(case, script)
            status, printed = run_to_end(command, self.folder, _SECONDS, {**os.environ, **case.environment})
        if status != 0:
            raise RuntimeError(f"the run {folder.name} ended with {status}: {printed[-3000:]}")
        told = read_case(records_folder(folder))
        return Ran(
            folder=folder,
            process_seconds=time.monotonic() - began,
            load_average=load_average(),
            tokens=told.account.tokens.non_padding,
            diagnosis=diagnose_case(told),
            traceml=traceml_summary(logs, folder.name) if traceml else None,
        )


@contextlib.contextmanager
def open_bench(folder: Path) -> Iterator[Bench]:
    """Make the corpus and start the server, which ends with the block."""
    corpus = folder / "corpus"
    corpus_script = (
        f"from pathlib import Path; from planted_runs.data import make_corpus; make_corpus(Path({str(corpus)!r}))"
    )
    subprocess.run([sys.executable, "-c", corpus_script], cwd=_SCRIPT.parent, check=True)
    command = [sys.executable, "-m", "planted_runs.server", str(corpus)]
    with subprocess.Popen(command, cwd=_SCRIPT.parent, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield Bench(folder, corpus, f"127.0.0.1:{int(server.stdout.readline())}")
        finally:
            server.kill()


def as_json(ran: Ran) -> dict[str, Any]:
    """Plain data for the file of results."""
    return {
        "process_seconds": ran.process_seconds,
        "load_average": ran.load_average,
        "loop_seconds": ran.diagnosis.loop_seconds,
        "non_padding_tokens": ran.tokens,
        "findings": [asdict(finding) for finding in ran.diagnosis.findings],
        "abstentions": [asdict(one) for one in ran.diagnosis.abstentions],
        "limit": None if ran.diagnosis.limit is None else asdict(ran.diagnosis.limit),
        "faults_of_rules": ran.diagnosis.faults,
    }


def _launch(case: PlantedCase, script: list[str]) -> list[str]:
    if case.ranks == 1:
        return [sys.executable, *script]
    several = ["-m", "torch.distributed.run", "--nproc_per_node", str(case.ranks), "--master_port", str(free_port())]
    return [sys.executable, *several, *script]


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    """So many processes compute, at the same priority as the run."""
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for one in processes:
            one.kill()
            one.wait()
