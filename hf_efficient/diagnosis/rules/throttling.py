"""A GPU that its temperature or its power limit holds back."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.records.series import SystemSeries
from hf_efficient.units import share

__all__ = ["throttling"]

_OFTEN = 0.1


def throttling(case: Case) -> Verdict:
    """NVML names such a reason in a tenth of the readings or more, of any GPU.

    A power cap is how dense training on many cards runs all the time; it is told, and is no warning. What heat, or
    a brake of the board, takes is.
    """
    if not case.on_cuda:
        return None
    system = case.series.system if case.series is not None else None
    if system is None or not system.gpus:
        return abstains("throttling", "NVML told nothing of the GPUs")
    found = [(number, reason, held) for number, reason, held in _shares(system) if held >= _OFTEN]
    if not found:
        return None
    evidence = [
        Evidence(f"GPU {number}: {reason.replace('_', ' ')}", held, "share", "system.jsonl: throttled")
        for number, reason, held in found
    ]
    for number in dict.fromkeys(number for number, _, _ in found):
        for name, unit in (("temperature_celsius", "°C"), ("sm_clock_mhz", "MHz")):
            band = system.gpus.get(number, {}).get(name)
            highest = [value for value in band.high if value is not None] if band is not None else []
            if highest:
                what = f"GPU {number}: highest {name.rpartition('_')[0].replace('_', ' ')}"
                evidence.append(Evidence(what, max(highest), unit, f"system.jsonl: gpus.{name}"))
    heat = [one for one in found if "power" not in one[1] or "brake" in one[1]]
    worst = max(heat or found, key=lambda one: one[2])
    return Finding(
        rule="throttling",
        title=f"GPU {worst[0]} is held back in {share(worst[2])} of the readings: {worst[1].replace('_', ' ')}",
        severity="warning" if heat else "info",
        confidence="measured",
        evidence=evidence,
        remedies=[Remedy("look after the cooling, or ask for another machine" if heat else "raise the power limit")],
    )


def _shares(system: SystemSeries) -> list[tuple[str, str, float]]:
    """GPU, reason, and in which share of all readings it was named."""
    return [
        (number, reason, sum(held) / len(held))
        for number, reasons in system.throttled.items()
        for reason, held in reasons.items()
        if held
    ]
