"""Contradictions between the sections of a recipe: what each section alone cannot know.

A rule is a pure function of the ``Settings``; it says which keys it reads, so that it is left out where one
of them is itself wrong. To add one: write it in the file of its subject and name it in ``RULES``.
"""

from __future__ import annotations

from hf_efficient.recipe.rules import distributed as batch
from hf_efficient.recipe.rules import distributed as engines
from hf_efficient.recipe.rules import distributed as parallelism
from hf_efficient.recipe.rules import efficiency as budget
from hf_efficient.recipe.rules import efficiency as confirms
from hf_efficient.recipe.rules import efficiency as profile
from hf_efficient.recipe.rules import efficiency as rates
from hf_efficient.recipe.rules import evaluation, training
from hf_efficient.recipe.rules import training as adapter
from hf_efficient.recipe.rules import training as loss
from hf_efficient.recipe.rules import training as method
from hf_efficient.recipe.rules import training as packages
from hf_efficient.recipe.rules import training as packing
from hf_efficient.recipe.rules import training as unused
from hf_efficient.recipe.rules.settings import Contradiction, Rule, Settings

__all__ = ["RULES", "Contradiction", "Rule", "Settings"]

RULES: tuple[Rule, ...] = (
    adapter.quantization_needs_qlora,
    adapter.full_has_no_adapter,
    adapter.eight_bit_has_no_four_bit_options,
    adapter.targets_are_a_pattern,
    training.one_half_precision,
    training.checkpointing_arguments_need_checkpointing,
    training.loader_options_need_workers,
    loss.chunked_loss_has_the_head_to_itself,
    loss.chunked_loss_has_no_adapter_on_the_head,
    packing.attention_keeps_examples_apart,
    packing.packing_needs_a_length,
    packing.padding_free_has_no_length,
    evaluation.one_source_of_examples,
    evaluation.evaluating_needs_examples,
    evaluation.scheduler_needs_evaluations,
    evaluation.best_model_needs_evaluations,
    evaluation.best_model_is_saved,
    evaluation.early_stopping_needs_evaluations,
    evaluation.best_metric_is_computed,
    packages.reports_are_installed,
    packages.optimizer_is_installed,
    parallelism.models_are_not_sharded,
    parallelism.one_process_is_not_spread,
    parallelism.offload_fits_the_strategy,
    batch.global_batch_is_divided,
    batch.global_batch_stays,
    engines.optimizer_can_be_sharded,
    engines.quantized_weights_can_be_sharded,
    engines.engine_is_named_for_several_machines,
    engines.wrap_classes_are_of_fsdp2,
    rates.one_price,
    rates.provider_is_known,
    rates.grid_is_known,
    method.dpo_reads_preferences,
    method.dpo_has_its_own_metrics,
    unused.metrics_need_predictions,
    unused.recipe_decides_the_columns,
    unused.recipe_decides_what_is_done,
    unused.best_perplexity_is_the_lowest,
    unused.full_weights_are_not_float16,
    unused.dpo_has_no_length_policy,
    unused.dpo_shows_no_answers,
    budget.budget_has_a_limit,
    budget.budget_counts_records,
    confirms.confirming_reads_records,
    profile.profile_counts_records,
    profile.profiled_steps_are_trained,
    profile.trace_flops_need_shapes,
    profile.one_tool_watches_calls,
    profile.functions_are_named,
    profile.instruments_are_installed,
)
