"""A recipe beside its peers: which arm runs when, what it measured, and the table's figures.

The order of the arms alternates from round to round, so that a machine that slows down weighs on all alike; each round
gives one ratio. An arm that fails or does not learn runs no more, and has no speed in the result.
"""

import datetime
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec

from hf_efficient.accounting.account import load_run
from hf_efficient.bench.arms import Arm, obstacle, peer_command
from hf_efficient.bench.worker import FAILURE, FIGURES, WORK
from hf_efficient.errors import SetupError
from hf_efficient.estimate.statistics import alternating_orders, median_spread, percentile, warm_up_count
from hf_efficient.facts.environment import describe_environment, thread_count
from hf_efficient.isolate.experiment import run_to_end, why_ended
from hf_efficient.launch.checkpoints import EFFICIENCY
from hf_efficient.recipe.load import load_recipe
from hf_efficient.records.bench import BENCH_SCHEMA_VERSION, ArmOutcome, ArmRun, Comparison, Ratio, Work
from hf_efficient.run_dir.paths import records_path
from hf_efficient.run_dir.reading import read_steps
from hf_efficient.version import __version__

FEWEST_STEPS = 6
"""Three are left out as warm-up, and three are left to measure and to see a loss fall."""

_SCRIPT = "from hf_efficient.cli.app import main; main()"


class ArmFailed(Exception):
    """An arm came to no end; ``str`` says why."""


class Progress(Protocol):
    def begins(self, arm: str, round_number: int, rounds: int) -> None: ...

    def ends(self, arm: str, tokens_per_second: float | None, reason: str) -> None:
        """It measured, or has no speed: ``reason`` says why."""


def compare(
    argument: str,
    overrides: Sequence[str],
    arms: Sequence[Arm],
    progress: Progress,
    *,
    rounds: int,
    steps: int,
    pythons: Mapping[str, str] | None = None,
    random_weights: bool = False,
    padded_rows: int | None = None,
) -> Comparison:
    """Prepare the recipe once, and run the arms. ``pythons``: of peers, by name; ``padded_rows`` as in ``prepare``.
    Raises ``SetupError``: the recipe cannot be compared, or none of the arms ran."""
    if steps < FEWEST_STEPS:
        raise SetupError(f"--steps: {steps} are too few, of which three are warm-up. Write {FEWEST_STEPS} or more.")
    if rounds < 1:
        raise SetupError(f"--rounds: {rounds} measure nothing. Write 1 or more; 6 give an interval of 95%.")
    started, load = (
        datetime.datetime.now(datetime.timezone.utc),
        os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )
    with tempfile.TemporaryDirectory(prefix="hf-efficient-bench-") as name:
        folder = Path(name)
        options = [f"--folder={folder}", f"--steps={steps}", *["--random-weights"] * random_weights]
        options += [] if padded_rows is None else [f"--padded-rows={padded_rows}"]
        work = _prepare([argument, *overrides, *options], folder)
        runner = _Runner(work, folder, pythons or {})
        outcomes = run_rounds(arms, rounds, warm_up_count(steps), runner.run, progress, runner.obstacle)
    base = next((name for name, one in outcomes.items() if one.runs and not one.reason), None)
    return Comparison(
        schema_version=BENCH_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        recipe=argument,
        started_at=started.isoformat(timespec="seconds"),
        load_average=load,
        environment=describe_environment(),
        work=work,
        rounds=rounds,
        steps=steps,
        warm_up=warm_up_count(steps),
        base=base,
        arms=summary(outcomes, base, warm_up_count(steps)),
    )


def _prepare(arguments: Sequence[str], folder: Path) -> Work:
    """By a process of its own, which may hold a whole model; ``SetupError`` with what it said."""
    said = folder / "said.txt"
    with said.open("wb") as output:
        command = [sys.executable, "-m", "hf_efficient.bench.worker", "prepare", *arguments]
        code = run_to_end(command, thread_count(), output.fileno())
    if (folder / FAILURE).is_file():
        raise SetupError((folder / FAILURE).read_text(encoding="utf-8"))
    if code:
        raise SetupError(f"bench: the recipe could not be prepared: {why_ended(code, said)}")
    return msgspec.json.decode((folder / WORK).read_bytes(), type=Work)


