"""Runs that train, and learn nothing or the wrong thing."""

from __future__ import annotations

from typing import Any

from planted_runs.case import Setup, planted

__all__: list[str] = []


@planted("labels are masked but for one token in sixty-four", "masked_labels", "few_loss_tokens")
def masked(setup: Setup) -> Any:
    from planted_runs.silent_data import MaskedRows
    from planted_runs.training import trainer

    return trainer(setup, data=MaskedRows(setup.corpus))


@planted("a learning rate of a billionth", "learning_rate_idle")
def idle_learning_rate(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, learning_rate=1e-9)


@planted("a learning rate at which the loss grows", "learning_rate_diverges")
def diverging(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, learning_rate=0.3, logging_steps=2)


@planted("batches without a label give a loss that is no number, and their steps are skipped", "not_finite_steps")
def nan_steps(setup: Setup) -> Any:
    from planted_runs.losses import SkipsNaN
    from planted_runs.silent_data import SomeUnlabelled
    from planted_runs.training import trainer

    return trainer(
        setup, data=SomeUnlabelled(setup.corpus), base=SkipsNaN, per_device_train_batch_size=1, max_steps=150
    )


@planted("most examples are longer than max_length, and are cut", "truncated_examples")
def truncated(setup: Setup) -> Any:
    from planted_runs.supervised import sft_trainer

    return sft_trainer(setup, max_length=48, per_device_train_batch_size=16)


@planted("a layer is trained that the forward never calls", "no_gradient")
def unused_layer(setup: Setup) -> Any:
    import torch

    from planted_runs.training import rows_trainer, small_llama

    model = small_llama(setup)
    model.second_head = torch.nn.Linear(256, 4096)
    return rows_trainer(setup, model=model, check_gradients=False)
