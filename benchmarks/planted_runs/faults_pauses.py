"""Runs that do too much beside their steps."""

from __future__ import annotations

from typing import Any

from planted_runs.case import Setup, planted

__all__: list[str] = []


@planted("a checkpoint after every second step", "saves_cost")
def saves_too_often(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, save_steps=2, save_total_limit=2, per_device_train_batch_size=2)


@planted("an evaluation after every third step", "evaluations_cost")
def evaluations_too_often(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, eval_steps=3)


@planted("an evaluation on more rows than are trained on", "evaluations_cost")
def evaluation_too_large(setup: Setup) -> Any:
    from planted_runs.data import Rows
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, eval_dataset=Rows(setup.corpus, 600, skip=1000), eval_steps=30)


@planted("every step is logged, to a tracker that answers after 100 ms", "logging_cost")
def slow_logging(setup: Setup) -> Any:
    from planted_runs.tracker import Tracker
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, logging_steps=1, callbacks=[Tracker(setup.server, 0.100)])
