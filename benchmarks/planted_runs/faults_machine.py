"""Runs whose machine holds them up."""

from __future__ import annotations

from typing import Any

from planted_runs.case import Setup, planted

__all__: list[str] = []


@planted("one of two ranks takes twice as long", "straggler", ranks=2, environment={"OMP_NUM_THREADS": "1"})
def slow_rank(setup: Setup) -> Any:
    from planted_runs.losses import SlowRank
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, base=SlowRank, max_steps=30)


@planted(
    "another user's processes compute on every core", "cpu_contention", busy_cores=2, code_remedy="nobody else computes"
)
def busy_cores(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, max_steps=40)


@planted("torch computes with 16 threads on two cores", "cpu_oversubscription", code_remedy="a thread per core")
def too_many_threads(setup: Setup) -> Any:
    import torch

    from planted_runs.training import rows_trainer

    if not setup.mended:
        torch.set_num_threads(16)
    return rows_trainer(setup, max_steps=40)
