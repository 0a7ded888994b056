from __future__ import annotations

import pytest

from hf_efficient.launch.exits import earlier_code, forget_code, is_told_to_end, read_code, state_code, tell_to_end
from hf_efficient.launch.started import STATUS_FILE


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
    assert not is_told_to_end({})


def test_without_hf_efficient_train_nothing_is_left():
    assert state_code(2, {}) is None
    assert earlier_code({}) is None
    forget_code({})


def test_half_a_file_tells_nothing(start, tmp_path):
    (tmp_path / "status").write_text("")
    assert read_code(tmp_path / "status") is None
    assert state_code(1, start(0)) is True
