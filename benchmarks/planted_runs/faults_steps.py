"""Runs whose steps take longer than they have to."""

from __future__ import annotations

from typing import Any

from planted_runs.case import Setup, planted

__all__: list[str] = []


@planted(
    "compute_loss reads scalars of its tensors in every step, at four places",
    "hidden_synchronisation",
    code_remedy="no scalar is read",
)
def scalars_read(setup: Setup) -> Any:
    from planted_runs.losses import ReadsScalars
    from planted_runs.training import rows_trainer

    return rows_trainer(setup) if setup.mended else rows_trainer(setup, base=ReadsScalars)


@planted("the layers multiply in the dtype that this CPU is slow in", "float32_products", "emulated_bfloat16")
def slow_dtype(setup: Setup) -> Any:
    from hf_efficient.facts.environment import cpu_multiplies_bf16
    from planted_runs.training import rows_trainer, small_llama

    if not cpu_multiplies_bf16():
        return rows_trainer(setup, bf16=True, max_steps=30)
    wide = small_llama(setup, hidden_size=512, intermediate_size=1536, num_attention_heads=8)
    return rows_trainer(setup, model=wide, bf16=False, max_steps=30)


@planted("one example per step", "small_micro_batch")
def tiny_batch(setup: Setup) -> Any:
    from planted_runs.data import Examples, Padding
    from planted_runs.training import trainer

    data = Examples(setup.corpus, 4000)
    return trainer(setup, data=data, data_collator=Padding(), per_device_train_batch_size=1, max_steps=240)


@planted("16 micro-batches of one example make a step", "accumulation", "small_micro_batch")
def accumulated(setup: Setup) -> Any:
    from planted_runs.data import Examples, Padding
    from planted_runs.training import trainer

    return trainer(
        setup,
        data=Examples(setup.corpus, 4000),
        data_collator=Padding(),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=16,
        max_steps=20,
    )


@planted("every eighth example is six times as long as the others", "padding_waste")
def mixed_lengths(setup: Setup) -> Any:
    from planted_runs.data import Examples, Padding
    from planted_runs.training import trainer

    data = Examples(setup.corpus, 2000, long_every=8)
    return trainer(setup, data=data, data_collator=Padding(), per_device_train_batch_size=8, max_steps=40)


@planted("activation checkpointing, though the memory is idle", "checkpointing_unneeded")
def checkpointing(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, activation_checkpointing=True)


@planted("eager attention over rows of 1024 tokens", "attention_kernel")
def eager_attention(setup: Setup) -> Any:
    from planted_runs.data import Rows
    from planted_runs.training import small_llama, trainer

    model = small_llama(setup, attn_implementation="eager", num_attention_heads=8)
    data = Rows(setup.corpus, join=8)
    return trainer(setup, data=data, model=model, per_device_train_batch_size=1, max_steps=30)


@planted("AdamW goes through a large embedding parameter by parameter, not fused", "optimizer_kernel")
def slow_optimizer(setup: Setup) -> Any:
    from planted_runs.data import Rows
    from planted_runs.training import rows_trainer, small_llama

    large = small_llama(setup, vocab_size=48_000, tie_word_embeddings=False)
    few = Rows(setup.corpus, 4)
    fields = {"per_device_train_batch_size": 1, "max_steps": 40, "eval_dataset": few}
    return rows_trainer(setup, model=large, optim="adamw_torch", **fields)


@planted("the logits of every step are kept in a list", "memory_growth", code_remedy="nothing is kept")
def leak(setup: Setup) -> Any:
    from hf_efficient.trainer import EfficientTrainer
    from planted_runs.losses import KeepsLogits
    from planted_runs.training import rows_trainer

    base = EfficientTrainer if setup.mended else KeepsLogits
    return rows_trainer(setup, base=base, max_steps=160)  # so that memory is read some dozen times
