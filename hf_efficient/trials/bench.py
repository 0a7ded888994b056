"""A recipe beside its peers: which arm runs when, what it measured, and the table's figures.

The order of the arms alternates from round to round, so that a machine that slows down weighs on all alike; each round
gives one ratio. An arm that fails or does not learn runs no more, and has no speed in the result.
"""

import datetime
import functools
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import psutil

from hf_efficient.accounting.account import load_run
from hf_efficient.accounting.steps import read_columns
from hf_efficient.errors import SetupError
from hf_efficient.estimate.statistics import alternating_orders, known_median, median_spread, percentile, warm_up_count
from hf_efficient.facts.environment import describe_environment, thread_count
from hf_efficient.launch.checkpoints import EFFICIENCY
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.bench import BENCH_SCHEMA_VERSION, ArmOutcome, ArmRun, Comparison, Ratio, Work
from hf_efficient.run_dir.json_file import folder_of_its_own
from hf_efficient.run_dir.paths import records_path
from hf_efficient.trials.arms import Arm, obstacle, peer_command
from hf_efficient.trials.process import Job, Progress, RunFailed, run_to_end, worker_command
from hf_efficient.version import __version__

FEWEST_STEPS = 6  # three are left out as warm-up, three are left to measure and to see a loss fall

_SCRIPT = "from hf_efficient.cli.app import main; main()"


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
    """``pythons``: by peer; ``padded_rows`` as in ``prepare``. ``SetupError``: it cannot be compared, or no arm ran."""
    if steps < FEWEST_STEPS:
        raise SetupError(f"--steps: {steps} are too few, of which three are warm-up. Write {FEWEST_STEPS} or more.")
    if rounds < 1:
        raise SetupError(f"--rounds: {rounds} measure nothing. Write 1 or more; 6 give an interval of 95%.")
    started, load, warm_up = datetime.datetime.now(datetime.timezone.utc), psutil.getloadavg()[0], warm_up_count(steps)
    with tempfile.TemporaryDirectory(prefix="hf-efficient-bench-") as name:
        folder = Path(name)
        options = {"steps": steps, "random_weights": random_weights, "padded_rows": padded_rows}
        command = worker_command(Job("prepare", argument, overrides, options), folder)
        try:  # in a process of its own, which may hold a whole model
            work = msgspec.convert(run_to_end(command, folder, thread_count()), Work)
        except RunFailed as error:
            why = str(error) if error.kind == "input" else f"bench: the recipe could not be prepared: {error}"
            raise SetupError(why) from None
        recipe = load_recipe(work.recipe, work.overrides)
        why_not = {arm.name: obstacle(arm, work, recipe, pythons or {}) for arm in arms}
        run = functools.partial(_run, work, recipe, folder, pythons or {}, warm_up)
        outcomes = run_rounds(arms, rounds, warm_up, run, progress, why_not)
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
        warm_up=warm_up,
        base=base,
        arms=summary(outcomes, base, warm_up),
    )


def _run(work: Work, recipe: Recipe, parent: Path, pythons: Mapping[str, str], warm_up: int, arm: Arm) -> ArmRun:
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    with folder_of_its_own(parent / arm.name) as folder:
        if arm.changes is not None:
            flags = [f"{key}={json.dumps(value)}" for key, value in arm.changes.items()]
            command = [sys.executable, "-c", _SCRIPT, "train", work.recipe, *work.overrides, *flags]
            command.append(f"output_dir={folder / 'run'}")
        elif arm.package:
            command = peer_command(arm, work, recipe, pythons.get(arm.name), folder)
        else:
            options = {"arm": arm.name, "work": msgspec.to_builtins(work)}
            command = worker_command(Job("arm", work.recipe, work.overrides, options), folder)
        found = run_to_end(command, folder, thread_count(), CUDA_VISIBLE_DEVICES=device)
        return recorded_run(folder / "run", warm_up) if arm.changes is not None else msgspec.convert(found, ArmRun)


def recorded_run(run_dir: Path, warm_up: int) -> ArmRun:
    """What `hf-efficient train` has left."""
    account = load_run(run_dir)
    steps = read_columns(records_path(run_dir / EFFICIENCY, "steps", 0))
    peak = (account.work.peak_flops_per_second or math.nan) * account.work.accelerators
    mfu = float(steps.model_flops[warm_up:].sum() / steps.wall_seconds[warm_up:].sum() / peak)
    return ArmRun(
        seconds=steps.wall_seconds.tolist(),
        non_padding=np.nan_to_num(steps.non_padding).astype(int).tolist(),
        processed=np.nan_to_num(steps.processed).astype(int).tolist(),
        losses=steps.loss.tolist(),
        gradient_norms=steps.grad_norm.tolist(),
        peak_host_bytes=account.memory.peak_rss_bytes or 0,
        peak_device_bytes=account.memory.device_peak_allocated_bytes,
        mfu=mfu if math.isfinite(mfu) else None,
    )


