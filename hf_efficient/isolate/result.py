"""The room's door: a recipe in, its variants run, the time of its step by their differences out."""

import dataclasses
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from hf_efficient.diagnosis.engine import diagnose_isolation
from hf_efficient.errors import OutputError, SetupError
from hf_efficient.estimate.comparison import CHAIN, Difference, Link, StepAttribution, attribute
from hf_efficient.estimate.throughput import batch_time
from hf_efficient.facts.environment import accelerator_count, thread_count
from hf_efficient.isolate.experiment import Launch, Progress, chain_times, run_variant, run_variants
from hf_efficient.isolate.variants import MOST_EXAMPLES, VARIANTS, check_whole_models
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records import isolation as rec
from hf_efficient.records.isolation import IsolationSchedule, LoaderAlone, StepPart, VariantOutcome
from hf_efficient.text import short_seconds
from hf_efficient.version import __version__

STEPS: Final = 12
WARM_UP: Final = 3
FEWEST_STEPS: Final = 6  # with fewer pairs no interval of 95% is known (``estimate/comparison.py``)
_SIZES = ("as_is", "micro_batch_halved", "micro_batch_doubled")
_SAME_BATCHES = ("quiet", "logged", "held_batches", "one_process", "forward", "forward_no_grad", "loader")
_MUCH_DRIFT = 1.15

Outcomes = Mapping[str, VariantOutcome]


def isolate(argument: str, overrides: Sequence[str], steps: int, progress: Progress) -> rec.Isolation:
    """Run the variants of a recipe (file or shipped name) beside its output directory; only the result is left. Raises
    ``HfEfficientError``: the recipe is wrong, cannot be launched, or does not train as it is."""
    recipe = load_recipe(argument, overrides)
    check_whole_models(recipe)
    if OBJECTIVES[recipe.objective].generates:
        raise SetupError(
            f"objective: is {recipe.objective}, whose steps generate, and isolate holds batches. Train a few steps "
            "and read their account: it has the phases generation, reward, forward and backward."
        )
    automatic = recipe.distributed.processes == "auto"
    with tempfile.TemporaryDirectory(prefix=".hf-efficient-isolate-", dir=_place(recipe.output_dir)) as name:
        devices = accelerator_count() if automatic else 0
        launch = Launch(recipe, argument, overrides, steps, WARM_UP, Path(name), devices, thread_count())
        outcomes = run_variants(VARIANTS, recipe, lambda variant: run_variant(variant, launch), progress)
    return isolation_of(recipe, outcomes, steps, WARM_UP)


def _place(output_dir: str) -> Path:
    folder = Path(output_dir).expanduser().absolute().parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        why = f"{folder} cannot be written, and the variants' checkpoints go there"
        raise OutputError(f"output_dir: {why}. Write another output_dir=...")
    return folder


def isolation_of(recipe: Recipe, outcomes: Sequence[VariantOutcome], steps: int, warm_up: int) -> rec.Isolation:
    """The attribution, what was measured by itself, and the findings; ``outcomes`` are of all variants."""
    held = {one.name: one for one in outcomes}
    schedule = next(run.schedule for run in _runs(held, "as_is") if run.schedule is not None)
    attribution = attribute(chain_times(outcomes))
    pauses = _pauses(held, attribution)
    loader = _loader(held)
    parts = [*_step_parts(attribution, held, schedule, loader), *_pause_parts(held.get("pauses"), pauses, schedule)]
    between = [part.seconds or 0.0 for part in parts if part.name in ("logging", "evaluation", "checkpointing")]
    whole = attribution.plain_seconds + sum(between)
    tokens = [one for run in _runs(held, "as_is") for one in run.step_tokens]
    found = rec.Isolation(
        schema_version=rec.ISOLATION_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        recipe=recipe.name,
        steps=steps,
        warm_up=warm_up,
        schedule=schedule,
        variants=list(outcomes),
        step_seconds=whole,
        parts=parts,
        unexplained_seconds=whole - sum(part.seconds or 0.0 for part in parts),
        tokens_per_second=statistics.mean(tokens) * schedule.processes / whole if any(tokens) else None,
        pauses=pauses,
        loader=loader,
        tokenisation=_tokenisation(held),
        micro_batch=_micro_batch_line(held),
        forward_without_graph_seconds=_median(_seconds(held, "forward_no_grad")),
        price_usd_per_hour=recipe.cost.price_usd_per_hour,
        notes=_remarks(recipe, held, schedule),
    )
    return dataclasses.replace(found, diagnosis=diagnose_isolation(found))