class _Runner:
    """Runs arms on what was prepared in a folder."""

    def __init__(self, work: Work, folder: Path, pythons: Mapping[str, str]) -> None:
        self._work, self._folder, self._pythons = work, folder, pythons
        self._recipe = load_recipe(work.recipe, work.overrides)

    def obstacle(self, arm: Arm) -> str:
        return obstacle(arm, self._work, self._recipe, self._pythons)

    def run(self, arm: Arm) -> ArmRun:
        """Train it once; ``ArmFailed`` with what it said."""
        folder = self._folder / arm.name
        folder.mkdir()
        try:
            said = folder / "said.txt"
            with said.open("wb") as output:
                device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
                command = self._command(arm, folder)
                code = run_to_end(command, thread_count(), output.fileno(), CUDA_VISIBLE_DEVICES=device)
            if (folder / FAILURE).is_file():
                raise ArmFailed((folder / FAILURE).read_text(encoding="utf-8"))
            if code:
                raise ArmFailed(why_ended(code, said))
            if arm.changes is not None:
                return _of_records(folder / "run")
            return msgspec.convert(json.loads((folder / FIGURES).read_bytes()), ArmRun)  # which may hold NaN
        finally:
            shutil.rmtree(folder)

    def _command(self, arm: Arm, folder: Path) -> list[str]:
        if arm.changes is not None:
            flags = [f"{key}={json.dumps(value)}" for key, value in arm.changes.items()]
            return [sys.executable, "-c", _SCRIPT, "train", self._work.recipe, *flags, f"output_dir={folder / 'run'}"]
        if arm.by_worker:
            return [sys.executable, "-m", "hf_efficient.bench.worker", arm.name, f"--folder={folder}"]
        return peer_command(arm, self._work, self._recipe, self._pythons.get(arm.name), folder)


def _of_records(run_dir: Path) -> ArmRun:
    """By the records of our own run."""
    account = load_run(run_dir)
    steps = [one for one in read_steps(records_path(run_dir / EFFICIENCY, "steps", 0)) if one.step]
    return ArmRun(
        seconds=[one.wall_seconds for one in steps],
        non_padding=[one.tokens.non_padding or 0 for one in steps],
        processed=[one.tokens.processed or 0 for one in steps],
        losses=[float("nan") if one.loss is None else float(one.loss) for one in steps],
        gradient_norms=[float("nan") if one.grad_norm is None else float(one.grad_norm) for one in steps],
        peak_host_bytes=account.memory.peak_rss_bytes or 0,
        peak_device_bytes=account.memory.device_peak_allocated_bytes,
        mfu=account.work.mfu,
    )


def run_rounds(
    arms: Sequence[Arm],
    rounds: int,
    warm_up: int,
    run: Callable[[Arm], ArmRun],
    progress: Progress,
    why_not: Callable[[Arm], str] = lambda arm: "",
) -> dict[str, ArmOutcome]:
    """The arms that can, in alternating orders; ``SetupError`` where none is left."""
    outcomes = {arm.name: ArmOutcome(arm.name, arm.what, reason=why_not(arm)) for arm in arms}
    by_name = {arm.name: arm for arm in arms}
    able = [name for name, one in outcomes.items() if not one.reason]
    for number, order in enumerate(alternating_orders(able, rounds) if able else [], 1):
        for name in (name for name in order if not outcomes[name].reason):
            progress.begins(name, number, rounds)
            outcomes[name] = _after(outcomes[name], lambda arm=by_name[name]: run(arm))  # type: ignore[misc]
            reason = outcomes[name].reason
            progress.ends(name, None if reason else tokens_per_second(outcomes[name].runs[-1], warm_up), reason)
    if not any(one.runs for one in outcomes.values()):
        told = "; ".join(f"{name}: {one.reason}" for name, one in outcomes.items())
        raise SetupError(f"bench: none of the arms ran: {told}")
    return outcomes


