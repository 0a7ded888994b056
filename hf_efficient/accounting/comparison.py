"""Runs against a first one: what changed, each figure's difference beside its noise, and what is worse than allowed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hf_efficient.accounting import live as figures_of
from hf_efficient.errors import OutputError
from hf_efficient.estimate.significance import (
    ERROR,
    FEWEST_STEPS,
    Steps,
    compared_runs,
    compared_steps,
    needed,
    visible,
)
from hf_efficient.estimate.statistics import WARM_UP_STEPS, fewest_runs, known_median
from hf_efficient.recipe.load import differing_keys
from hf_efficient.records import comparison as rec
from hf_efficient.text import counted, size
from hf_efficient.version import __version__

BY_STEPS = (figures_of.THROUGHPUT, "step_p50_seconds", "step_p95_seconds", figures_of.TRAINING_LOSS)
_LOSSES = ("loss_before", "loss_after", "training_loss", figures_of.EVALUATION_LOSS, figures_of.TRAINING_LOSS)
_OF_THE_SPEED = ("mfu", "hfu", "training_seconds")
_LAST = {figures_of.EVALUATION_LOSS: "loss_after", figures_of.TRAINING_LOSS: "training_loss"}
_BY_TOKEN = ("non_padding_tokens", figures_of.THROUGHPUT, "usd_per_million_non_padding_tokens")
_MODEL = ("model.id", "model.revision", "model.gguf_file")
_ORDER = (
    "data.train", "data.targets", "train.seed", "train.data_seed", "train.packing", "train.train_sampling_strategy",
)  # fmt: skip
"""Keys of the data and of their order, by which steps of the same number hold the same batches."""
_NO_CHANGE = ("output_dir", "existing_output", "name", "description", "efficiency.confirms")
_SETTINGS = ("arguments", "model", "optimizer")
_NO_SETTING = ("output_dir", "logging_dir", "run_name", "hub_model_id", "bfloat16_weights")
_VERSIONS = ("python", "driver", "cuda", "git_commit", "git_dirty")


def letter(place: int) -> str:
    return chr(ord("A") + place)


def compare_runs(sides: Sequence[Sequence[figures_of.ComparedRun]]) -> rec.RunComparison:
    """Each side, a run or several of one recipe, against the first. Raises ``OutputError``: runs of one side have
    different recipes."""
    runs = [[figures_of.ComparedSteps(one) for one in side] for side in sides]
    letters = list(map(letter, range(len(runs))))
    for name, side in zip(letters, sides, strict=True):
        found = differing_keys([one.recipe for one in side if one.recipe is not None])
        differing = [key for key in found if not key.startswith(_NO_CHANGE)]
        if differing:
            raise OutputError(
                f"{','.join(one.directory for one in side)}: repeated runs of {name} have one recipe, and these differ "
                f"in {', '.join(differing[:3])}. Put a space in place of the comma to compare them."
            )
    firsts = [side[0].held for side in runs]
    changed = list(_changed(firsts))
    left_out = _not_shared(firsts, changed)
    until = figures_of.until_of([one for side in runs for one in side])
    pairs = [_Pair(runs[0], side, changed, place, until) for place, side in enumerate(runs) if place]
    known = [[one.figures(until) for one in side] for side in runs]
    names = [name for name in known[0][0] if name not in left_out]
    figures = (_figure(name, [[one[name] for one in side] for side in known], pairs) for name in names)
    return rec.RunComparison(
        schema_version=rec.COMPARISON_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        sides=[_side(name, side) for name, side in zip(letters, runs, strict=True)],
        changed=changed,
        figures=[one for one in figures if any(value is not None for value in one.values)],
        left_out=left_out,
        resolution=[found for pair in pairs for found in pair.resolution()],
        notes=[*_notes(runs, letters), *(note for pair in pairs for note in pair.notes())],
        regressions=[],
    )


def _side(name: str, side: Sequence[figures_of.ComparedSteps]) -> rec.ComparedSide:
    held = [one.held for one in side]
    return rec.ComparedSide(
        name, held[0].name, [one.directory for one in held], [one.account.ended for one in held], len(side[0].measured)
    )


def _changed(runs: Sequence[figures_of.ComparedRun]) -> Iterator[rec.Changed]:
    recipes = [run.recipe for run in runs]
    known = [recipe for recipe in recipes if recipe is not None]
    for key, found in differing_keys(known).items():
        if not key.startswith(_NO_CHANGE):
            values = iter(found)
            each = [None if recipe is None else next(values) for recipe in recipes]
            yield rec.Changed("data" if key.startswith("data.") else "recipe", key, each)
    if len(known) < len(runs):
        yield from _changed_settings(runs)
    held = [{**_flat(run.environment), "processes": str(max(1, len(run.account.ranks)))} for run in runs]
    for key in dict.fromkeys(key for each in held for key in each):
        values_of = [each.get(key) for each in held]
        if len({value for value in values_of if value is not None}) > 1:
            is_version = key in _VERSIONS or key.startswith("versions.")
            yield rec.Changed("version" if is_version else "hardware", key.removeprefix("versions."), values_of)


def _changed_settings(runs: Sequence[figures_of.ComparedRun]) -> Iterator[rec.Changed]:
    """Of runs of which one has no recipe: training arguments, by their keys in a recipe, and what was noted beside."""
    sides: list[dict[str, Any]] = []
    for run in runs:
        parts = {"train" if part == "arguments" else part: run.settings.get(part) or {} for part in _SETTINGS}
        sides.append({f"{part}.{key}": value for part, held in parts.items() for key, value in held.items()})
    for key in dict.fromkeys(key for side in sides for key in side):
        values = [side.get(key) for side in sides]
        if not key.endswith(_NO_SETTING) and all(sides) and any(value != values[0] for value in values):
            yield rec.Changed("setting", key, [None if value is None else str(value) for value in values])


def _flat(environment: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in environment.items():
        if key == "versions":
            found |= {f"versions.{name}": str(one) for name, one in (value or {}).items() if one is not None}
        elif key == "gpus":
            names = [str(one.get("name")) for one in value or ()]
            found |= {"GPUs": ", ".join(names)} if names else {}
        elif value is not None:
            found[key] = size(value) if key == "memory_bytes" else str(value)
    return found


def _not_shared(runs: Sequence[figures_of.ComparedRun], changed: Sequence[rec.Changed]) -> dict[str, str]:
    """Figures that mean something else in one of the runs, and why."""
    keys = {one.key for one in changed if one.kind in ("recipe", "data")}
    sizes = [run.settings.get("model", {}).get("vocabulary_size") for run in runs]
    vocabularies = {one for one in sizes if one is not None}
    found = {}
    if len(vocabularies) > 1 or keys & set(_MODEL):
        found = dict.fromkeys((*_LOSSES, *_BY_TOKEN), "the models differ, and so may what a token is")
    elif "objective" in keys:
        found = dict.fromkeys(_LOSSES, "the objectives differ")
    else:
        if any(key.startswith(("data.train", "data.targets")) for key in keys):
            found |= dict.fromkeys(("training_loss", figures_of.TRAINING_LOSS), "the training data differ")
        if any(key.startswith(("data.eval", "data.targets")) for key in keys):
            found |= dict.fromkeys(
                ("loss_before", "loss_after", figures_of.EVALUATION_LOSS), "the evaluation data differ"
            )
    known = [figures_of.headline(run.account, run.series) for run in runs]
    return {name: why for name, why in found.items() if any(each[_LAST.get(name, name)] is not None for each in known)}


@dataclass(frozen=True)
class _Pair:
    first: Sequence[figures_of.ComparedSteps]
    other: Sequence[figures_of.ComparedSteps]
    changed: Sequence[rec.Changed]
    place: int
    until: figures_of.Until

    @property
    def is_repeated(self) -> bool:
        return len(self.first) > 1 or len(self.other) > 1

    @cached_property
    def places(self) -> tuple[figures_of.Places, figures_of.Places] | None:
        """Rows of the steps that have the same batches in both runs; None where not all common ones have."""
        left, right = self.first[0], self.other[0]
        common, mine, its = np.intersect1d(
            left.rows.step[left.measured], right.rows.step[right.measured], return_indices=True
        )
        first, second = left.measured[mine], right.measured[its]
        tokens = left.tokens[first]
        if not len(common) or not np.array_equal(tokens, right.tokens[second]):
            return None
        differing = (one.key for one in self.changed if one.values[0] != one.values[self.place])
        if any(key.startswith(_ORDER) for key in differing):
            return None
        has_recipes = left.held.recipe is not None and right.held.recipe is not None
        return (first, second) if has_recipes or len(np.unique(tokens)) > 1 else None

    @cached_property
    def by_steps(self) -> dict[str, rec.Compared]:
        """What the steps show; a claim of any of them is wrong with ``ERROR`` at most."""
        if self.is_repeated:
            return {}
        error = ERROR / len(BY_STEPS)
        left, right = self.first[0], self.other[0]
        first, second = self.places or (left.measured, right.measured)
        found: dict[str, rec.Compared | None] = {}
        found |= compared_speed(left.steady(first), right.steady(second), paired=self.places is not None, error=error)
        mine, its = (side[0].losses(self.until.trained) for side in (self.first, self.other))
        if mine is not None and its is not None:
            paired = self.places is not None and np.array_equal(mine[0], its[0])
            found[figures_of.TRAINING_LOSS] = compared_steps(mine[1], its[1], paired=paired, of="mean", error=error)
        return {name: one for name, one in found.items() if one is not None}

    @cached_property
    def is_as_fast(self) -> bool:
        found = [self.by_steps[name] for name in BY_STEPS[:2] if name in self.by_steps]
        return bool(found) and not any(one.differs for one in found)

    def resolution(self) -> Iterator[rec.Resolution]:
        name = next((one for one in (figures_of.THROUGHPUT, "step_p50_seconds") if one in self.by_steps), None)
        if name is None:
            return
        found = self.by_steps[name]
        share, steps = visible(found), needed(found, 0.01)
        if share and steps:
            yield rec.Resolution(letter(self.place), name, share, found.count, steps)

    def notes(self) -> Iterator[str]:
        name = letter(self.place)
        if self.is_repeated:
            fewest, held = fewest_runs(), [len(self.first), len(self.other)]
            if min(held) < fewest:
                yield f"A and {name}: {held[0]} and {held[1]} runs are too few; a difference shows from {fewest} each"
        elif self.by_steps:
            how = "in pairs, as both have the same batches"
            if self.places is None:
                how = "of each run alone, as their batches differ"
            yield f"A and {name}: steps {how}; circular block bootstrap"


def compared_speed(before: Steps, after: Steps, *, paired: bool, error: float = ERROR / 3) -> dict[str, rec.Compared]:
    """Throughput, median and p95 of steps after warm-up, with their tokens where each has some. Any of them is claimed
    to differ, where none does, with three times ``error`` at most."""
    found: dict[str, rec.Compared | None] = {}
    if all(one.per is not None and (one.per > 0).all() for one in (before, after)):
        rates = compared_steps(before, after, paired=paired, of="mean", error=error)
        found[figures_of.THROUGHPUT] = None if rates is None else _inverse(rates)
    alone = Steps(before.seconds), Steps(after.seconds)
    found["step_p50_seconds"] = compared_steps(*alone, paired=paired, of="median", error=error)
    found["step_p95_seconds"] = compared_steps(*alone, paired=paired, of="p95", error=error)
    return {name: one for name, one in found.items() if one is not None}


def _inverse(found: rec.Compared) -> rec.Compared:
    """Of seconds per token, tokens per second."""
    low, high = (None if bound is None else 1 / bound for bound in (found.high, found.low))
    return replace(found, before=1 / found.before, after=1 / found.after, ratio=1 / found.ratio, low=low, high=high)


def _figure(name: str, known: Sequence[Sequence[float | None]], pairs: Sequence[_Pair]) -> rec.ComparedFigure:
    values = [known_median(side) for side in known]
    changes: list[rec.FigureChange | None] = [None]
    for pair in pairs:
        found = pair.by_steps.get(name)
        if pair.is_repeated:
            before, after = ([one for one in known[place] if one is not None] for place in (0, pair.place))
            found = compared_runs(before, after) if min(before, default=0) > 0 and min(after, default=0) > 0 else None
        changes.append(_change(name, values[0], values[pair.place], found, pair))
    return rec.ComparedFigure(name, figures_of.BETTER.get(name, ""), values, changes)


def _change(
    name: str, before: float | None, after: float | None, found: rec.Compared | None, pair: _Pair
) -> rec.FigureChange:
    relative = after / before - 1 if before and after is not None else None
    if found is not None:
        relative = found.ratio - 1
    counts = {one.held.account.steps.count for side in (pair.first, pair.other) for one in side}
    of_other_lengths = len(counts) > 1 and name in (*figures_of.TOTALS, "loss_after")
    way = figures_of.BETTER.get(name)
    judged: rec.Judgement = ""
    if relative is None or of_other_lengths:
        return rec.FigureChange(relative, "", found)
    if way is not None and found is not None:
        judged = "alike" if not found.differs else "better" if (relative > 0) == (way == "more") else "worse"
    if name in _OF_THE_SPEED and pair.is_as_fast:
        judged = "alike"
    return rec.FigureChange(relative, judged, found)


def _notes(runs: Sequence[Sequence[figures_of.ComparedSteps]], letters: Sequence[str]) -> Iterator[str]:
    for name, side in zip(letters, runs, strict=True):
        for one in side:
            account, count = one.held.account, len(one.measured)
            if one.held.recipe is None:
                yield f"{name} has no recipe beside its records: changes of its data and its code are not known"
            if account.ended != "done":
                of = counted(account.steps.count, "step")
                yield f"{name} did not end by itself ({account.ended}): its totals are of {of}"
            if not one.held.steps or not len(one.rows):
                yield f"{name} has no records of its steps: no spread, and its throughput is with the warm-up"
            elif count < FEWEST_STEPS:
                yield (
                    f"{name} has {counted(count, 'step')} after warm-up, too few for a spread: train "
                    f"{FEWEST_STEPS + WARM_UP_STEPS} steps or more"
                )
    if all(len(side) == 1 for side in runs):
        yield (
            "one run a side: the noise is that of steps; what differs from process to process shows in repeated runs, "
            "RUN_A,RUN_A2,RUN_A3,RUN_A4"
        )


def figure_names(found: rec.RunComparison) -> dict[str, str]:
    """Names that ``--threshold`` takes, short ones too, and the figure of each."""
    names = {one.name: one.name for one in found.figures if one.better}
    memory = next((one for one in ("device_peak_allocated_bytes", "peak_rss_bytes") if one in names), "peak_rss_bytes")
    short = {"tokens_per_second": figures_of.THROUGHPUT, "usd_per_million_tokens": "usd_per_million_non_padding_tokens"}
    return {**names, **{name: one for name, one in {**short, "peak_memory": memory}.items() if one in names}}


def with_regressions(found: rec.RunComparison, allowed: Mapping[str, float]) -> rec.RunComparison:
    """Figures that are worse than A's by more than a share allows, by ``figure_names``; one with a spread has to lie
    outside the noise too. Raises ``OutputError``: a side lacks the figure, or has too few steps for its spread."""
    names, regressions, notes = figure_names(found), [], list(found.notes)
    for given, most in allowed.items():
        figure = next((one for one in found.figures if one.name == names.get(given)), None)
        if figure is None:
            why = "these runs have no such figure that can be better or worse"
            if given in found.left_out:
                why = f"it is not compared: {found.left_out[given]}"
            raise OutputError(f"--threshold {given}: {why}. {_known_names(found)}")
        for side, value, change in zip(found.sides, figure.values, figure.changes, strict=True):
            if value is None or figure.values[0] is None:
                lacking = "A" if figure.values[0] is None else side.letter
                raise OutputError(f"--threshold {given}: {lacking} has no such figure. {_known_names(found)}")
            if change is None or change.relative is None:
                continue
            compared = change.compared
            if compared is None and figure.name in BY_STEPS[:3]:
                raise OutputError(
                    f"--threshold {given}: {counted(min(found.sides[0].steps, side.steps), 'step')} after warm-up: too "
                    f"few. Train {FEWEST_STEPS + WARM_UP_STEPS} steps or more on each side."
                )
            worse = -change.relative if figure.better == "more" else change.relative
            if worse > most and change.judgement != "alike":
                regressions.append(rec.Regression(side.letter, figure.name, change.relative, most))
            elif compared is not None and change.judgement == "alike" and (visible(compared) or 0) > most > 0:
                notes.append(
                    f"{side.letter}, {given}: {most:.2%} may hide in the noise; {needed(compared, most):,} steps on "
                    "each side would show it"
                )
    return replace(found, regressions=regressions, notes=notes)


def _known_names(found: rec.RunComparison) -> str:
    return f"Write one of {', '.join(sorted(figure_names(found)))}."
