"""What a remedy predicts, as the recipe with it holds it for the run that tests it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.measured_run import SETUP_KEYS, bears_on_time, measured_run
from hf_efficient.records.findings import Finding, Remedy

__all__ = ["prediction"]


def prediction(case: Case, finding: Finding, remedy: Remedy) -> dict[str, Any] | None:
    """The section ``efficiency.confirms`` of the next run; None where nothing could be told of it.

    What the remedy itself changes of the setup, the runs need not have in common; its fields of ``train:`` the next
    run must have.

    Args:
        case: the run that was diagnosed.
        finding: whose remedy it is.
        remedy: with a change of the recipe.
    """
    gain, run = remedy.gain, measured_run(case)
    saving = gain.share if gain is not None and gain.share else None
    held = gain.bytes if gain is not None and gain.bytes and gain.bytes > 0 else None
    if saving is None and held is None and finding.severity == "info":
        return None
    changed = tuple(remedy.overrides)
    setup = {name: told for name, told in run.setup.items() if not _touches(changed, SETUP_KEYS.get(name, ()))}
    setup |= {key: str(value) for key, value in _leaves(remedy.overrides) if bears_on_time(key)}
    values = {
        "rule": finding.rule,
        "run": (case.recipe or {}).get("output_dir"),
        "predicted_saving": saving,
        "predicted_bytes": held,
        "seconds_per_token": run.seconds_per_token if saving is not None else None,
        "spread": run.spread if saving is not None else None,
        "peak_bytes": run.peak_bytes if held is not None else None,
        "setup": setup,
    }
    return {name: _short(value) for name, value in values.items() if value is not None}


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _short(value: Any) -> Any:
    """A share or a time to six digits, which is more than was measured."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _touches(changed: tuple[str, ...], keys: tuple[str, ...]) -> bool:
    """Whether one of the changes lies at or below one of the keys, or above it."""
    return any(one == key or one.startswith(f"{key}.") or key.startswith(f"{one}.") for one in changed for key in keys)
