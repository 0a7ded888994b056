"""What is wrong with a sharded checkpoint, out of an exception that is none."""

from __future__ import annotations

import errno

import pytest
from torch.distributed.checkpoint.api import CheckpointException

from hf_efficient.errors import OutputError
from hf_efficient.launch.exits import cause_of, explained_faults

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_the_first_ranks_fault():
    plain = ValueError("plain")
    assert cause_of(plain) is plain
    assert cause_of(KeyboardInterrupt()).args == ()
    assert cause_of(CheckpointException("write", {3: (plain, []), 1: (FULL, [])})) is FULL  # type: ignore[dict-item]


def test_a_full_disk_under_fsdp2_is_told_as_any_other():
    with pytest.raises(OutputError, match="no room left for out"), explained_faults("out"):
        raise CheckpointException("write", {0: (FULL, [])})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="plain"), explained_faults("out"):
        raise CheckpointException("read", {0: (ValueError("plain"), [])})  # type: ignore[dict-item]
    with pytest.raises(KeyboardInterrupt), explained_faults("out"):
        raise KeyboardInterrupt
