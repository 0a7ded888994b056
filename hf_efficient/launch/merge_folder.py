"""The folder of a merged model, which appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hf_efficient.errors import OutputError, first_line

__all__ = ["check_free", "written_whole"]


def check_free(output: Path, overwrite: bool) -> None:
    """Refuse an ``output`` that holds something, before the work begins.

    Raises:
        OutputError: it is a file, or a folder that is not empty and ``overwrite`` is not said.
    """
    if output.is_dir():
        if any(output.iterdir()) and not overwrite:
            raise OutputError(f"--output: {output} is not empty. Write another folder, or empty it first.")
    elif output.exists():
        raise OutputError(f"--output: {output} is a file. Write a folder.")


@contextmanager
def written_whole(output: Path) -> Iterator[Path]:
    """A folder beside ``output`` to write to; it takes the place of ``output`` unless the block raises.

    Raises:
        OutputError: a file or folder cannot be written.
    """
    from safetensors import SafetensorError

    staging = output.parent / f".merging-{output.name}-{os.getpid()}"
    try:
        staging.mkdir(parents=True)
        yield staging
        if output.exists():
            shutil.rmtree(output)
        staging.replace(output)
    except OSError as error:
        raise OutputError(f"--output: {output} cannot be written: {error.strerror or error}.") from error
    except SafetensorError as error:  # what a full disk is to safetensors
        raise OutputError(f"--output: {output} cannot be written: {first_line(error)}.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
