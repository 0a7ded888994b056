"""``hf-efficient train``: the proof before the run, and the run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_efficient.recipe.schema import Recipe

__all__ = ["prove_run", "run_proven"]


def prove_run(recipe: Recipe, command: Sequence[str], environment: Mapping[str, str], *, debug: bool) -> None:
    """Prove it, and show what was proven.

    Args:
        recipe: of the run.
        command: that starts it.
        environment: beside this process's own.
        debug: show what the launches write.

    Raises:
        HfEfficientError: the answer is no, or several machines would have to be started.
    """
    from rich.console import Console
    from rich.markup import escape

    from hf_efficient.errors import SetupError
    from hf_efficient.launch.preflight.launches import ProofLaunch
    from hf_efficient.launch.preflight.preflight import prove

    if recipe.distributed.nodes > 1:
        raise SetupError(
            f"--preflight-only: starts the processes of one machine, and distributed.nodes is "
            f"{recipe.distributed.nodes}. Write distributed.nodes=1 to prove the share of one."
        )
    console = Console(highlight=False)

    def tell(title: str, detail: str) -> None:
        console.print(f"[bold]{escape(title):<12}[/bold]{escape(detail)}", soft_wrap=True)

    with console.status("starting ...") as status:  # shows on a terminal alone
        launch = ProofLaunch(command, environment, debug, lambda stage: status.update(f"{stage} ..."))
        prove(recipe, launch, tell)


def run_proven(recipe: Recipe, command: Sequence[str], environment: Mapping[str, str], *, debug: bool) -> int:
    """Run; where the run wants a proof first, which it knows once it has read its data: prove it, and start it again.

    Args:
        recipe: of the run.
        command: that starts it.
        environment: beside this process's own.
        debug: show what the launches of a proof write.

    Returns:
        The exit code of the run.

    Raises:
        HfEfficientError: the proof failed, and the run was not started again.
    """
    from hf_efficient.cli.run_command import run_command
    from hf_efficient.launch.preflight.kept import kept_preflight
    from hf_efficient.launch.preflight.wanted import WISH_FILE

    wanted = recipe.efficiency.preflight if recipe.distributed.nodes == 1 else False
    kept = kept_preflight(recipe) if wanted is True else None
    if wanted is True and (kept is None or not kept.passed):  # no need to ask the run
        prove_run(recipe, command, environment, debug=debug)
        return run_command(list(command), recipe.output_dir, environment)
    with tempfile.TemporaryDirectory() as folder:
        wish = Path(folder) / "wish"
        code = run_command(
            list(command), recipe.output_dir, {**environment, **({WISH_FILE: str(wish)} if wanted else {})}
        )
        if code or not wish.is_file():
            return code
        why = wish.read_text(encoding="utf-8")
    print(f"Proven first, since {why}:", flush=True)
    prove_run(recipe, command, environment, debug=debug)
    return run_command(list(command), recipe.output_dir, environment)
