"""Instruments that could not do what the recipe asks of them, the records that they would read, rates and budget."""

import re
from collections.abc import Iterator
from typing import Any

from hf_efficient.errors import SetupError
from hf_efficient.facts.libraries import is_installed
from hf_efficient.facts.prices import Rates
from hf_efficient.recipe.rules.settings import Contradiction, Settings, rule
from hf_efficient.recipe.schema import ProfileSection

_AFTER = 4  # steps that line times and host memory let go by
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
"""package.module:function or package.module:Class.method."""


@rule("budget", "efficiency.confirms", "profile", "efficiency.record_steps")
def what_reads_records_has_some(settings: Settings) -> Iterator[Contradiction]:
    """What a run spends, takes, and what an instrument costs is all counted from the records of the run."""
    recipe = settings.recipe
    if recipe.efficiency.record_steps:
        return
    without = "is set, but `efficiency.record_steps: false`"
    remedy = "Remove it, or the false."
    if recipe.budget is not None:
        yield "budget", f"{without} records nothing that could be counted.", remedy
    if recipe.efficiency.confirms is not None:
        yield "efficiency.confirms", f"{without} keeps no record to compare.", remedy
    if recipe.profile != ProfileSection():
        yield "profile", f"{without} keeps no record that shows what it costs.", remedy


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


@rule("budget")
def budget_has_a_limit(settings: Settings) -> Iterator[Contradiction]:
    budget = settings.recipe.budget
    if budget is not None and budget.usd is None and budget.hours is None and budget.kwh is None:
        yield "budget", "has no limit.", "Write usd, hours or kwh, or remove it."
