"""What a run costs and how dirty its electricity is: names that the tables do not hold.

A budget that could not be kept.

A prediction that could not be tested.

Instruments that could not do what the recipe asks of them.
"""

from __future__ import annotations

import re

from hf_efficient.errors import SetupError
from hf_efficient.facts.energy import grid_intensities, grid_intensity
from hf_efficient.facts.libraries import is_installed
from hf_efficient.facts.prices import prices, providers
from hf_efficient.facts.tables import plain
from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads
from hf_efficient.recipe.schema import ProfileSection
from hf_efficient.recipe.tree import any_of, nearest


@reads("efficiency.price_usd_per_hour", "efficiency.price_from")
def one_price(settings: Settings) -> list[Contradiction]:
    """What the user pays, or a provider's list price."""
    section = settings.recipe.efficiency
    if section.price_usd_per_hour is None or section.price_from is None:
        return []
    message = "is set, and so is `efficiency.price_usd_per_hour`."
    return [("efficiency.price_from", message, "Keep one of the two; null takes an inherited value back.")]


@reads("efficiency.price_from", "efficiency.market")
def provider_is_known(settings: Settings) -> list[Contradiction]:
    """The price table holds the provider, and an offer of it in this market."""
    section = settings.recipe.efficiency
    if section.price_from is None:
        return []
    wanted = plain(section.price_from)
    if wanted not in map(plain, providers()):
        message = f"is {section.price_from}, which is no provider with known prices."
        return [("efficiency.price_from", message, _meant(section.price_from, providers()))]
    if not any(plain(offer.provider) == wanted and offer.market == section.market for offer in prices()):
        message = f"is {section.market}, but no such price of {section.price_from} is known."
        remedy = "Write on_demand, or `efficiency.price_usd_per_hour` in place of `efficiency.price_from`."
        return [("efficiency.market", message, remedy)]
    return []


@reads("efficiency.grid")
def grid_is_known(settings: Settings) -> list[Contradiction]:
    """The grid table holds the country."""
    grid = settings.recipe.efficiency.grid
    try:
        grid_intensity(grid)
    except SetupError:
        names = [name for held in grid_intensities() for name in (held.name, *held.aliases)]
        message = f"is {grid}, which is no country with a known grid."
        return [("efficiency.grid", message, _meant(str(grid), names, "or a number of gCO2e/kWh"))]
    return []


def _meant(name: str, known: tuple[str, ...] | list[str], otherwise: str = "") -> str:
    close = nearest(name, known)
    if close is not None:
        return f"Did you mean {close}?"
    if otherwise:
        return f"Write a country's English name or its ISO code, {otherwise}."
    return f"Write {any_of(known)}; or `efficiency.price_usd_per_hour` in its place."


@reads("efficiency.budget")
def budget_has_a_limit(settings: Settings) -> list[Contradiction]:
    """``budget: {}``."""
    budget = settings.recipe.efficiency.budget
    if budget is None or any(value is not None for value in (budget.usd, budget.hours, budget.kwh)):
        return []
    return [("efficiency.budget", "has no limit.", "Write usd, hours or kwh, or remove it.")]


@reads("efficiency.budget", "efficiency.record_steps")
def budget_counts_records(settings: Settings) -> list[Contradiction]:
    """What a run spends is counted from its records."""
    efficiency = settings.recipe.efficiency
    if efficiency.budget is None or efficiency.record_steps:
        return []
    message = "is set, but `efficiency.record_steps: false` records nothing that could be counted."
    return [("efficiency.budget", message, "Remove it, or the false.")]


@reads("efficiency.confirms", "efficiency.record_steps")
def confirming_reads_records(settings: Settings) -> list[Contradiction]:
    """What a run took is told by its records."""
    efficiency = settings.recipe.efficiency
    if efficiency.confirms is None or efficiency.record_steps:
        return []
    message = "is set, but `efficiency.record_steps: false` keeps no record that it could be told by."
    return [("efficiency.confirms", message, "Remove it, or the false.")]


_PROFILE = "efficiency.profile"
_AFTER = 4
"""Steps that line times and host memory let go by."""
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@reads("efficiency.profile", "efficiency.record_steps")
def profile_counts_records(settings: Settings) -> list[Contradiction]:
    """What an instrument costs is told in the records of the run."""
    efficiency = settings.recipe.efficiency
    if efficiency.record_steps or efficiency.profile == ProfileSection():
        return []
    message = "is set, but `efficiency.record_steps: false` keeps no record that could tell what it costs."
    return [(_PROFILE, message, "Remove it, or the false.")]


