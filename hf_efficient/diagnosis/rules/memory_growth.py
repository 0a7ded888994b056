"""Memory that grows with every step."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.memory_curves import Growth, device_growth, host_growth
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import count, size

__all__ = ["memory_growth"]

_LEAST_BYTES = 64 << 20
_LEAST_SHARE = 0.05
_FEWEST = 6
_MANY = 30
_WHAT = (
    "let go of what each step leaves behind: keep floats, not tensors (loss.item() at the log interval, .detach() "
    "and .cpu() for what must be kept), and no tensor of a graph in a list or an attribute"
)
_LOOK = "to see which line keeps it: efficiency.profile.memory (on a GPU) or efficiency.profile.host_memory"


def memory_growth(case: Case) -> Verdict:
    """It grows steadily after warm-up, by 64 MiB and a twentieth or more: something is kept from every step.

    A process's memory also grows for some time because the C library keeps what it frees, by half in ten seconds of
    small steps of many sizes: a warning takes thirty readings, or memory that doubles.
    """
    if case.first is None:
        return abstains("memory_growth", NO_STEPS)
    curves = {"the device": device_growth(case), "the process": host_growth(case)}
    known = {where: one for where, one in curves.items() if one is not None and one.known >= _FEWEST}
    if not known:
        return abstains("memory_growth", "memory was read fewer than six times after warm-up", "a longer run")
    for where, growth in known.items():
        if growth.grown_bytes >= max(_LEAST_BYTES, _LEAST_SHARE * growth.first_bytes):
            return _finding(case, where, growth)
    return None


def _finding(case: Case, where: str, growth: Growth) -> Finding:
    assert growth.bytes_per_step is not None
    until = None if growth.left_bytes is None else int(growth.left_bytes / growth.bytes_per_step)
    to_do = int(case.facts.get("run", {}).get("max_steps") or 0) - case.account.steps.count
    fails = until is not None and until < to_do
    sure = where == "the device" or growth.known >= _MANY or growth.grown_bytes >= growth.first_bytes
    source = "steps.jsonl: memory.peak_allocated_bytes" if where == "the device" else "system.jsonl: rss_bytes"
    evidence = [
        Evidence("growth per step", growth.bytes_per_step, "bytes", source),
        Evidence("growth after warm-up", growth.grown_bytes, "bytes", source),
        Evidence("memory at its beginning", growth.first_bytes, "bytes", source),
        Evidence("readings", growth.known, "count", source),
    ]
    if growth.left_bytes is not None and until is not None:
        evidence.append(Evidence("free at the end", growth.left_bytes, "bytes", source))
        evidence.append(Evidence("steps until nothing is free", until, "count", "free memory over growth per step"))
    title = f"the memory of {where} grows by {size(round(growth.bytes_per_step))} with every step"
    if fails and until is not None:
        title += f", and is used up {count(until)} steps further on"
    gain = case.gain(0.0, "nothing is kept from a step", round(growth.grown_bytes))
    return Finding(
        rule="memory_growth",
        title=title,
        severity="critical" if fails and sure else "warning" if sure else "info",
        confidence="measured" if sure else "possible",
        evidence=evidence,
        cost=case.cost(held_bytes=round(growth.grown_bytes)),
        remedies=[Remedy(_WHAT, gain=gain), Remedy(_LOOK)],
    )
