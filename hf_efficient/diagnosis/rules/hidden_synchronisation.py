"""Lines of the user's code that read tensors in every step, and so make the host wait for the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy

__all__ = ["hidden_synchronisation"]

_SHOWN = 5
_FILTER = "logging_nan_inf_filter"
Site = Mapping[str, Any]


def hidden_synchronisation(case: Case) -> Verdict:
    """The census found reads by the user's own lines, one or more per micro-batch; a library's are told beside."""
    if case.first is None:
        return abstains("hidden_synchronisation", NO_STEPS)
    census = case.facts.get("synchronisations", {})
    if "sites" not in census:
        why = "no census of the lines that read tensors was taken"
        return abstains("hidden_synchronisation", why, "efficiency.profile.synchronisations")
    sites: Sequence[Site] = census["sites"]
    own = [site for site in sites if not site["inside_library"]]
    libraries = sum(float(site["count_per_step"]) for site in sites if site["inside_library"])
    reads = sum(float(site["count_per_step"]) for site in own)
    micro_batches = float(np.nanmedian(case.first.micro_batches))
    on_device = bool(census.get("on_device"))
    if reads >= micro_batches:
        return _own_lines(case, own, reads, libraries, on_device)
    if on_device and libraries >= micro_batches and case.argument(_FILTER):
        return _librarys(sites, libraries)
    return None


def _own_lines(case: Case, own: Sequence[Site], reads: float, libraries: float, on_device: bool) -> Finding:
    lines = len({(site["file"], site["line"]) for site in own})
    title = (
        f"your code reads tensors {'once' if reads == 1 else f'{reads:g} times'} per step, at {lines} "
        f"line{'s' if lines > 1 else ''}, first {_place(own[0])}"
    )
    seconds = sum(float(site.get("seconds_per_step") or 0) for site in own) * case.account.steps.count
    if not on_device:
        title += "; on a CPU that costs little, on a GPU each read waits until the device is done"
    what = (
        "keep tensors on the device and read them at the log interval: add up loss.detach(), and call .item() when it "
        "is logged; let torch.where or masks decide, not if"
    )
    libraries_evidence = Evidence("reads by libraries, per step", libraries, "count", "spans.jsonl: synchronisations")
    return Finding(
        rule="hidden_synchronisation",
        title=title,
        severity="warning",
        confidence="measured" if on_device else "likely",
        evidence=[*_evidence(own), libraries_evidence],
        cost=case.cost(min(seconds, case.loop_seconds)) if on_device else case.cost(),
        remedies=[Remedy(what)],
    )


def _librarys(sites: Sequence[Site], reads: float) -> Finding:
    inside = [site for site in sites if site["inside_library"]]
    costs = "a loss that is no number shows in the log, and spoils its mean"
    what = "leave out the Trainer's look at every loss"
    return Finding(
        rule="hidden_synchronisation",
        title=f"libraries read tensors {reads:g} times per step, first {_place(inside[0])}",
        severity="info",
        confidence="measured",
        evidence=_evidence(inside),
        remedies=[Remedy(what, {f"train.{_FILTER}": False}, costs)],
    )


def _evidence(sites: Sequence[Site]) -> list[Evidence]:
    found = []
    for site in sites[:_SHOWN]:
        what = f"reads per step at {_place(site)} in {site['function']}, {site['operator']}"
        found.append(Evidence(what, float(site["count_per_step"]), "count", "spans.jsonl: synchronisations.sites"))
    return found


def _place(site: Site) -> str:
    """``folder/file.py:12``."""
    return f"{'/'.join(PurePath(str(site['file'])).parts[-2:])}:{site['line']}"
