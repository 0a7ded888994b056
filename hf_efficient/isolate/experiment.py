"""Which variants run, in which order, how often; and one run of a variant, in processes that do not outlive it."""

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hf_efficient.errors import SetupError
from hf_efficient.estimate import comparison as estimate
from hf_efficient.estimate.comparison import ChainTimes
from hf_efficient.isolate.variants import Variant
from hf_efficient.isolate.worker import MEASUREMENT
from hf_efficient.launch.command import accelerate_command, layout_of
from hf_efficient.launch.exits import ended
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.isolation import VariantMeasurement, VariantOutcome

_WORKER = "hf_efficient.isolate.worker"
_SAID = 400
_BASE = "as_is"


class VariantFailed(Exception):
    """A run of a variant came to no end; ``str`` says why."""


@dataclass(frozen=True)
class Launch:
    """How the variants of a resolved recipe are launched; ``steps`` are measured after ``warm_up`` others."""

    recipe: Recipe
    argument: str  # the recipe as the user wrote it, as are the overrides
    overrides: Sequence[str]
    steps: int
    warm_up: int
    parent: Path  # in which each run makes a folder of its own
    device_count: int  # accelerators of this machine, for ``distributed.processes: auto``
    cores: int  # that all processes share

    @property
    def processes(self) -> int:
        said = self.recipe.distributed.processes
        return max(1, self.device_count) if said == "auto" else said

    @property
    def threads(self) -> int:
        """That each process computes with; one that is alone gets no more, or it would not be the same computation."""
        return max(1, self.cores // self.processes)

    def command(self, variant: Variant, folder: Path) -> list[str]:
        """What measures a variant: several processes by accelerate; one needs no launcher, which would import torch."""
        share = self.processes if variant.one_process else 1
        options = [f"--variant={variant.name}", f"--steps={self.steps}", f"--warm-up={self.warm_up}"]
        options += [f"--share={share}", f"--folder={folder}"]
        if self.processes == 1 or variant.one_process:
            return [sys.executable, "-m", _WORKER, self.argument, *self.overrides, *options]
        layout = layout_of(self.recipe, device_count=self.device_count, cores=self.cores)
        return accelerate_command(self.recipe, self.argument, [*self.overrides, *options], layout, module=_WORKER)


def run_variant(variant: Variant, launch: Launch) -> VariantMeasurement:
    """Run it once, and wait for it; ``VariantFailed``, with what it said, where it failed."""
    with tempfile.TemporaryDirectory(prefix=f"{variant.name}-", dir=launch.parent) as name:
        folder = Path(name)
        said = folder / "said.txt"
        with said.open("wb") as output:
            code = run_to_end(launch.command(variant, folder), launch.threads, output.fileno())
        try:
            held = msgspec.json.decode((folder / MEASUREMENT).read_bytes())
        except (OSError, ValueError):
            raise VariantFailed(why_ended(code, said)) from None
        if "failure" in held:
            raise VariantFailed(str(held["failure"]))
        return msgspec.convert(held, VariantMeasurement)


def run_to_end(command: list[str], threads: int, output: int, **variables: str) -> int:
    """Its exit code; on the way out, whatever the way, none of its processes is left. ``variables``: more of its
    environment."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **variables}  # as accelerate's launcher says it
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
    launcher = subprocess.Popen(command, **streams, env=environment, start_new_session=True)
    with ended(launcher):
        return launcher.wait()


def why_ended(code: int, said: Path) -> str:
    """Why a process that left no reason ended, as far as it can be found out."""
    if code in (-9, 137):
        return "it was killed, perhaps because memory ran out"
    lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if any("SIGKILL" in line or "Signal 9" in line for line in lines):
        return "a process of it was killed, perhaps because memory ran out"
    return f"exit code {code}{': ' + lines[-1].strip()[:_SAID] if lines else ', and it said nothing'}"


class Progress(Protocol):
    """Hears how the variants go."""

    def begins(self, variant: Variant, number: int, of: int, round_number: int) -> None:
        """A variant runs, the ``number``-th of ``of`` in this round, from 1."""

    def ends(self, variant: Variant, seconds: float, failure: str) -> None:
        """It ran so long, or failed: ``failure`` says why."""


RunVariant = Callable[[Variant], VariantMeasurement]  # runs a variant once; raises VariantFailed


def run_variants(
    variants: Sequence[Variant], recipe: Recipe, run: RunVariant, progress: Progress
) -> list[VariantOutcome]:
    """Run those that apply, in order; then, backwards and forwards, those whose differences are not clear enough.
    ``SetupError`` where the first variant, the recipe as it is, does not train."""
    outcomes = {one.name: VariantOutcome(one.name, one.what, left_out=one.left_out(recipe)) for one in variants}
    by_name = {one.name: one for one in variants}
    wanted = [one for one in variants if not outcomes[one.name].left_out]
    for number in range(1, estimate.MOST_ROUNDS + 1):
        _round(wanted, outcomes, run, progress, number)
        again = _again(outcomes.values())
        if not again:
            break
        wanted = [by_name[name] for name in outcomes if name in again]
        if number % 2:  # the order alternates, so that a machine that slows down weighs on all alike
            wanted.reverse()
    return list(outcomes.values())


def _round(
    wanted: Sequence[Variant], outcomes: dict[str, VariantOutcome], run: RunVariant, progress: Progress, of: int
) -> None:
    for number, variant in enumerate(wanted, 1):
        progress.begins(variant, number, len(wanted), of)
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
            raise SetupError(f"isolate: the recipe as it is does not train: {failure}")


def _again(outcomes: Iterable[VariantOutcome]) -> set[str]:
    held = list(outcomes)
    times = chain_times(held)
    whole = estimate.attribute(times).plain_seconds
    again: set[str] = set()
    for link in estimate.CHAIN:
        found = estimate.link_difference(link, times)
        if found is not None and estimate.wants_another_round(found, whole):
            first = next(name for name in link.more if name not in times.left_out)
            again |= {first, link.less}
    return again - {one.name for one in held if one.failure}


def chain_times(outcomes: Iterable[VariantOutcome]) -> ChainTimes:
    held = {one.name: one for one in outcomes}
    seconds = {name: [run.step_seconds for run in one.runs] for name, one in held.items()}
    return ChainTimes(
        seconds={name: runs for name, runs in seconds.items() if any(runs)},
        left_out=frozenset(name for name, one in held.items() if one.left_out),
        logged=[run.step_logged for run in held[_BASE].runs] if _BASE in held else [],
    )
