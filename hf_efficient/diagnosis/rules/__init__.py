"""What can be wrong with a run: one rule, one file.

To add a rule: write a function that takes a ``Case`` and returns a ``Finding``, an ``Abstention`` where its evidence is
missing, or None where it looked and found nothing; name it in ``RULES``. Its name is the rule's. A cost is of the run
as far as it is recorded; a gain is of the training loop's time for the same tokens, and says how it was predicted.
"""

from __future__ import annotations

from hf_efficient.diagnosis.rule import Rule
from hf_efficient.diagnosis.rules.batching import accumulation, padding_waste, small_micro_batch
from hf_efficient.diagnosis.rules.checkpointing import checkpointing_missing, checkpointing_unneeded
from hf_efficient.diagnosis.rules.communication import exposed_communication, sharding
from hf_efficient.diagnosis.rules.compute import attention_kernel, optimizer_kernel, recompilation
from hf_efficient.diagnosis.rules.data import data_collation, data_storage, data_transform, few_workers
from hf_efficient.diagnosis.rules.epochs import epoch_boundary, worker_start
from hf_efficient.diagnosis.rules.host import hidden_synchronisation, host_to_device_copy, launch_bound
from hf_efficient.diagnosis.rules.learning import (
    few_loss_tokens,
    learning_rate_diverges,
    learning_rate_idle,
    masked_labels,
    no_gradient,
    not_finite_steps,
    scaler_skips,
    truncated_examples,
)
from hf_efficient.diagnosis.rules.machine import cpu_contention, cpu_oversubscription, throttling, unused_memory
from hf_efficient.diagnosis.rules.memory import (
    fragmentation,
    large_micro_batch,
    logits_spike,
    memory_growth,
    near_out_of_memory,
    optimizer_state,
    out_of_memory,
)
from hf_efficient.diagnosis.rules.pauses import evaluations_cost, logging_cost, saves_cost
from hf_efficient.diagnosis.rules.precision import emulated_bfloat16, float32_products, silent_upcasts
from hf_efficient.diagnosis.rules.stragglers import straggler

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    out_of_memory,
    evaluations_cost,
    saves_cost,
    padding_waste,
    float32_products,
    emulated_bfloat16,
    small_micro_batch,
    data_storage,
    data_transform,
    data_collation,
    few_workers,
    worker_start,
    epoch_boundary,
    near_out_of_memory,
    large_micro_batch,
    fragmentation,
    logits_spike,
    optimizer_state,
    unused_memory,
    recompilation,
    throttling,
    accumulation,
    checkpointing_unneeded,
    optimizer_kernel,
    attention_kernel,
    straggler,
    cpu_contention,
    cpu_oversubscription,
    memory_growth,
    logging_cost,
    hidden_synchronisation,
    host_to_device_copy,
    no_gradient,
    masked_labels,
    few_loss_tokens,
    truncated_examples,
    learning_rate_idle,
    learning_rate_diverges,
    not_finite_steps,
    scaler_skips,
    silent_upcasts,
    checkpointing_missing,
    launch_bound,
    exposed_communication,
    sharding,
)
