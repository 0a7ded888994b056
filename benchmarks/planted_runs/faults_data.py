"""Runs that wait for their data."""

from __future__ import annotations

from typing import Any

from planted_runs.case import Setup, planted

__all__: list[str] = []


@planted("each row is read from a store that answers after 20 ms", "data_storage")
def slow_storage(setup: Setup) -> Any:
    from planted_runs.slow_data import StoredRows
    from planted_runs.training import trainer

    return trainer(setup, data=StoredRows(setup.server, 1000, 0.020))


@planted(
    "whole documents are tokenised in __getitem__ and cut afterwards",
    "data_transform",
    code_remedy="rows that were tokenised before the training",
)
def tokenised_on_access(setup: Setup) -> Any:
    from planted_runs.slow_data import TokenisedOnAccess
    from planted_runs.training import rows_trainer, trainer

    return rows_trainer(setup) if setup.mended else trainer(setup, data=TokenisedOnAccess(setup.corpus))


@planted("an augmentation in Python, in the process that trains", "data_transform", "few_workers")
def heavy_transform(setup: Setup) -> Any:
    from planted_runs.slow_data import Typos
    from planted_runs.training import trainer

    return trainer(setup, data=Typos(setup.corpus, characters=1_200))


@planted("one worker reads from a store that answers after 60 ms", "few_workers", "data_storage")
def one_worker(setup: Setup) -> Any:
    from planted_runs.slow_data import StoredRows
    from planted_runs.training import trainer

    return trainer(setup, data=StoredRows(setup.server, 1000, 0.060), dataloader_num_workers=1)


@planted(
    "the collator tokenises whole documents and cuts them afterwards",
    "data_collation",
    code_remedy="rows that were tokenised before the training",
)
def slow_collator(setup: Setup) -> Any:
    from planted_runs.slow_data import Documents, TokenisesBatches
    from planted_runs.training import rows_trainer, trainer

    if setup.mended:
        return rows_trainer(setup)
    few = Documents(setup.corpus, 4)
    collator = TokenisesBatches(setup.corpus)
    return trainer(setup, data=Documents(setup.corpus), eval_dataset=few, data_collator=collator)


@planted("workers are spawned anew for every epoch of twelve steps", "worker_start")
def workers_each_epoch(setup: Setup) -> Any:
    from planted_runs.data import Rows
    from planted_runs.training import trainer

    return trainer(
        setup,
        data=Rows(setup.corpus, 48),
        eval_strategy="no",
        num_train_epochs=4,
        max_steps=-1,
        dataloader_num_workers=2,
        dataloader_multiprocessing_context="spawn",
    )
