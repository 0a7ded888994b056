"""Runs whose data loader is slow, by hand."""

from __future__ import annotations

from typing import Any

from tests.diagnosis.cases import settings, step

__all__ = ["loaded_facts", "loaded_step", "loaded_steps"]


def loaded_step(number: int, compute: float = 1.0, **loader: Any) -> dict:
    """A step of so much computing beside what its loader says; the whole of its waits is data wait."""
    told = {"batches": 1, "fetched": 1, "wait_seconds": 0.0, **loader}
    waits = told["wait_seconds"] + told.get("start_seconds", 0.0) + told.get("end_seconds", 0.0)
    return step(number, phases={"data_wait": waits, "forward": compute}, loader=told)


def loaded_steps(count: int = 23, compute: float = 1.0, **loader: Any) -> list[dict]:
    """Three to warm up, and 20 more by default."""
    return [loaded_step(number, compute, **loader) for number in range(1, count + 1)]


def loaded_facts(workers: int = 0, cores: int = 4, threads: int = 1, **loader: Any) -> dict[str, Any]:
    """The facts of a run on a CPU."""
    return {
        "settings": settings(host={"cores": cores, "torch_threads": threads}),
        "loader": {"workers": workers, **loader},
    }
