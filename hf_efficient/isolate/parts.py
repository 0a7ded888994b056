"""Differences of variants as the parts of an optimizer step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from hf_efficient.estimate.attribution import CHAIN, Link, StepAttribution
from hf_efficient.estimate.differences import Difference
from hf_efficient.records.isolation import IsolationSchedule, LoaderAlone, PauseTimes, StepPart, VariantOutcome
from hf_efficient.units import short_seconds

__all__ = ["NO_DIFFERENCE", "pause_parts", "step_parts"]

NO_DIFFERENCE = "no difference"


def step_parts(
    found: StepAttribution,
    held: Mapping[str, VariantOutcome],
    schedule: IsolationSchedule,
    loader: LoaderAlone | None,
) -> Iterator[StepPart]:
    """The forward, and every link of the chain that applies to the recipe.

    Args:
        found: of a typical step.
        held: the variants by name.
        schedule: tells how many steps a log is for.
        loader: alone; None where it was not measured.
    """
    runs = len(held["forward"].runs) if "forward" in held else 0
    note = "" if found.forward_seconds is not None else _missing(held, "forward")
    yield StepPart("forward", found.forward_seconds, None, None, runs, "forward", note)
    for link in reversed(CHAIN):
        if link.part in found.differences:
            per_step = schedule.log_every if link.part == "logging" else 1
            if per_step:
                part = _part(link, found.differences[link.part], held, per_step)
                yield _no_more_than(part, loader) if link.part == "data" and not schedule.workers else part


def _part(link: Link, found: Difference | None, held: Mapping[str, VariantOutcome], steps: int) -> StepPart:
    first = next((name for name in link.more if not held[name].left_out), link.more[0])
    how = f"{first} less {link.less}" + (f", over {steps} steps" if steps > 1 else "")
    if found is None:
        return StepPart(link.part, None, None, None, 0, how, _missing(held, first, link.less))
    seconds = found.seconds / steps if found.is_clear else 0.0
    note = "" if found.is_clear else NO_DIFFERENCE
    return StepPart(link.part, seconds, found.low / steps, found.high / steps, found.rounds, how, note)


def _no_more_than(part: StepPart, loader: LoaderAlone | None) -> StepPart:
    """Waiting for a loader that has no workers takes what it takes alone; a larger difference has another cause.

    Two processes that ran at different speeds, for instance: the rest stays unexplained.
    """
    if loader is None or part.seconds is None or part.seconds <= loader.step_seconds:
        return part
    note = f"{short_seconds(part.seconds)} by difference, but the loader alone takes no more"
    return dataclasses.replace(part, seconds=loader.step_seconds, low=None, high=None, note=note)


def pause_parts(outcome: VariantOutcome | None, pauses: PauseTimes, schedule: IsolationSchedule) -> Iterator[StepPart]:
    """Evaluations and saves, each step with its share of them.

    Args:
        outcome: of the variant that times them.
        pauses: what one of each takes.
        schedule: tells how many steps one is for.
    """
    each = (
        ("evaluation", pauses.evaluation_seconds, schedule.evaluate_every),
        ("checkpointing", pauses.save_seconds, schedule.save_every),
    )
    for name, seconds, every in each:
        if not every or outcome is None:
            continue
        how = f"pauses, over {every} steps"
        if seconds is None:
            yield StepPart(name, None, None, None, 0, how, outcome.failure or "it was not timed")
            continue
        timed = [
            one / every
            for run in outcome.runs
            for one in (run.evaluation_seconds if name == "evaluation" else run.save_seconds)
        ]
        yield StepPart(name, seconds / every, min(timed), max(timed), len(timed), how)


def _missing(held: Mapping[str, VariantOutcome], *names: str) -> str:
    for name in names:
        one = held.get(name)
        if one is None or not one.runs:
            return f"{name} {'was not run' if one is None else f'failed: {one.failure}'}"
    return "the two have no step in common"
