"""A recipe's model without some of its blocks or neurons, as a folder of its own that any recipe may train."""

from pathlib import Path

from hf_efficient.data.build import build_sft_data
from hf_efficient.errors import SetupError
from hf_efficient.launch.arguments import settle
from hf_efficient.launch.merge import check_free, written_whole
from hf_efficient.model.load import load_dense_base, load_tokenizer
from hf_efficient.model.prune import Pruned, prune, pruned_config
from hf_efficient.planning.model_config import whole_config
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import PruneSection, Recipe


def write_pruned(recipe: Recipe, section: PruneSection, output: Path) -> Pruned:
    """Measure on the recipe's training data, and write model and tokenizer; ``output`` appears whole or not at all.
    Raises as ``prune``; ``SetupError``: the recipe has no examples; ``OutputError``: the folder is not empty."""
    if not OBJECTIVES[recipe.objective].imitates:
        raise SetupError(
            f"objective: is {recipe.objective}, and blocks are measured on examples. Name a recipe of sft."
        )
    check_free(output, overwrite=False)
    pruned_config(whole_config(recipe.model), section)  # too many blocks: before the weights are read
    recipe, args = settle(recipe)
    tokenizer = load_tokenizer(recipe.model, recipe.train)
    rows = build_sft_data(recipe, tokenizer, args).train  # type: ignore[arg-type]
    model = load_dense_base(recipe.model)
    found = prune(model.to(args.device), section, rows)  # type: ignore[arg-type]
    with written_whole(output) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return found
