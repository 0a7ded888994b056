"""torch's own exception of sharded checkpoints, which is no ``Exception``, to the fault that is in it."""

from __future__ import annotations

__all__ = ["cause_of"]


def cause_of(error: BaseException) -> BaseException:
    """The first rank's fault of a ``CheckpointException`` (``torch.distributed.checkpoint``); any other as it is.

    It derives from ``BaseException`` (2.13), so that no ``except Exception`` sees it, and its first line names ranks
    alone.

    Args:
        error: that ended something.
    """
    failures = getattr(error, "failures", None)
    if isinstance(error, Exception) or not isinstance(failures, dict) or not failures:
        return error
    first = failures[min(failures)]
    cause = first[0] if isinstance(first, tuple) else first  # with the lines of its traceback
    return cause if isinstance(cause, BaseException) else error