def _runs(held: Outcomes, name: str) -> Sequence[rec.VariantMeasurement]:
    return held[name].runs if name in held else []


def _seconds(held: Outcomes, name: str) -> list[float]:
    return [one for run in _runs(held, name) for one in run.step_seconds]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _step_parts(
    found: StepAttribution, held: Outcomes, schedule: IsolationSchedule, loader: LoaderAlone | None
) -> Iterator[StepPart]:
    note = "" if found.forward_seconds is not None else _missing(held, "forward")
    yield StepPart("forward", found.forward_seconds, None, None, len(_runs(held, "forward")), "forward", note)
    for link in reversed(CHAIN):
        if link.part in found.differences:
            per_step = schedule.log_every if link.part == "logging" else 1
            if per_step:
                part = _part(link, found.differences[link.part], held, per_step)
                yield _no_more_than(part, loader) if link.part == "data" and not schedule.workers else part


def _part(link: Link, found: Difference | None, held: Outcomes, steps: int) -> StepPart:
    first = next((name for name in link.more if not held[name].left_out), link.more[0])
    how = f"{first} less {link.less}" + (f", over {steps} steps" if steps > 1 else "")
    if found is None:
        return StepPart(link.part, None, None, None, 0, how, _missing(held, first, link.less))
    seconds = found.seconds / steps if found.is_clear else 0.0
    note = "" if found.is_clear else "no difference"
    return StepPart(link.part, seconds, found.low / steps, found.high / steps, found.rounds, how, note)


def _no_more_than(part: StepPart, loader: LoaderAlone | None) -> StepPart:
    """Waiting for a loader without workers takes what it takes alone; what is beyond stays unexplained."""
    if loader is None or part.seconds is None or part.seconds <= loader.step_seconds:
        return part
    note = f"{short_seconds(part.seconds)} by difference, but the loader alone takes no more"
    return dataclasses.replace(part, seconds=loader.step_seconds, low=None, high=None, note=note)


def _missing(held: Outcomes, *names: str) -> str:
    for name in names:
        one = held.get(name)
        if one is None or not one.runs:
            return f"{name} {'was not run' if one is None else f'failed: {one.failure}'}"
    return "the two have no step in common"


def _pauses(held: Outcomes, attribution: StepAttribution) -> rec.PauseTimes:
    log, runs = attribution.differences.get("logging"), _runs(held, "pauses")
    return rec.PauseTimes(
        log_seconds=max(0.0, log.seconds) if log is not None and log.is_clear else None,
        evaluation_seconds=_median([one for run in runs for one in run.evaluation_seconds]),
        save_seconds=_median([one for run in runs for one in run.save_seconds]),
    )


def _pause_parts(
    outcome: VariantOutcome | None, pauses: rec.PauseTimes, schedule: IsolationSchedule
) -> Iterator[StepPart]:
    evaluation = ("evaluation", "evaluation_seconds", schedule.evaluate_every)
    for name, field, every in (evaluation, ("checkpointing", "save_seconds", schedule.save_every)):
        if not every or outcome is None:
            continue
        how, seconds = f"pauses, over {every} steps", getattr(pauses, field)
        if seconds is None:
            yield StepPart(name, None, None, None, 0, how, outcome.failure or "it was not timed")
            continue
        timed = [one / every for run in outcome.runs for one in getattr(run, field)]
        yield StepPart(name, seconds / every, min(timed), max(timed), len(timed), how)


