"""torch.compile that compiles again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import MATTERS, Verdict
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["recompilation"]

_AGAIN = 3


def recompilation(case: Case) -> Verdict:
    """Compilation in three steps or more after the warm-up, or a twentieth of the loop after it.

    A graph is compiled anew for every shape that its guards do not know; a batch padded to its own longest row brings
    one after the other.
    """
    first = case.first
    if first is None or "compilation" not in first.phase_seconds:
        return None
    late = np.where(first.steady, first.phase("compilation"), 0.0)
    spent, steps = float(late.sum()), int((late > 0).sum())
    if steps < _AGAIN and case.share(spent) < MATTERS:
        return None
    evidence = [
        Evidence("compilation after warm-up", spent, "seconds", "steps.jsonl: phase_seconds.compilation"),
        Evidence("steps with a compilation", steps, "count", "steps.jsonl: phase_seconds.compilation"),
    ]
    evidence += _counted(case.facts.get("compilation", {}))
    gain = case.gain(spent, "no compilation after the warm-up")
    remedies = [Remedy("pad every batch to one length (pad_to_multiple_of), or pack", {}, "some padding", gain)]
    if case.argument("packing") is False and case.argument("max_length") is not None:
        what = "pack examples into rows of one length"
        remedies.insert(0, Remedy(what, {"train.packing": True}, "an epoch has fewer steps", gain))
    remedies.append(Remedy("look at the reasons: TORCH_LOGS=recompiles,graph_breaks"))
    return Finding(
        rule="recompilation",
        title=f"torch.compile compiles again in {steps} steps after warm-up: {share(case.share(spent))} of the loop",
        severity="warning" if case.share(spent) >= MATTERS else "info",
        confidence="measured",
        evidence=evidence,
        cost=case.cost(spent),
        remedies=remedies,
    )


def _counted(compiled: Mapping[str, Any]) -> Iterator[Evidence]:
    """By dynamo's counters, over the life of the process."""
    for key, what in (("recompiles", "recompilations"), ("graph_breaks", "graph breaks")):
        if compiled.get(key) is not None:
            yield Evidence(what, int(compiled[key]), "count", f"spans.jsonl: compilation.{key}")
    for reason, times in list(compiled.get("break_reasons", {}).items())[:1]:
        yield Evidence(f"most frequent break, {times} times", str(reason), "", "spans.jsonl: compilation.break_reasons")
