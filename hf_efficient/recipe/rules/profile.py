"""Instruments that could not do what the recipe asks of them."""

from __future__ import annotations

import re

from hf_efficient.hardware.packages import is_installed
from hf_efficient.recipe.profile_section import ProfileSection
from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = [
    "functions_are_named",
    "instruments_are_installed",
    "one_tool_watches_calls",
    "profile_counts_records",
    "profiled_steps_are_trained",
    "trace_flops_need_shapes",
]

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
