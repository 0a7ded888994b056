"""What can be wrong with a run: one rule, one file.

To add a rule: write a function that takes a ``Case`` and returns a ``Finding``, an ``Abstention`` where its evidence is
missing, or None where it looked and found nothing; name it in ``RULES``. Its name is the rule's. A cost is of the run
as far as it is recorded; a gain is of the training loop's time for the same tokens, and says how it was predicted.
"""

from __future__ import annotations

from hf_efficient.diagnosis.rule import Rule
from hf_efficient.diagnosis.rules.accumulation import accumulation
from hf_efficient.diagnosis.rules.attention_kernel import attention_kernel
from hf_efficient.diagnosis.rules.checkpointing_missing import checkpointing_missing
from hf_efficient.diagnosis.rules.checkpointing_unneeded import checkpointing_unneeded
from hf_efficient.diagnosis.rules.cpu_contention import cpu_contention
from hf_efficient.diagnosis.rules.cpu_oversubscription import cpu_oversubscription
from hf_efficient.diagnosis.rules.data_collation import data_collation
from hf_efficient.diagnosis.rules.data_storage import data_storage
from hf_efficient.diagnosis.rules.data_transform import data_transform
from hf_efficient.diagnosis.rules.emulated_bfloat16 import emulated_bfloat16
from hf_efficient.diagnosis.rules.epoch_boundary import epoch_boundary
from hf_efficient.diagnosis.rules.evaluations_cost import evaluations_cost
from hf_efficient.diagnosis.rules.exposed_communication import exposed_communication
from hf_efficient.diagnosis.rules.few_loss_tokens import few_loss_tokens
from hf_efficient.diagnosis.rules.few_workers import few_workers
from hf_efficient.diagnosis.rules.float32_products import float32_products
from hf_efficient.diagnosis.rules.fragmentation import fragmentation
from hf_efficient.diagnosis.rules.hidden_synchronisation import hidden_synchronisation
from hf_efficient.diagnosis.rules.host_to_device_copy import host_to_device_copy
from hf_efficient.diagnosis.rules.large_micro_batch import large_micro_batch
from hf_efficient.diagnosis.rules.launch_bound import launch_bound
from hf_efficient.diagnosis.rules.learning_rate_diverges import learning_rate_diverges
from hf_efficient.diagnosis.rules.learning_rate_idle import learning_rate_idle
from hf_efficient.diagnosis.rules.logging_cost import logging_cost
from hf_efficient.diagnosis.rules.logits_spike import logits_spike
from hf_efficient.diagnosis.rules.masked_labels import masked_labels
from hf_efficient.diagnosis.rules.memory_growth import memory_growth
from hf_efficient.diagnosis.rules.near_out_of_memory import near_out_of_memory
from hf_efficient.diagnosis.rules.no_gradient import no_gradient
from hf_efficient.diagnosis.rules.not_finite_steps import not_finite_steps
from hf_efficient.diagnosis.rules.optimizer_kernel import optimizer_kernel
from hf_efficient.diagnosis.rules.optimizer_state import optimizer_state
from hf_efficient.diagnosis.rules.out_of_memory import out_of_memory
from hf_efficient.diagnosis.rules.padding_waste import padding_waste
from hf_efficient.diagnosis.rules.recompilation import recompilation
from hf_efficient.diagnosis.rules.saves_cost import saves_cost
from hf_efficient.diagnosis.rules.scaler_skips import scaler_skips
from hf_efficient.diagnosis.rules.sharding import sharding
from hf_efficient.diagnosis.rules.silent_upcasts import silent_upcasts
from hf_efficient.diagnosis.rules.small_micro_batch import small_micro_batch
from hf_efficient.diagnosis.rules.straggler import straggler
from hf_efficient.diagnosis.rules.throttling import throttling
from hf_efficient.diagnosis.rules.truncated_examples import truncated_examples
from hf_efficient.diagnosis.rules.unused_memory import unused_memory
from hf_efficient.diagnosis.rules.worker_start import worker_start

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
