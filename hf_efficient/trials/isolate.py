"""A recipe in, its variants run, the time of its step by their differences out."""

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from hf_efficient.diagnosis.engine import diagnose_isolation
from hf_efficient.errors import OutputError, SetupError
from hf_efficient.estimate.statistics import known_median
from hf_efficient.estimate.throughput import batch_time
from hf_efficient.facts.environment import accelerator_count, thread_count
from hf_efficient.launch.command import accelerate_command, layout_of
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records import isolation as rec
from hf_efficient.records.isolation import IsolationSchedule, LoaderAlone, StepPart, VariantMeasurement, VariantOutcome
from hf_efficient.run_dir.json_file import folder_of_its_own
from hf_efficient.text import counted, seconds, short_seconds
from hf_efficient.trials import attribution
from hf_efficient.trials.attribution import Difference, Link, Outcomes
from hf_efficient.trials.process import WORKER, Job, Progress, RunFailed, run_to_end, worker_command
from hf_efficient.trials.variants import MOST_EXAMPLES, VARIANTS, Variant
from hf_efficient.version import __version__

WARM_UP: Final = 3
FEWEST_STEPS: Final = 6  # with fewer pairs no interval of 95% is known (``estimate/statistics.py``)
_SIZES = ("as_is", "micro_batch_halved", "micro_batch_doubled")
_SAME_BATCHES = ("quiet", "logged", "held_batches", "one_process", "forward", "forward_no_grad", "loader")
_MUCH_DRIFT = 1.15


