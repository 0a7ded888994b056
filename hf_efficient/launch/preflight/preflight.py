"""The proof before a run, from the process that starts the run."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

from hf_efficient.errors import HfEfficientError, OutputError, PreflightError
from hf_efficient.launch.preflight.kept import preflight_path, write_preflight
from hf_efficient.launch.preflight.launches import ProofLaunch, launch_part, log_of
from hf_efficient.launch.preflight.notes import Part
from hf_efficient.launch.preflight.proof_recipe import preflight_folder
from hf_efficient.launch.preflight.verdict import differing, disk_failure, figures_of
from hf_efficient.launch.run_files import remove
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.preflight import Preflight, PreflightFailure
from hf_efficient.report.preflight_words import preflight_words

__all__ = ["preflight", "prove"]

_NO_LOG = ("disk", "differs", "input")


def prove(recipe: Recipe, launch: ProofLaunch, tell: Callable[[str, str], None]) -> None:
    """Prove a run, say what was proven, and remember it in its output directory.

    Args:
        recipe: of the run.
        launch: how it is started.
        tell: shows a line: its title, or an empty one, and its text.

    Raises:
        PreflightError: the run would fail; says where, and what to write instead.
        HfEfficientError: what the run itself would refuse.
        OutputError: the output directory cannot be written.
    """
    tell("Preflight", "the longest batch, a save and a load back, each in a launch of its own")
    found = preflight(recipe, launch)
    for line in preflight_words(found):
        tell("", line)
    if found.failure is not None:
        told = found.failure.message
        raise HfEfficientError(told) if found.failure.kind == "input" else PreflightError(f"preflight: {told}")


def preflight(recipe: Recipe, launch: ProofLaunch) -> Preflight:
    """Prove a run, and write ``preflight.json``; nothing else is left of it.

    Args:
        recipe: of the run.
        launch: how it is started.

    Raises:
        OutputError: the output directory cannot be written.
    """
    began = time.monotonic()
    folder = preflight_folder(recipe)
    remove(folder)  # of a proof that was killed
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise OutputError(f"output_dir: {folder} cannot be written: {error.strerror or error}.") from error
    with _ends_on_signals():
        try:
            figures, failure = _proven(recipe, launch)
            if failure is not None and failure.kind not in _NO_LOG and not launch.debug:
                failure = replace(failure, message=f"{failure.message} {_kept_log(recipe)}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    found = Preflight(
        fingerprint=figures.pop("fingerprint", ""),
        passed=failure is None,
        wall_seconds=time.monotonic() - began,
        failure=failure,
        **figures,
    )
    write_preflight(recipe, found)
    return found


def _proven(recipe: Recipe, launch: ProofLaunch) -> tuple[dict[str, Any], PreflightFailure | None]:
    folder, limit = preflight_folder(recipe), 60 * recipe.efficiency.preflight_minutes
    saved, failure = launch_part(launch, folder, "save", limit)
    figures = figures_of(saved)
    failure = failure or disk_failure(figures)
    if failure is not None or recipe.train.get("save_only_model"):
        return figures, failure
    loaded, failure = launch_part(launch, folder, "load", limit)
    return figures_of(saved, loaded), failure or differing(saved, loaded)


def _kept_log(recipe: Recipe) -> str:
    """Keep what the launches wrote, beside ``preflight.json``; where, in words."""
    parts: tuple[Part, ...] = ("save", "load")
    written = [path for part in parts if (path := log_of(preflight_folder(recipe), part)).is_file()]
    kept = preflight_path(recipe).with_suffix(".log")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(b"".join(path.read_bytes() for path in written))
    except OSError as error:
        return f"Its log could not be kept: {error.strerror or error}."
    return f"All that it wrote is in {kept}."


@contextmanager
def _ends_on_signals() -> Iterator[None]:
    """A signal that would end this process at once ends what it has started first."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
