"""What became of a prediction, in words, the same on a terminal and on the page."""

from __future__ import annotations

from hf_efficient.records.confirmation import Confirmation
from hf_efficient.units import share, size

__all__ = ["VERDICTS", "told_confirmation"]

VERDICTS = {
    "confirmed": "Confirmed",
    "smaller": "Smaller than predicted",
    "larger": "Larger than predicted",
    "retracted": "Retracted",
    "unknown": "Cannot be told",
}


def told_confirmation(held: Confirmation) -> str:
    """``data_transform: 44% less time per token predicted, 41% came, ±3%: why``; without the verdict."""
    parts = [] if held.predicted is None else [f"{_amount(held, held.predicted)} predicted"]
    if held.achieved is not None:
        parts.append(_came(held, held.achieved))
    if held.of == "finding" and held.verdict == "confirmed":
        parts.append("the finding is gone" if not held.why else "")
    told = [held.rule, ", ".join(part for part in parts if part), held.why]
    return ": ".join(part for part in told if part)


def _amount(held: Confirmation, value: float) -> str:
    if held.of == "time":
        return f"{share(value)} less time per token"
    return f"{size(round(value))} less at the peak"


def _came(held: Confirmation, value: float) -> str:
    amount = share(abs(value)) if held.of == "time" else size(round(abs(value)))
    spread = f" ±{share(held.spread)}" if held.spread is not None else ""
    return f"{amount}{spread} {'came' if value >= 0 else 'more came'}"