def _after(outcome: ArmOutcome, run: Callable[[], ArmRun]) -> ArmOutcome:
    try:
        found = run()
    except ArmFailed as error:
        return replace(outcome, reason=f"failed: {error}", runs=[])
    runs = [*outcome.runs, found]
    refusal = why_not_learning(found)
    if refusal:
        return replace(outcome, reason=refusal, refused=True, runs=[replace(one, seconds=[]) for one in runs])
    return replace(outcome, runs=runs)


def why_not_learning(run: ArmRun) -> str:
    """Empty where all gradient norms are above zero, and the mean loss of the last third is below that of the first."""
    if not run.losses or len(run.losses) != len(run.gradient_norms):
        return "it logged no loss and gradient norm of each step"
    wrong = [number for number, norm in enumerate(run.gradient_norms, 1) if not (norm > 0 and math.isfinite(norm))]
    if wrong:
        return f"does not learn: the gradient norm of step {wrong[0]} is {run.gradient_norms[wrong[0] - 1]:g}"
    third = max(1, len(run.losses) // 3)
    first, last = statistics.fmean(run.losses[:third]), statistics.fmean(run.losses[-third:])
    if not last < first:
        return f"does not learn: its loss is {first:.4g} in the first third and {last:.4g} in the last"
    return ""


def tokens_per_second(run: ArmRun, warm_up: int) -> float:
    """Tokens without padding of the steps after warm-up over their seconds. A median of steps would leave out the
    padded batch with one long row."""
    return sum(run.non_padding[warm_up:]) / sum(run.seconds[warm_up:])


def summary(outcomes: Mapping[str, ArmOutcome], base: str | None, warm_up: int) -> list[ArmOutcome]:
    """The outcomes with the figures of the table."""
    speeds = {
        name: [tokens_per_second(run, warm_up) for run in one.runs] for name, one in outcomes.items() if not one.reason
    }
    return [_summed(one, speeds.get(name), speeds.get(base or ""), warm_up) for name, one in outcomes.items()]


def _summed(one: ArmOutcome, speeds: list[float] | None, base: list[float] | None, warm_up: int) -> ArmOutcome:
    if not one.runs or (one.reason and not one.refused):
        return one
    learned = replace(
        one,
        first_loss=statistics.median(run.losses[0] for run in one.runs if run.losses) if one.runs[0].losses else None,
        last_loss=statistics.median(run.losses[-1] for run in one.runs if run.losses) if one.runs[0].losses else None,
        least_gradient_norm=min((norm for run in one.runs for norm in run.gradient_norms), default=None),
    )
    if not speeds or not base:
        return learned
    seconds = sorted(second for run in one.runs for second in run.seconds[warm_up:])
    spread = median_spread([own / other for own, other in zip(speeds, base, strict=True)])
    devices = [run.peak_device_bytes for run in one.runs if run.peak_device_bytes is not None]
    shares = [run.mfu for run in one.runs if run.mfu is not None]
    return replace(
        learned,
        tokens_per_second=statistics.median(speeds),
        ratio=Ratio(spread.median, spread.low, spread.high, spread.confidence),
        peak_host_bytes=int(statistics.median(run.peak_host_bytes for run in one.runs)),
        peak_device_bytes=int(statistics.median(devices)) if devices else None,
        step_p50_seconds=percentile(seconds, 0.5),
        step_p95_seconds=percentile(seconds, 0.95),
        padding_share=1 - sum(sum(run.non_padding) for run in one.runs) / sum(sum(run.processed) for run in one.runs),
        mfu=statistics.median(shares) if shares else None,
    )