@reads("efficiency.profile", "train.max_steps")
def profiled_steps_are_trained(settings: Settings) -> list[Contradiction]:
    """A schedule that begins after the last step writes nothing."""
    profile, last = settings.recipe.efficiency.profile, settings.train("max_steps")
    if not isinstance(last, int) or last <= 0:
        return []
    wanted: list[tuple[str, int, str]] = []
    if profile.trace is not None:
        first_kept = profile.trace.wait + profile.trace.warmup + 1
        wanted.append(("trace", first_kept, "Write a smaller wait or warmup"))
    if profile.memory is not None:
        wanted += [
            (f"memory.at_steps.{i}", step, "Write a smaller one") for i, step in enumerate(profile.memory.at_steps)
        ]
    if profile.python is not None:
        wanted.append(("python.after_step", profile.python.after_step + 1, "Write a smaller one"))
    wanted += [(key, _AFTER + 1, "Remove it") for key in ("lines", "host_memory") if getattr(profile, key)]
    if profile.capture is not None:
        wanted.append(("capture.after_step", profile.capture.after_step + 1, "Write a smaller one"))
    if profile.synchronisations is not None:
        step = profile.synchronisations.after_step + 1
        wanted.append(("synchronisations.after_step", step, "Write a smaller one"))
    return [
        (f"{_PROFILE}.{key}", f"waits for step {step}, but `train.max_steps` is {last}.", f"{remedy}, or more steps.")
        for key, step, remedy in wanted
        if step > last
    ]


@reads("efficiency.profile.trace")
def trace_flops_need_shapes(settings: Settings) -> list[Contradiction]:
    """torch counts FLOPs from shapes."""
    trace = settings.recipe.efficiency.profile.trace
    if trace is None or trace.shapes or not trace.flops:
        return []
    return [(f"{_PROFILE}.trace.flops", "is true, but FLOPs are counted from shapes.", "Write false, or shapes: true.")]


@reads("efficiency.profile.trace", "efficiency.profile.python", "efficiency.profile.host_memory")
def one_tool_watches_calls(settings: Settings) -> list[Contradiction]:
    """All take the one place that CPython has for a profiler: the later one would end the other."""
    profile = settings.recipe.efficiency.profile
    watching = [
        (key, remedy)
        for key, remedy, on in (
            ("python", "Leave it out", profile.python is not None),
            ("host_memory", "Leave it out", bool(profile.host_memory)),
            ("trace.stacks", "Write false", profile.trace is not None and profile.trace.stacks),
        )
        if on
    ]
    return [
        (
            f"{_PROFILE}.{key}",
            f"is set, but `{_PROFILE}.{watching[0][0]}` watches Python's calls already, and CPython has room for one.",
            f"{remedy}, or the other.",
        )
        for key, remedy in watching[1:]
    ]


@reads("efficiency.profile.lines", "efficiency.profile.host_memory")
def functions_are_named(settings: Settings) -> list[Contradiction]:
    """``package.module:function``."""
    profile = settings.recipe.efficiency.profile
    return [
        (f"{_PROFILE}.{key}.{index}", f"is {name!r}, which names no function.", "Write package.module:function.")
        for key, names in (("lines", profile.lines), ("host_memory", profile.host_memory))
        for index, name in enumerate(names)
        if not _FUNCTION.fullmatch(name)
    ]


@reads("efficiency.profile")
def instruments_are_installed(settings: Settings) -> list[Contradiction]:
    """Asked before the run starts: some of them are packages of their own."""
    profile = settings.recipe.efficiency.profile
    needed = [
        ("python.tool", "pyinstrument", profile.python is not None and profile.python.tool == "pyinstrument"),
        ("lines", "line_profiler", bool(profile.lines)),
        ("host_memory", "memray", bool(profile.host_memory)),
    ]
    remedy = "Install the extra (pip install 'hf-efficient[profile]'), or remove it."
    return [
        (f"{_PROFILE}.{key}", f"needs the package {module}, which is not installed.", remedy)
        for key, module, wanted in needed
        if wanted and not is_installed(module)
    ]
