"""How a run ends: faults of libraries in words, and the exit code that it leaves."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from hf_efficient.errors import DataError, OutputError, SetupError
from hf_efficient.launch.exits import (
    cause_of,
    earlier_code,
    explained_faults,
    forget_code,
    is_told_to_end,
    read_code,
    state_code,
    tell_to_end,
)
from hf_efficient.launch.started import STATUS_FILE

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("raised", "error", "told"),
    [
        (FULL, OutputError, r"no room left for out\. Make room, .*--resume"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), OutputError, "no room left"),
        (RuntimeError("unexpected pos 320 vs 214"), OutputError, "no room left"),
        (CheckpointException("write", {0: (FULL, [])}), OutputError, "no room left for out"),
        (PermissionError(13, "Permission denied", "out/x"), OutputError, "can no longer be written"),
        (torch.OutOfMemoryError("CUDA out of memory."), SetupError, r"per_device_train_batch_size .* adapter\.method"),
        (ModuleNotFoundError("No module named 'not_there'"), SetupError, "missing: No module named 'not_there'"),
        (
            RuntimeError("Expected to have finished reduction in the prior iteration before starting a new one."),
            SetupError,
            r"ddp_find_unused_parameters: is false, .*took no part in a step",
        ),
        (DataError("row 3"), DataError, "row 3"),
        (CheckpointException("read", {0: (ValueError("plain"), [])}), ValueError, "plain"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)
def test_faults_in_words(raised, error, told):
    with pytest.raises(error, match=told), explained_faults("out"):
        raise raised


def test_a_real_full_disk():
    with pytest.raises(OutputError, match="no room left for out"), explained_faults("out"):
        Path("/dev/full").write_text("one byte too many")


def test_the_first_ranks_fault_of_a_sharded_checkpoint():
    plain = ValueError("plain")
    assert cause_of(plain) is plain
    assert cause_of(CheckpointException("write", {3: (plain, []), 1: (FULL, [])})) is FULL


@pytest.fixture
def start(tmp_path):
    """The environment of a process of the n-th start."""
    path = str(tmp_path / "status")
    return lambda count: {STATUS_FILE: path, "TORCHELASTIC_RESTART_COUNT": str(count), "MASTER_PORT": "29500"}


def test_the_first_process_of_a_start_tells_why(start, tmp_path):
    assert state_code(1, start(0)) is True
    assert state_code(143, start(0)) is False  # what the launcher ended thereafter
    assert read_code(tmp_path / "status") == 1
    assert state_code(2, start(1)) is True
    assert read_code(tmp_path / "status") == 2
    (tmp_path / "status").write_text("")  # half a file tells nothing
    assert read_code(tmp_path / "status") is None
    assert state_code(1, start(0)) is True


def test_what_an_earlier_start_ended_with(start, tmp_path):
    assert earlier_code(start(0)) is None
    state_code(2, start(0))
    assert earlier_code(start(0)) is None
    assert earlier_code(start(1)) == 2
    forget_code(start(1))
    assert earlier_code(start(1)) is None
    assert read_code(tmp_path / "status") is None


def test_the_whole_run_is_told_to_end(start, tmp_path):
    assert not is_told_to_end(start(0))
    tell_to_end(tmp_path / "status")
    assert is_told_to_end(start(0))


def test_without_hf_efficient_train_nothing_is_left():
    assert state_code(2, {}) is None
    assert earlier_code({}) is None
    assert not is_told_to_end({})
    forget_code({})