def run_rounds(
    arms: Sequence[Arm],
    rounds: int,
    warm_up: int,
    run: Callable[[Arm], ArmRun],
    progress: Progress,
    why_not: Mapping[str, str],
) -> dict[str, ArmOutcome]:
    """The arms that can, in alternating orders; ``SetupError`` where none is left, or where no peer can run at all."""
    outcomes = {arm.name: ArmOutcome(arm.name, arm.what, reason=why_not.get(arm.name, "")) for arm in arms}
    idle = {name: why for name, why in why_not.items() if why}
    if idle and len(idle) == len([arm for arm in arms if arm.name != "recipe"]):
        told = "; ".join(f"{name}: {why}" for name, why in idle.items())
        raise SetupError(f"--against: none of these can run here: {told}. Write trl, for instance.")
    for name, why in idle.items():
        progress.begins(name)
        progress.ends(f"does not run: {why}")
    by_name = {arm.name: arm for arm in arms if not outcomes[arm.name].reason}
    for number, order in enumerate(alternating_orders(list(by_name), rounds) if by_name else [], 1):
        for name in (name for name in order if not outcomes[name].reason):
            progress.begins(f"[round {number}/{rounds}] {name}")
            found = outcomes[name] = _after(outcomes[name], run, by_name[name])
            rate = 0.0 if found.reason else tokens_per_second(found.runs[-1], warm_up)
            progress.ends(f"no speed: {found.reason}" if found.reason else f"{rate:,.0f} tokens/s")
    if not any(one.runs for one in outcomes.values()):
        told = "; ".join(f"{name}: {one.reason}" for name, one in outcomes.items())
        raise SetupError(f"bench: none of the arms ran: {told}")
    return outcomes


def _after(outcome: ArmOutcome, run: Callable[[Arm], ArmRun], arm: Arm) -> ArmOutcome:
    try:
        found = run(arm)
    except RunFailed as error:
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
    """After warm-up, without padding. A median of steps would leave out the padded batch with one long row."""
    return sum(run.non_padding[warm_up:]) / sum(run.seconds[warm_up:])


def summary(outcomes: Mapping[str, ArmOutcome], base: str | None, warm_up: int) -> list[ArmOutcome]:
    speeds = {
        name: [tokens_per_second(run, warm_up) for run in one.runs] for name, one in outcomes.items() if not one.reason
    }
    found = {name: _summed(one, speeds.get(name), speeds.get(base or ""), warm_up) for name, one in outcomes.items()}
    if "bare" in found and "recipe" in found:
        found["bare"] = _with_work_of(found["recipe"], found["bare"])
    return list(found.values())


def _with_work_of(recipe: ArmOutcome, bare: ArmOutcome) -> ArmOutcome:
    """The loop by hand keeps no account. On the same batches the same layers do the same work, in another time."""
    same = [run.processed for run in bare.runs] == [run.processed for run in recipe.runs]
    if not (same and recipe.mfu and recipe.tokens_per_second and bare.tokens_per_second):
        return bare
    return replace(bare, mfu=recipe.mfu * bare.tokens_per_second / recipe.tokens_per_second)


def _summed(one: ArmOutcome, speeds: list[float] | None, base: list[float] | None, warm_up: int) -> ArmOutcome:
    if not one.runs or (one.reason and not one.refused):
        return one
    learned = replace(
        one,
        first_loss=known_median(run.losses[0] for run in one.runs if run.losses),
        last_loss=known_median(run.losses[-1] for run in one.runs if run.losses),
        least_gradient_norm=min((norm for run in one.runs for norm in run.gradient_norms), default=None),
    )
    if not speeds or not base:
        return learned
    seconds = sorted(second for run in one.runs for second in run.seconds[warm_up:])
    spread = median_spread([own / other for own, other in zip(speeds, base, strict=True)])
    on_device = known_median(run.peak_device_bytes for run in one.runs)
    return replace(
        learned,
        tokens_per_second=statistics.median(speeds),
        ratio=Ratio(spread.median, spread.low, spread.high, spread.confidence),
        peak_host_bytes=int(statistics.median(run.peak_host_bytes for run in one.runs)),
        peak_device_bytes=None if on_device is None else int(on_device),
        step_p50_seconds=percentile(seconds, 0.5),
        step_p95_seconds=percentile(seconds, 0.95),
        padding_share=1 - sum(sum(run.non_padding) for run in one.runs) / sum(sum(run.processed) for run in one.runs),
        mfu=known_median(run.mfu for run in one.runs),
    )
