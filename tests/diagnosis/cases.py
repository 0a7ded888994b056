"""Cases for the rules: written as the files of a run, and read as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_efficient.diagnosis.case import Case, read_case

__all__ = ["case_in", "settings", "step"]

_PROCESS = {"process_start_from": "kernel", "began_at_seconds": 0.0}


def step(number: int = 1, *, rows: int = 4, processed: int = 400, non_padding: int | None = None, **more: Any) -> dict:
    """A step record of one micro-batch; ``phases`` are its seconds, and ``more`` goes in as it is."""
    phases = more.pop("phases", {"forward": 0.4, "backward": 0.5, "optimizer": 0.1})
    real = processed if non_padding is None else non_padding
    lengths = more.pop("length_buckets", {"100": rows})
    return {
        "schema_version": 1,
        "segment": 0,
        "rank": 0,
        "step": number,
        "epoch": None,
        "wall_seconds": sum(phases.values()),
        "started_at_seconds": float(number),
        "phase_seconds": phases,
        "micro_batches": 1,
        "tokens": {"processed": processed, "non_padding": real, "loss_bearing": real},
        "sequences": {"rows": rows, "documents": rows, "shortest": 1, "longest": 100, "length_buckets": lengths},
        "loss": None,
        **more,
    }


def settings(**parts: Mapping[str, Any]) -> dict[str, Any]:
    """The topic ``settings``."""
    plain = {"arguments": {}, "model": {}, "optimizer": {}, "device": {"type": "cpu"}, "host": {}, "peaks": {}}
    return {**plain, **parts}


def case_in(
    folder: Path,
    steps: Sequence[Mapping[str, Any]] = (),
    *,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    notes: Sequence[Mapping[str, Any]] = (),
    other_ranks: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
    system: Sequence[Mapping[str, Any]] = (),
    recipe: str = "",
    price_usd_per_hour: float | None = None,
    memory: Mapping[str, int] | None = None,
) -> Case:
    """A run of one process that trained once and ended well.

    Args:
        folder: where its files go.
        steps: of rank 0.
        facts: by topic; ``settings`` is there in any case.
        notes: lines of spans: evaluations and saves.
        other_ranks: their steps.
        system: lines of ``system.jsonl``, without ``process`` and version.
        recipe: text of ``recipe.resolved.yaml``.
        price_usd_per_hour: None: not known.
        memory: peaks that the process told at its end.
    """
    ends = 2.0 + sum(one["wall_seconds"] for one in steps)
    stated = {"settings": settings(), **(facts or {})}
    if price_usd_per_hour is not None:
        stated["price"] = {"price_usd_per_hour": price_usd_per_hour, "source": "the recipe", "estimated": False}
    told = {"peak_rss_bytes": 1000, **(memory or {})}
    spans: list[Mapping[str, Any]] = [
        {"kind": "process", "schema_version": 1, "rank": 0, "pid": 7, "way": "trainer", **_PROCESS},
        {"kind": "train", "segment": 0, "at_seconds": 1.0},
        *({"kind": "facts", "facts": {topic: held}} for topic, held in stated.items()),
        *notes,
        {"kind": "train_end", "segment": 0, "at_seconds": ends, "ended": "done", "error": None},
        {"kind": "end", "ended": "done", "error": None, "at_seconds": ends, "memory": told},
    ]
    _write(folder / "spans.jsonl", [{**line, "process": 0} for line in spans])
    _write(folder / "steps.jsonl", steps)
    for rank, held in (other_ranks or {}).items():
        _write(folder / f"steps.rank{rank}.jsonl", [{**one, "rank": rank} for one in held])
    if system:
        _write(folder / "system.jsonl", [{"schema_version": 1, "process": 0, **line} for line in system])
    if recipe:
        (folder / "recipe.resolved.yaml").write_text(recipe, encoding="utf-8")
    return read_case(folder)


def _write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
