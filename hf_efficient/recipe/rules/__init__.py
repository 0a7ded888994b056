"""Contradictions between the sections of a recipe: what each section alone cannot know.

To add a rule, write a row of ``facts/data/recipe_rules.yaml``; where values alone do not show it, write a function in
the file of its subject, and decorate it with ``rule``.
"""

from hf_efficient.recipe.rules import distributed, training, values  # noqa: F401
from hf_efficient.recipe.rules.settings import RULES, Settings

__all__ = ["RULES", "Settings"]