def isolate(argument: str, overrides: Sequence[str], steps: int, progress: Progress) -> rec.Isolation:
    """Of the runs only the result is left. ``HfEfficientError``: the recipe is wrong, cannot be launched or trained."""
    recipe = load_recipe(argument, overrides)
    _check(recipe)
    devices = accelerator_count() if recipe.distributed.processes == "auto" else 0
    layout = layout_of(recipe, device_count=devices, cores=thread_count())
    with tempfile.TemporaryDirectory(prefix=".hf-efficient-isolate-", dir=_place(recipe.output_dir)) as name:

        def run(variant: Variant) -> VariantMeasurement:
            share = layout.processes if variant.one_process else 1
            options = {"variant": variant.name, "steps": steps, "warm_up": WARM_UP, "share": share}
            with folder_of_its_own(Path(name, variant.name)) as folder:
                command = worker_command(Job("variant", argument, overrides, options), folder)
                if layout.processes > 1 and not variant.one_process:
                    command = accelerate_command(recipe, str(folder), [], layout, module=WORKER)
                threads = max(1, layout.cores // layout.processes)  # alone too, or it would be another computation
                return msgspec.convert(run_to_end(command, folder, threads), VariantMeasurement)

        return isolation_of(recipe, run_variants(VARIANTS, recipe, run, progress), steps, WARM_UP)


def _check(recipe: Recipe) -> None:
    strategy = recipe.distributed.strategy
    if strategy not in ("auto", "none", "ddp"):  # one process alone is not the same computation
        raise SetupError(
            f"isolate: distributed.strategy is {strategy}, and one process alone does not hold the model. Write "
            "distributed.strategy=ddp with a model that fits one process, or diagnose a run of this recipe."
        )
    if OBJECTIVES[recipe.objective].generates:
        raise SetupError(
            f"objective: is {recipe.objective}, whose steps generate, and isolate holds batches. Train a few steps "
            "and read their account: it has the phases generation, reward, forward and backward."
        )


def _place(output_dir: str) -> Path:
    folder = Path(output_dir).expanduser().absolute().parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        why = f"{folder} cannot be written, and the variants' checkpoints go there"
        raise OutputError(f"output_dir: {why}. Write another output_dir=...")
    return folder


def run_variants(
    variants: Sequence[Variant], recipe: Recipe, run: Callable[[Variant], VariantMeasurement], progress: Progress
) -> Outcomes:
    """Run those that apply, in order; then, backwards and forwards, those whose differences are not clear enough: a
    machine that slows down weighs on all alike. ``SetupError`` where the recipe as it is does not train."""
    held = {one.name: VariantOutcome(one.name, one.what, left_out=one.left_out(recipe)) for one in variants}
    wanted = [one for one in variants if not held[one.name].left_out]
    for number in range(1, attribution.MOST_ROUNDS + 1):
        again = f", round {number}" if number > 1 else ""
        for place, one in enumerate(wanted, 1):
            progress.begins(f"[{place}/{len(wanted)}{again}] {one.name}: {one.what}")
            began = time.monotonic()
            before, failure = held[one.name], ""
            try:
                held[one.name] = dataclasses.replace(before, runs=[*before.runs, run(one)])
            except RunFailed as error:
                failure = str(error)
                held[one.name] = dataclasses.replace(before, failure=failure)
            progress.ends(f"{seconds(time.monotonic() - began)}{f', failed: {failure}' if failure else ''}")
            if one.name == "as_is" and not held["as_is"].runs:
                raise SetupError(f"isolate: the recipe as it is does not train: {failure}")
        names = attribution.wanted_again(held)
        wanted = [one for one in variants if one.name in names]
        if number % 2:
            wanted.reverse()
    return held


def isolation_of(recipe: Recipe, held: Outcomes, steps: int, warm_up: int) -> rec.Isolation:
    """The attribution, what was measured by itself, and the findings, by the outcomes of all variants."""
    schedule = next(run.schedule for run in held["as_is"].runs if run.schedule is not None)
    found_by = attribution.differences(held)
    pauses = _pauses(held, found_by)
    loader = _loader(held)
    parts = [*_step_parts(found_by, held, schedule, loader), *_pause_parts(held["pauses"], pauses, schedule)]
    between = [part.seconds or 0.0 for part in parts if part.name in ("logging", "evaluation", "checkpointing")]
    whole = attribution.plain_seconds(held) + sum(between)
    tokens = _all(held, "as_is", "step_tokens")
    found = rec.Isolation(
        schema_version=rec.ISOLATION_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        recipe=recipe.name,
        steps=steps,
        warm_up=warm_up,
        schedule=schedule,
        variants=list(held.values()),
        step_seconds=whole,
        parts=parts,
        unexplained_seconds=whole - sum(part.seconds or 0.0 for part in parts),
        tokens_per_second=statistics.mean(tokens) * schedule.processes / whole if any(tokens) else None,
        pauses=pauses,
        loader=loader,
        tokenisation=_tokenisation(held),
        micro_batch=_micro_batch_line(held),
        forward_without_graph_seconds=known_median(_all(held, "forward_no_grad")),
        price_usd_per_hour=recipe.cost.price_usd_per_hour,
        notes=_remarks(recipe, held, schedule),
    )
    return dataclasses.replace(found, diagnosis=diagnose_isolation(found))


def _all(held: Outcomes, name: str, field: str = "step_seconds") -> list[Any]:
    return [one for run in held[name].runs for one in getattr(run, field)]


def _step_parts(
    found: Mapping[str, Difference | None], held: Outcomes, schedule: IsolationSchedule, loader: LoaderAlone | None
) -> Iterator[StepPart]:
    forward = known_median(_all(held, "forward"))
    note = "" if forward is not None else _missing(held, "forward")
    yield StepPart("forward", forward, None, None, len(held["forward"].runs), "forward", note)
    for link in reversed(attribution.CHAIN):
        if link.part in found:
            per_step = schedule.log_every if link.part == "logging" else 1
            if per_step:
                part = _part(link, found[link.part], held, per_step)
                yield _no_more_than(part, loader) if link.part == "data" and not schedule.workers else part


def _part(link: Link, found: Difference | None, held: Outcomes, steps: int) -> StepPart:
    first = link.first(held)
    how = f"{first} less {link.less}" + (f", over {steps} steps" if steps > 1 else "")
    if found is None:
        return StepPart(link.part, None, None, None, 0, how, _missing(held, first, link.less))
    taken, note = (found.seconds / steps, "") if found.is_clear else (0.0, "no difference")
    return StepPart(link.part, taken, found.low / steps, found.high / steps, found.rounds, how, note)


def _no_more_than(part: StepPart, loader: LoaderAlone | None) -> StepPart:
    """Waiting for a loader without workers takes what it takes alone; what is beyond stays unexplained."""
    if loader is None or part.seconds is None or part.seconds <= loader.step_seconds:
        return part
    note = f"{short_seconds(part.seconds)} by difference, but the loader alone takes no more"
    return dataclasses.replace(part, seconds=loader.step_seconds, low=None, high=None, note=note)


def _missing(held: Outcomes, *names: str) -> str:
    for name in names:
        if not held[name].runs:
            return f"{name} failed: {held[name].failure}"
    return "the two have no step in common"


def _pauses(held: Outcomes, found: Mapping[str, Difference | None]) -> rec.PauseTimes:
    log = found.get("logging")
    return rec.PauseTimes(
        log_seconds=max(0.0, log.seconds) if log is not None and log.is_clear else None,
        evaluation_seconds=known_median(_all(held, "pauses", "evaluation_seconds")),
        save_seconds=known_median(_all(held, "pauses", "save_seconds")),
    )


def _pause_parts(outcome: VariantOutcome, pauses: rec.PauseTimes, schedule: IsolationSchedule) -> Iterator[StepPart]:
    evaluation = ("evaluation", "evaluation_seconds", schedule.evaluate_every)
    for name, field, every in (evaluation, ("checkpointing", "save_seconds", schedule.save_every)):
        if not every:
            continue
        how, each = f"pauses, over {counted(every, 'step')}", getattr(pauses, field)
        if each is None:
            yield StepPart(name, None, None, None, 0, how, outcome.failure or "it was not timed")
            continue
        timed = [one / every for run in outcome.runs for one in getattr(run, field)]
        yield StepPart(name, each / every, min(timed), max(timed), len(timed), how)


def _loader(held: Outcomes) -> LoaderAlone | None:
    runs, each = held["loader"].runs, _all(held, "loader")
    if not each:
        return None
    tokens = sum(_all(held, "loader", "step_tokens"))
    cpu = [run.cpu_seconds for run in runs if run.cpu_seconds is not None]
    return LoaderAlone(
        step_seconds=statistics.median(each),
        tokens_per_second=tokens / sum(each) if tokens else None,
        model_step_seconds=known_median(_all(held, "held_batches")),
        cpu_seconds=sum(cpu) / len(each) if len(cpu) == len(runs) else None,
    )


def _tokenisation(held: Outcomes) -> rec.TokenisationAlone | None:
    run = next(iter(held["tokenisation"].runs), None)
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
    took = {name: _all(held, name, "micro_batch_seconds") for name in _SIZES}
    tokens = {name: _all(held, name, "micro_batch_tokens") for name in _SIZES}
    names = [name for name in _SIZES if took[name]]
    if len(names) < 2 or "as_is" not in names:
        return None
    points = [one for name in names for one in took[name]]
    line = batch_time(np.array(points), np.array([one for name in names for one in tokens[name]]))
    if line is None:
        return None
    doubled = tokens["micro_batch_doubled"]
    return rec.MicroBatchLine(
        fixed_seconds=line.fixed_seconds,
        token_seconds=line.token_seconds,
        seconds=statistics.median(took["as_is"]),
        tokens=statistics.median(tokens["as_is"]),
        points=len(points),
        variants=names,
        doubled_positions=statistics.mean(doubled) / (2 * statistics.mean(tokens["as_is"])) if doubled else None,
    )


def _remarks(recipe: Recipe, held: Outcomes, schedule: IsolationSchedule) -> list[str]:
    found = []
    reports = recipe.train.get("report_to")
    if reports not in (None, "none", [], ["none"]):
        found.append(f"train.report_to was off, so that these runs are not published: what {reports} takes is left out")
    if recipe.efficiency.plan:
        found.append("a run also plans once, before its first step")
    if schedule.processes > 1 and schedule.device == "cpu":
        found.append("processes on one CPU share its memory and caches: communication holds what that costs")
    if any((run.examples or 0) >= MOST_EXAMPLES for run in held["tokenisation"].runs):
        found.append(f"tokenisation is of {MOST_EXAMPLES:,} examples, drawn from all")
    middles = [statistics.median(run.step_seconds) for run in held["as_is"].runs if run.step_seconds]
    if (ratio := max(middles) / min(middles)) > _MUCH_DRIFT:
        found.append(
            f"the recipe as it is took {ratio:.2f} times as long in one round as in another. Something else uses this "
            "machine, and spreads are wide: run it alone, or with more --steps"
        )
    tokens = {name: sum(held[name].runs[0].step_tokens) for name in ("as_is", *_SAME_BATCHES) if held[name].runs}
    other = [name for name, count in tokens.items() if count and tokens["as_is"] not in (0, count)]
    if other:
        found.append(f"the batches of {', '.join(other)} were not those of the recipe as it is")
    return found
