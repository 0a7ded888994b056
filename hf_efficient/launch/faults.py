"""Faults of a run that come out of a library, and that the user can mend."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from hf_efficient.errors import HfEfficientError, OutputError, SetupError, first_line

__all__ = ["explained_faults"]

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextmanager
def explained_faults(output_dir: str) -> Iterator[None]:
    """Turn a full disk, exhausted device memory or a missing optional package into an error that names the remedy.

    Args:
        output_dir: the recipe's, for messages.

    Raises:
        OutputError: the disk is full, or became read-only.
        SetupError: out of device memory, or a package is missing.
    """
    import torch

    try:
        yield
    except HfEfficientError:
        raise
    except torch.OutOfMemoryError as error:
        raise SetupError(
            f"out of device memory: {first_line(error)} Less is needed with a smaller "
            "train.per_device_train_batch_size (and a larger train.gradient_accumulation_steps), "
            "train.gradient_checkpointing: true, a shorter train.max_length, or adapter.method: qlora."
        ) from error
    except ImportError as error:
        raise SetupError(f"a package that the recipe needs is missing: {first_line(error)}") from error
    except Exception as error:
        if _is_full_disk(error):
            raise OutputError(
                f"output_dir: no room left for {output_dir}. Make room, or write fewer checkpoints "
                "(train.save_total_limit, train.save_steps); --resume goes on from the last whole checkpoint."
            ) from error
        if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
            raise OutputError(f"output_dir: {output_dir} can no longer be written: {error}") from error
        raise


def _is_full_disk(error: Exception) -> bool:
    """Also of libraries that write by themselves and report what the system said as text."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return True
    text = str(error)
    # "unexpected pos" is what torch.save says when its archive comes out shorter than it wrote.
    return "No space left on device" in text or "os error 28" in text or "unexpected pos" in text
