"""Is a rank that is slowed by 30% named, with the phase in which it is slow, and none in healthy runs?

    python benchmarks/stragglers.py [--only NAME ...] [--work DIR] [--json FILE]

Two processes train a Llama with random weights under DDP on gloo. Four healthy runs come first: they tell how long a
step and a save take, and may have no finding. Then twelve are slowed, each in one of data, forward, backward and save
on one of the ranks, by sleeping or by computing, by 30% of a healthy step (of a healthy save, where that is slowed).
"""

import argparse
import datetime
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from shared import load_average, run_to_end, write_result

from hf_efficient.diagnosis.case import Case, read_case
from hf_efficient.diagnosis.rules.stragglers import straggler
from hf_efficient.records.findings import Finding
from hf_efficient.run_dir.paths import records_folder

SHARE = 0.3
"""Of a healthy step, or of a healthy save, that the slowed rank takes longer."""

PHASES = {"data": "data_wait", "forward": "forward", "backward": "backward", "save": "checkpointing"}
"""What can be slowed, and the phase that it is in the records."""


@dataclass(frozen=True)
class StragglerCase:
    """One run.

    Attributes:
        slowed: of ``PHASES``; empty: a healthy run.
        rank: that is slowed.
        how: ``sleep``: it waits for nothing, as for a slow store; ``work``: it computes, as on a slower core.
        model: ``small`` or ``larger``.
        saves: both ranks save every second step, each for itself, as two nodes with a disk each do
            (``save_on_each_node``); else nobody saves.
    """

    slowed: str
    rank: int
    how: str
    model: str
    saves: bool

    @property
    def name(self) -> str:
        """For ``--only`` and messages."""
        if not self.slowed:
            return f"healthy-{self.model}" + ("-saves" if self.saves else "")
        return f"{self.slowed}-rank{self.rank}-{self.how}-{self.model}"

    @property
    def control(self) -> str:
        """Name of the healthy run that it is slowed against."""
        return StragglerCase("", 0, "", self.model, self.saves).name


CONTROLS = [StragglerCase("", 0, "", model, saves) for model in ("small", "larger") for saves in (False, True)]
CASES = [
    StragglerCase(slowed, rank, how, model, slowed == "save")
    for slowed in PHASES
    for rank, how, model in ((0, "sleep", "small"), (1, "work", "small"), (1, "sleep", "larger"))
]


_SCRIPT = Path(__file__).with_name("straggler_process.py")
_SECONDS = 300.0
_DONE = "done.json"


@dataclass(frozen=True)
class Named:
    """What was planted, and what was found.

    Attributes:
        name: of the case.
        planted_rank, planted_phase: None in a healthy run.
        slow_seconds: that each step, or each save, was slowed by.
        rank, phase: of the finding; None without one.
        extra_seconds: that a step or save takes longer for it, as found.
        title: of the finding, or why there is none.
        right: rank and phase are those that were planted; of a healthy run: there is no finding.
        step_seconds, save_seconds: medians of rank 0; of a save None where nobody saves.
    """

    name: str
    planted_rank: int | None
    planted_phase: str | None
    slow_seconds: float
    rank: int | None
    phase: str | None
    extra_seconds: float | None
    title: str
    right: bool
    step_seconds: float
    save_seconds: float | None


def main() -> None:
    """Run the cases asked for with their healthy runs, print and write what was found."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 160)
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    chosen = [case for case in CASES if not options.only or case.name in options.only]
    needed = {case.control for case in chosen}
    healthy: dict[str, Named] = {}
    named: list[Named] = []
    with _work(options.work) as folder:
        for case in (*(one for one in CONTROLS if one.name in needed), *chosen):
            found = _run(case, folder, _slow_seconds(case, healthy))
            if case.slowed:
                named.append(found)
            else:
                healthy[case.name] = found
            print(f"{case.name}: {found.title}", file=sys.stderr, flush=True)
    console.print(_table([*healthy.values(), *named]))
    right = sum(one.right for one in named)
    silent = sum(one.right for one in healthy.values())
    console.print(
        f"{right} of {len(named)} stragglers are named with rank and phase; "
        f"{silent} of {len(healthy)} healthy runs have no finding."
    )
    if options.json is not None:
        figures = {
            "cores": os.cpu_count(),
            "load_average_at_start": load,
            "load_average_at_end": load_average(),
            "slowed_by_share": SHARE,
            "right": right,
            "cases": len(named),
            "healthy_without_finding": silent,
            "runs": [asdict(one) for one in (*healthy.values(), *named)],
        }
        write_result(options.json, "stragglers", started, figures)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="keep what the runs write here; a run that is there is not run again"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was planted and what was found")
    return parser.parse_args()


def _slow_seconds(case: StragglerCase, healthy: dict[str, Named]) -> float:
    if not case.slowed:
        return 0.0
    control = healthy[case.control]
    of = control.save_seconds if case.slowed == "save" else control.step_seconds
    assert of is not None
    return SHARE * of


@contextmanager
def _work(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


def _run(case: StragglerCase, work: Path, slow_seconds: float) -> Named:
    folder = work / case.name
    done = folder / _DONE
    if not done.exists():
        spec = {"case": asdict(case), "folder": str(folder), "slow_seconds": slow_seconds}
        status, printed = run_to_end([sys.executable, str(_SCRIPT), json.dumps(spec)], work, _SECONDS)
        if status != 0:
            raise RuntimeError(f"the run {case.name} ended with {status}: {printed[-3000:]}")
        done.write_text(json.dumps(spec), encoding="utf-8")
    planted = json.loads(done.read_text(encoding="utf-8"))["slow_seconds"]
    return _judged(case, planted, read_case(records_folder(folder)))


def _judged(case: StragglerCase, slow_seconds: float, told: Case) -> Named:
    said = straggler(told)
    finding = said if isinstance(said, Finding) else None
    evidence = {} if finding is None else {one.what: one.value for one in finding.evidence}
    rank, phase = evidence.get("the rank"), evidence.get("the phase")
    extra = next((value for what, value in evidence.items() if what.endswith("takes longer for it")), None)
    planted = PHASES.get(case.slowed)
    first = told.first
    assert first is not None
    saves = [float(seconds) for seconds in first.phase("checkpointing") if seconds > 0]
    return Named(
        name=case.name,
        planted_rank=case.rank if planted else None,
        planted_phase=planted,
        slow_seconds=slow_seconds,
        rank=None if rank is None else int(rank),
        phase=None if phase is None else str(phase),
        extra_seconds=None if extra is None else float(extra),
        title="no finding" if said is None else getattr(said, "title", "") or getattr(said, "why", ""),
        right=(rank == case.rank and phase == planted) if planted else said is None,
        step_seconds=sorted(first.step_seconds[first.steady])[int(first.steady.sum()) // 2],
        save_seconds=sorted(saves)[len(saves) // 2] if saves else None,
    )


def _table(rows: list[Named]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("run", "planted", "slowed by", "named", "found to cost", "right"):
        table.add_column(name, justify="left")
    for one in rows:
        table.add_row(
            one.name,
            "" if one.planted_phase is None else f"rank {one.planted_rank} {one.planted_phase}",
            f"{1e3 * one.slow_seconds:.0f} ms" if one.slow_seconds else "",
            "nothing" if one.rank is None else f"rank {one.rank} {one.phase}",
            "" if one.extra_seconds is None else f"{1e3 * one.extra_seconds:.0f} ms",
            "yes" if one.right else "NO",
        )
    return table


if __name__ == "__main__":
    main()
