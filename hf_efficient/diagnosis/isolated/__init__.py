"""Findings out of a recipe's variants: one rule, one file, named as the rules over runs where they find the same.

A rule takes an ``Isolation`` and returns a ``Finding``, an ``Abstention`` where a variant that it rests on failed, or
None. Costs and gains are of the whole run of the recipe, an estimate from the step that was measured.
"""

from __future__ import annotations

from hf_efficient.diagnosis.isolated.evaluations_cost import evaluations_cost
from hf_efficient.diagnosis.isolated.few_workers import few_workers
from hf_efficient.diagnosis.isolated.logging_cost import logging_cost
from hf_efficient.diagnosis.isolated.rule import IsolatedRule
from hf_efficient.diagnosis.isolated.saves_cost import saves_cost
from hf_efficient.diagnosis.isolated.small_micro_batch import small_micro_batch

__all__ = ["ISOLATED_RULES"]

ISOLATED_RULES: tuple[IsolatedRule, ...] = (
    few_workers,
    evaluations_cost,
    saves_cost,
    logging_cost,
    small_micro_batch,
)
