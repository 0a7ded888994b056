"""What can be wrong with a run, by the variants of its recipe, and with a trace: rules by topic.

To add one: write a function in the file of its topic, with ``@rule()`` above it, that returns a ``Finding``, an
``Abstention`` where its evidence is missing, or None where it found nothing; name it below.
"""

from hf_efficient.diagnosis.case import Case, IsolatedRecipe, Rule, TracedDevice
from hf_efficient.diagnosis.rules import batching, checkpointing, communication, compute, data, host, learning

from hf_efficient.diagnosis.rules import machine, memory, pauses, preferences, stragglers, traces  # isort: skip

RULES: tuple[Rule[Case], ...] = (
    memory.out_of_memory, pauses.evaluations_cost, pauses.saves_cost, pauses.own_code, batching.padding_waste,
    compute.float32_products, compute.emulated_bfloat16, batching.small_micro_batch,
    data.data_storage, data.data_transform, data.data_collation, data.few_workers,
    pauses.worker_start, pauses.epoch_boundary,
    memory.near_out_of_memory, memory.large_micro_batch, memory.fragmentation, memory.logits_spike,
    memory.optimizer_state, machine.unused_memory, compute.recompilation, machine.throttling,
    batching.accumulation, checkpointing.checkpointing_unneeded, compute.optimizer_kernel, compute.attention_kernel,
    stragglers.straggler, machine.cpu_contention, machine.cpu_oversubscription, memory.memory_growth,
    pauses.logging_cost, host.hidden_synchronisation, host.host_to_device_copy,
    learning.no_gradient, learning.masked_labels, learning.few_loss_tokens, learning.truncated_examples,
    learning.few_steps, learning.learning_rate_idle, learning.rounded_updates, learning.learning_rate_diverges,
    learning.not_finite_steps, learning.scaler_skips,
    compute.silent_upcasts, checkpointing.checkpointing_missing, host.launch_bound,
    preferences.length_bias, preferences.margin_without_likelihood, preferences.beta_without_effect,
    communication.exposed_communication, communication.sharding,
)  # fmt: skip
ISOLATED_RULES: tuple[Rule[IsolatedRecipe], ...] = (
    data.isolated_few_workers, pauses.isolated_evaluations_cost, pauses.isolated_saves_cost,
    pauses.isolated_logging_cost, batching.isolated_small_micro_batch,
)  # fmt: skip
TRACE_RULES: tuple[Rule[TracedDevice], ...] = (
    traces.trace_host_bound, traces.trace_launch_bound, traces.trace_exposed_communication,
    traces.trace_pageable_copies, traces.trace_synchronisations, traces.trace_memory_bound,
    traces.trace_float32_products,
)  # fmt: skip
