"""One process of a launch of ``parity.py``: the recipes that it is given, one after the other."""

import sys

from hf_efficient.facts.environment import quieten_libraries


def main() -> None:
    """Train them."""
    quieten_libraries(debug=False)
    from torch import distributed as dist

    from hf_efficient.launch.run import run_recipe
    from hf_efficient.recipe.load import load_recipe

    overrides = [one for one in sys.argv[1:] if "=" in one]
    for path in (one for one in sys.argv[1:] if one not in overrides):
        run_recipe(load_recipe(path, overrides))
    if dist.is_initialized():
        dist.destroy_process_group()  # else gloo's threads may be alive when the interpreter ends, which aborts it


if __name__ == "__main__":
    main()
