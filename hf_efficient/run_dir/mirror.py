"""A second place for a run's checkpoints: a folder, or a URL of any file system that fsspec knows.

A checkpoint is copied file by file, its manifest last, so that half a copy is no checkpoint there either. Beside them
lies the run's resolved recipe, which makes a run again of an empty output directory.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_efficient.errors import OutputError, first_line
from hf_efficient.run_dir.checkpoints import MANIFEST, checkpoints, discard, fault_of, files_in, step_of, surplus
from hf_efficient.run_dir.paths import RESOLVED

logger = logging.getLogger(__name__)


@contextmanager
def reached(url: str) -> Iterator[Mirror]:
    """Raises ``OutputError``, whatever the library behind a URL raises."""
    try:
        yield Mirror(url)
    except OutputError:
        raise
    except Exception as error:
        remedy = "Make it readable and writable, write another place, or leave the key out."
        raise OutputError(f"checkpoints.mirror: {url}: {first_line(error)}. {remedy}") from error


class Mirror:
    """``add`` copies in a thread, one checkpoint after the other; of those that wait only the newest. A copy that fails
    is a warning, and counted. ``busy``: names of those that must not be removed yet. Methods raise what fsspec does."""

    def __init__(self, url: str) -> None:
        self._url = url if "://" in url else str(Path(url).expanduser().absolute())
        self.failed, self.busy, self._newest, self._lock = 0, set[str](), "", threading.Lock()

    @cached_property
    def _files(self) -> Any:
        """Of this place: paths are relative to it."""
        from fsspec.core import url_to_fs
        from fsspec.implementations.dirfs import DirFileSystem

        files, root = url_to_fs(self._url)
        return DirFileSystem(root, files)

    def steps(self) -> list[int]:
        """Of the checkpoints that were copied to their end."""
        self._files.invalidate_cache()
        found = {step_of(Path(path).parent) for path in self._files.glob(f"checkpoint-*/{MANIFEST}")}
        return sorted(found - {0})

    def put(self, checkpoint: Path) -> None:
        self.remove(step_of(checkpoint))
        pairs = [(checkpoint / name, f"{checkpoint.name}/{name}") for name in (*files_in(checkpoint), MANIFEST)]
        recipe = checkpoint.parent / "efficiency" / RESOLVED
        for local, name in [*pairs, *[(recipe, RESOLVED)] * recipe.is_file()]:
            self._files.makedirs(name.rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(local), name)

    def fetch(self, step: int, directory: Path) -> Path | None:
        """Into a run's directory, with the recipe where there is none; None where it is not whole."""
        folder, local, recipe = directory / ".mirrored", directory / f"checkpoint-{step}", directory / "efficiency"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            self._files.get(local.name, str(folder), recursive=True)
            if fault := fault_of(folder, hashes=True):
                logger.warning("checkpoints.mirror: %s is passed over: %s", local.name, fault)
                return None
            if not (recipe / RESOLVED).exists() and self._files.exists(RESOLVED):
                recipe.mkdir(exist_ok=True)
                self._files.get_file(RESOLVED, str(recipe / RESOLVED))
            discard(local)
            return folder.rename(local)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def remove(self, *steps: int) -> None:
        for name in (f"checkpoint-{step}" for step in steps):
            if self._files.exists(name):
                self._files.rm(name, recursive=True)

    def add(self, checkpoint: Path, keep: int | None, best: str) -> None:
        """Copy a whole checkpoint; then keep as many there as here, ``best``, and none of another future of the run."""
        self._newest = checkpoint.name
        self.busy.add(checkpoint.name)
        threading.Thread(target=self._copy, args=(checkpoint, keep, best), name="mirror", daemon=True).start()

    def wait(self, seconds: float) -> int:
        """Until all is copied, but no longer than that; returns how many copies have failed."""
        until = time.monotonic() + seconds
        while self.busy and time.monotonic() < until:
            time.sleep(0.02)
        if self.busy:
            self._fail(self._newest, f"it was not there {seconds:.0f} s after the training")
        return self.failed

    def _copy(self, checkpoint: Path, keep: int | None, best: str) -> None:
        try:
            with self._lock:
                if checkpoint.name == self._newest:
                    self.put(checkpoint)
                    newest, steps = step_of(checkpoint), self.steps()
                    past = [f"checkpoint-{step}" for step in steps if step <= newest]
                    old = surplus(past, len(past) if keep is None else keep, {checkpoint.name, best})
                    self.remove(*(step_of(Path(name)) for name in old), *(step for step in steps if step > newest))
        except Exception as error:  # noqa: BLE001  of any library behind fsspec; the training must not notice
            self._fail(checkpoint.name, first_line(error))
        self.busy.discard(checkpoint.name)

    def _fail(self, name: str, why: str) -> None:
        self.failed += 1
        if self.failed == 1:
            said = "checkpoints.mirror: %s was not copied to %s: %s. The run continues, and tries the later ones."
            logger.warning(said, name, self._url, why)


def newer_in_mirror(url: str, directory: Path) -> Path | None:
    """Fetch the newest checkpoint of a mirror that is whole, unless one here is whole and as new; returns where it lies
    now. Raises ``OutputError``: the mirror cannot be read, and here is no checkpoint either."""
    whole = max((step_of(one) for one in checkpoints(directory) if fault_of(one, hashes=True) is None), default=0)
    try:
        with reached(url) as mirror:
            newer = (mirror.fetch(step, directory) for step in reversed(mirror.steps()) if step > whole)
            return next((one for one in newer if one is not None), None)
    except OutputError as error:
        if not whole:
            raise
        logger.warning("The run resumes from checkpoint-%d, which is here. %s", whole, error)
        return None
