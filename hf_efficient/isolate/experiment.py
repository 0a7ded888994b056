"""Which variants run, in which order, how often: all once, then again those whose differences are small."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from hf_efficient.errors import SetupError
from hf_efficient.estimate.attribution import CHAIN, ChainTimes, attribute, link_difference
from hf_efficient.estimate.differences import MOST_ROUNDS, wants_another_round
from hf_efficient.isolate.run_variant import VariantFailed
from hf_efficient.isolate.variant import Variant
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.isolation import VariantMeasurement, VariantOutcome

__all__ = ["Progress", "RunVariant", "chain_times", "run_variants"]

RunVariant = Callable[[Variant], VariantMeasurement]
"""Runs a variant once; raises VariantFailed."""

_BASE = "as_is"


class Progress(Protocol):
    """Is told how the variants go."""

    def begins(self, variant: Variant, number: int, of: int, round_number: int) -> None:
        """A variant runs, the ``number``-th of ``of`` in this round, from 1."""

    def ends(self, variant: Variant, seconds: float, failure: str) -> None:
        """It ran so long, or failed: ``failure`` says why."""


def run_variants(
    variants: Sequence[Variant], recipe: Recipe, run: RunVariant, progress: Progress
) -> list[VariantOutcome]:
    """Run those that apply, in order; then, backwards and forwards, those whose differences are not clear enough.

    Args:
        variants: the first is the recipe as it is.
        recipe: the user's.
        run: a variant, once.
        progress: is told.

    Raises:
        SetupError: the recipe as it is does not train: nothing could be compared with it.
    """
    outcomes = {one.name: VariantOutcome(one.name, one.what, left_out=one.left_out(recipe)) for one in variants}
    by_name = {one.name: one for one in variants}
    wanted = [one for one in variants if not outcomes[one.name].left_out]
    for number in range(1, MOST_ROUNDS + 1):
        _round(wanted, outcomes, run, progress, number)
        again = _again(outcomes.values())
        if not again:
            break
        wanted = [by_name[name] for name in outcomes if name in again]
        if number % 2:  # the order alternates, so that a machine that slows down weighs on all alike
            wanted.reverse()
    return list(outcomes.values())


def _round(
    wanted: Sequence[Variant],
    outcomes: dict[str, VariantOutcome],
    run: RunVariant,
    progress: Progress,
    round_number: int,
) -> None:
    for number, variant in enumerate(wanted, 1):
        progress.begins(variant, number, len(wanted), round_number)
        began, failure, held = time.monotonic(), "", outcomes[variant.name]
        try:
            measured = run(variant)
        except VariantFailed as error:
            failure = str(error)
            outcomes[variant.name] = dataclasses.replace(held, failure=failure)
        else:
            outcomes[variant.name] = dataclasses.replace(held, runs=[*held.runs, measured])
        progress.ends(variant, time.monotonic() - began, failure)
        if variant.name == _BASE and not outcomes[_BASE].runs:
            raise SetupError(f"--isolate: the recipe as it is does not train: {failure}")


def _again(outcomes: Iterable[VariantOutcome]) -> set[str]:
    """Names of those of which another round may change what is said."""
    held = list(outcomes)
    failed = {one.name for one in held if one.failure}
    times = chain_times(held)
    whole = attribute(times).plain_seconds
    again: set[str] = set()
    for link in CHAIN:
        found = link_difference(link, times)
        if found is not None and wants_another_round(found, whole):
            first = next(name for name in link.more if name not in times.left_out)
            again |= {first, link.less}
    return again - failed


def chain_times(outcomes: Iterable[VariantOutcome]) -> ChainTimes:
    """What the chain is made of."""
    held = {one.name: one for one in outcomes}
    return ChainTimes(
        seconds={
            name: [run.step_seconds for run in one.runs]
            for name, one in held.items()
            if one.runs and any(run.step_seconds for run in one.runs)
        },
        left_out=frozenset(name for name, one in held.items() if one.left_out),
        logged=[run.step_logged for run in held[_BASE].runs] if _BASE in held else [],
    )
