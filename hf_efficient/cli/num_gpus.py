"""``--num-gpus``: another word for ``distributed.processes``."""

from __future__ import annotations

from collections.abc import Sequence

from hf_efficient.errors import SetupError

__all__ = ["with_num_gpus"]

_KEY = "distributed.processes"


def with_num_gpus(overrides: Sequence[str], num_gpus: int | None) -> list[str]:
    """The overrides and the flag's own.

    Args:
        overrides: as the user wrote them.
        num_gpus: of the flag; None where it was not given.

    Raises:
        SetupError: both say how many, and not the same.
    """
    if num_gpus is None:
        return list(overrides)
    if num_gpus < 1:
        raise SetupError(f"--num-gpus: {num_gpus} cannot train. Write the number of GPUs, 1 or more.")
    said = [one.partition("=")[2] for one in overrides if one.startswith(f"{_KEY}=")]
    if said and said[-1].strip() != str(num_gpus):
        raise SetupError(f"--num-gpus: is {num_gpus}, but {_KEY}={said[-1]} was written as well. Write one of them.")
    return [*overrides, f"{_KEY}={num_gpus}"]
