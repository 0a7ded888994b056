"""``accelerate launch -m hf_efficient.train RECIPE [a.b=value ...] [--resume | --overwrite] [--debug]``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_efficient.errors import HfEfficientError
from hf_efficient.hardware.quiet import quieten_libraries
from hf_efficient.launch.flags import STATUS_FILE, parse_flags
from hf_efficient.launch.offline import go_offline_without_hub
from hf_efficient.recipe.load import load_recipe

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a recipe in this process; returns the exit code.

    0: done. 2: something that the user can mend, said on standard error. 130: interrupted. A defect of ours is raised.
    """
    flags = parse_flags(sys.argv[1:] if arguments is None else arguments)
    try:
        recipe = load_recipe(flags.recipe, flags.overrides)
        quieten_libraries(debug=flags.debug)
        go_offline_without_hub(recipe)
        from hf_efficient.launch.run import run_recipe
        from hf_efficient.launch.terminal import TerminalListener

        run_recipe(recipe, TerminalListener())
    except HfEfficientError as error:
        if flags.debug:
            raise
        if int(os.environ.get("RANK", "0")) == 0:
            for line in str(error).splitlines():
                print(f"error: {line}", file=sys.stderr)
        return _leave(error.exit_code)
    except KeyboardInterrupt:
        print("\nInterrupted. --resume goes on from the last checkpoint.", file=sys.stderr)
        return _leave(130)
    return 0


def _leave(code: int) -> int:
    """Also tell `hf-efficient train`, since accelerate's launcher passes on no exit code but 1."""
    status = os.environ.get(STATUS_FILE)
    if status:
        Path(status).write_text(str(code), encoding="ascii")
    return code


if __name__ == "__main__":
    sys.exit(main())
