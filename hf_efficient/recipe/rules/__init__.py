"""Contradictions between the sections of a recipe: what each section alone cannot know.

To add a rule, write it in the file of its subject and decorate it with ``rule``.
"""

from hf_efficient.recipe.rules import cost, distributed, evaluation, profile, rewards, training, values
from hf_efficient.recipe.rules.settings import RULES, Contradiction, Rule, Settings

__all__ = [
    "RULES",
    "Contradiction",
    "Rule",
    "Settings",
    "cost",
    "distributed",
    "evaluation",
    "profile",
    "rewards",
    "training",
    "values",
]
