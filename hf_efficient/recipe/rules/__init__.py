"""Contradictions between the sections of a recipe: what each section alone cannot know.

To add a rule, write it in the file of its subject and decorate it with ``rule``.
"""

from hf_efficient.recipe.rules import distributed, efficiency, evaluation, training
from hf_efficient.recipe.rules.settings import RULES, Contradiction, Rule, Settings

__all__ = ["RULES", "Contradiction", "Rule", "Settings", "distributed", "efficiency", "evaluation", "training"]
