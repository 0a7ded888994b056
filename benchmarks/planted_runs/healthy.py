"""Runs with nothing to find."""

from __future__ import annotations

from typing import Any

from planted_runs.case import Setup, planted

__all__: list[str] = []


@planted("healthy: full fine-tune of rows of one length")
def healthy_full(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup)


@planted("healthy: LoRA on all linear layers")
def healthy_lora(setup: Setup) -> Any:
    from peft import LoraConfig, get_peft_model

    from planted_runs.training import rows_trainer, small_llama

    lora = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")
    return rows_trainer(setup, model=get_peft_model(small_llama(setup), lora))


@planted("healthy: supervised fine-tuning, packed")
def healthy_packed(setup: Setup) -> Any:
    from planted_runs.supervised import sft_trainer

    return sft_trainer(setup, packing=True, max_length=128, per_device_train_batch_size=4)


@planted("healthy: examples of like length together")
def healthy_grouped(setup: Setup) -> Any:
    from planted_runs.data import Examples, Padding
    from planted_runs.training import trainer

    return trainer(
        setup,
        data=Examples(setup.corpus, 4000),
        data_collator=Padding(),
        train_sampling_strategy="group_by_length",
        per_device_train_batch_size=8,
    )


@planted("healthy: two workers read from a store beside the training")
def healthy_workers(setup: Setup) -> Any:
    from planted_runs.slow_data import StoredRows
    from planted_runs.training import trainer

    return trainer(setup, data=StoredRows(setup.server, 1000, 0.005), dataloader_num_workers=2)
