"""Faults of a run that come out of a library, and that the user can mend."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from hf_efficient.errors import HfEfficientError, OutputError, SetupError, first_line
from hf_efficient.launch.checkpoint_faults import cause_of

__all__ = ["explained_faults", "is_lost_peer"]

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NO_GRADIENT = "Expected to have finished reduction in the prior iteration"
"""What DDP says in the step after one in which a weight got no gradient."""
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextmanager
def explained_faults(output_dir: str) -> Iterator[None]:
    """Turn a full disk, exhausted device memory, a missing optional package or weights that DDP waits for in vain into
    an error that names the remedy.

    Args:
        output_dir: the recipe's, for messages.

    Raises:
        OutputError: the disk is full, or became read-only.
        SetupError: out of device memory, a package is missing, or a trained weight takes no part in the training.
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
    except BaseException as raised:
        fault = cause_of(raised)
        if not isinstance(fault, Exception):
            raise
        if _is_full_disk(fault):
            raise OutputError(
                f"output_dir: no room left for {output_dir}. Make room, or write fewer checkpoints "
                "(train.save_total_limit, train.save_steps); --resume goes on from the last whole checkpoint."
            ) from raised
        if _NO_GRADIENT in str(fault):
            raise SetupError(
                "train.ddp_find_unused_parameters: is false, by default for a model without experts, but some of the "
                "weights that are trained took no part in a step, and DDP waits for their gradients. Train only what "
                "the model uses (adapter.target_modules, adapter.modules_to_save), or write "
                "`train.ddp_find_unused_parameters: true`."
            ) from raised
        if isinstance(fault, OSError) and fault.errno in _NOT_WRITABLE:
            raise OutputError(f"output_dir: {output_dir} can no longer be written: {fault}") from raised
        if fault is raised:
            raise
        raise fault from raised


def is_lost_peer(error: Exception) -> bool:
    """Whether a collective failed because another process is no longer there (gloo's words, and NCCL's)."""
    text = str(error)
    return isinstance(error, RuntimeError) and any(
        said in text
        for said in ("Connection closed by peer", "Connection reset by peer", "remote process exited", "Broken pipe")
    )


def _is_full_disk(error: Exception) -> bool:
    """Also of libraries that write by themselves and report what the system said as text."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return True
    text = str(error)
    # "unexpected pos" is what torch.save says when its archive comes out shorter than it wrote.
    return "No space left on device" in text or "os error 28" in text or "unexpected pos" in text
