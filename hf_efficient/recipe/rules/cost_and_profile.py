"""Rates, budget, and instruments that could not do what the recipe asks of them."""

import re
from collections.abc import Iterable, Iterator

from hf_efficient.errors import SetupError
from hf_efficient.facts.energy import grid_intensities, grid_intensity
from hf_efficient.facts.libraries import is_installed
from hf_efficient.facts.prices import prices, providers
from hf_efficient.facts.tables import plain
from hf_efficient.recipe.rules.settings import Contradiction, Settings, rule
from hf_efficient.recipe.schema import ProfileSection
from hf_efficient.recipe.tree import any_of, nearest

_AFTER = 4  # steps that line times and host memory let go by
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@rule("cost.price_usd_per_hour", "cost.price_from")
def one_price(settings: Settings) -> Iterator[Contradiction]:
    """What the user pays, or a provider's list price."""
    section = settings.recipe.cost
    if section.price_usd_per_hour is not None and section.price_from is not None:
        message = "is set, and so is `cost.price_usd_per_hour`."
        yield "cost.price_from", message, "Keep one of the two; null takes an inherited value back."


@rule("cost.price_from", "cost.market")
def provider_is_known(settings: Settings) -> Iterator[Contradiction]:
    """The price table holds the provider, and an offer of it in this market."""
    section = settings.recipe.cost
    if section.price_from is None:
        return
    wanted = plain(section.price_from)
    if wanted not in map(plain, providers()):
        message = f"is {section.price_from}, which is no provider with known prices."
        otherwise = f"Write {any_of(providers())}; or `cost.price_usd_per_hour` in its place."
        yield "cost.price_from", message, _meant(section.price_from, providers(), otherwise)
    elif not any(plain(offer.provider) == wanted and offer.market == section.market for offer in prices()):
        message = f"is {section.market}, but no such price of {section.price_from} is known."
        remedy = "Write on_demand, or `cost.price_usd_per_hour` in place of `cost.price_from`."
        yield "cost.market", message, remedy


@rule("cost.grid")
def grid_is_known(settings: Settings) -> Iterator[Contradiction]:
    """The grid table holds the country."""
    grid = settings.recipe.cost.grid
    try:
        grid_intensity(grid)
    except SetupError:
        names = [name for held in grid_intensities() for name in (held.name, *held.aliases)]
        otherwise = "Write a country's English name or its ISO code, or a number of gCO2e/kWh."
        message = f"is {grid}, which is no country with a known grid."
        yield "cost.grid", message, _meant(str(grid), names, otherwise)


def _meant(name: str, known: Iterable[str], otherwise: str) -> str:
    close = nearest(name, known)
    return otherwise if close is None else f"Did you mean {close}?"


@rule("faults", "distributed", "objective")
def faults_can_be_handled(settings: Settings) -> Iterator[Contradiction]:
    """DeepSpeed updates the weights within the backward, sharded states are not taken back, and a step is divided on
    one process alone, where its loss is a sum over tokens."""
    recipe = settings.recipe
    faults, strategy = recipe.faults, recipe.distributed.strategy
    unable = {"skip": ("zero1", "zero2", "zero3"), "rollback": ("zero1", "zero2", "zero3", "fsdp2"), "stop": ()}
    if strategy in unable[faults.on_non_finite]:
        message = f"is {faults.on_non_finite}, which `distributed.strategy: {strategy}` cannot do."
        yield "faults.on_non_finite", message, "Write stop, or another strategy (ddp)."
    if faults.on_oom == "stop":
        return
    if recipe.distributed.processes not in (1, "auto") or recipe.distributed.nodes > 1:
        yield "faults.on_oom", "is shrink, which works on one process.", "Write stop, or `distributed.processes: 1`."
    if recipe.objective != "sft":
        message = f"is shrink, but the loss of `objective: {recipe.objective}` is not a sum over tokens."
        yield "faults.on_oom", message, "Write stop."


@rule("budget")
def budget_has_a_limit(settings: Settings) -> Iterator[Contradiction]:
    """``budget: {}``."""
    budget = settings.recipe.budget
    if budget is not None and budget.usd is None and budget.hours is None and budget.kwh is None:
        yield "budget", "has no limit.", "Write usd, hours or kwh, or remove it."


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
    """A schedule that begins after the last step writes nothing."""
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


@rule("profile.trace")
def trace_flops_need_shapes(settings: Settings) -> Iterator[Contradiction]:
    """torch counts FLOPs from shapes."""
    trace = settings.recipe.profile.trace
    if trace is not None and trace.flops and not trace.shapes:
        message = "is true, but FLOPs are counted from shapes."
        yield "profile.trace.flops", message, "Write false, or shapes: true."


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
    """``package.module:function``."""
    profile = settings.recipe.profile
    for key, names in (("lines", profile.lines), ("host_memory", profile.host_memory)):
        for index, name in enumerate(names):
            if not _FUNCTION.fullmatch(name):
                message = f"is {name!r}, which names no function."
                yield f"profile.{key}.{index}", message, "Write package.module:function."


@rule("profile")
def instruments_are_installed(settings: Settings) -> Iterator[Contradiction]:
    """Asked before the run starts: some of them are packages of their own."""
    profile = settings.recipe.profile
    needed = (
        ("python.tool", "pyinstrument", profile.python is not None and profile.python.tool == "pyinstrument"),
        ("lines", "line_profiler", bool(profile.lines)),
        ("host_memory", "memray", bool(profile.host_memory)),
    )
    for key, module, is_wanted in needed:
        if is_wanted and not is_installed(module):
            message = f"needs the package {module}, which is not installed."
            remedy = "Install the extra (pip install 'hf-efficient[profile]'), or remove it."
            yield f"profile.{key}", message, remedy