def _loader(held: Outcomes) -> LoaderAlone | None:
    runs, seconds = _runs(held, "loader"), _seconds(held, "loader")
    if not seconds:
        return None
    tokens = sum(sum(run.step_tokens) for run in runs)
    cpu = [run.cpu_seconds for run in runs if run.cpu_seconds is not None]
    return LoaderAlone(
        step_seconds=statistics.median(seconds),
        tokens_per_second=tokens / sum(seconds) if tokens else None,
        model_step_seconds=_median(_seconds(held, "held_batches")),
        cpu_seconds=sum(cpu) / len(seconds) if len(cpu) == len(runs) else None,
    )


def _tokenisation(held: Outcomes) -> rec.TokenisationAlone | None:
    run = next(iter(_runs(held, "tokenisation")), None)
    if run is None or run.examples is None or run.tokens is None or not run.prepare_seconds:
        return None
    return rec.TokenisationAlone(
        examples=run.examples,
        tokens=run.tokens,
        seconds=run.prepare_seconds,
        read_seconds=run.read_seconds or 0.0,
        examples_per_second=run.examples / run.prepare_seconds,
        tokens_per_second=run.tokens / run.prepare_seconds,
    )


def _micro_batch_line(held: Outcomes) -> rec.MicroBatchLine | None:
    """Over the micro-batches of all sizes; None where fewer than two sizes were recorded, or give no line."""
    seconds = {name: [one for run in _runs(held, name) for one in run.micro_batch_seconds] for name in _SIZES}
    tokens = {name: [one for run in _runs(held, name) for one in run.micro_batch_tokens] for name in _SIZES}
    names = [name for name in _SIZES if seconds[name]]
    if len(names) < 2 or "as_is" not in names:
        return None
    points = [one for name in names for one in seconds[name]]
    line = batch_time(np.array(points), np.array([one for name in names for one in tokens[name]]))
    if line is None:
        return None
    doubled = tokens["micro_batch_doubled"]
    return rec.MicroBatchLine(
        fixed_seconds=line.fixed_seconds,
        token_seconds=line.token_seconds,
        seconds=statistics.median(seconds["as_is"]),
        tokens=statistics.median(tokens["as_is"]),
        points=len(points),
        variants=names,
        doubled_positions=statistics.mean(doubled) / (2 * statistics.mean(tokens["as_is"])) if doubled else None,
    )


def _remarks(recipe: Recipe, held: Outcomes, schedule: IsolationSchedule) -> list[str]:
    """What the figures leave out, or rest on, in sentences."""
    found = []
    reports = recipe.train.get("report_to")
    if reports not in (None, "none", [], ["none"]):
        found.append(f"train.report_to was off, so that these runs are not published: what {reports} takes is left out")
    if recipe.efficiency.plan:
        found.append("a run also plans once, before its first step")
    if schedule.processes > 1 and schedule.device == "cpu":
        found.append("processes on one CPU share its memory and caches: communication holds what that costs")
    if any((run.examples or 0) >= MOST_EXAMPLES for run in _runs(held, "tokenisation")):
        found.append(f"tokenisation is of {MOST_EXAMPLES:,} examples, drawn from all")
    if (ratio := _drift(held["as_is"])) > _MUCH_DRIFT:
        found.append(
            f"the recipe as it is took {ratio:.2f} times as long in one round as in another: something else uses this "
            "machine, and spreads are wide; run it alone, or with more --steps"
        )
    other = [name for name in _SAME_BATCHES if name in held and _differs(held["as_is"], held[name])]
    if other:
        found.append(f"the batches of {', '.join(other)} were not those of the recipe as it is")
    return found


def _drift(base: VariantOutcome) -> float:
    middles = [statistics.median(run.step_seconds) for run in base.runs if run.step_seconds]
    return max(middles) / min(middles) if middles else 1.0


def _differs(base: VariantOutcome, other: VariantOutcome) -> bool:
    if not base.runs or not other.runs:
        return False
    first, second = base.runs[0].step_tokens, other.runs[0].step_tokens
    return bool(first) and bool(second) and sum(first) != sum(second)
