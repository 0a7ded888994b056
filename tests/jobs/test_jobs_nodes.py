"""Machines that tell each other through a folder that they are here."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from hf_efficient.errors import OutputError, SetupError
from hf_efficient.jobs.nodes import FOLDER, Machine, answer, same_versions, started_before


def machine(rank, version="1.0"):
    return Machine(rank, f"host{rank}", version)


def called(directory, job="7", attempt="0", nodes=2):
    """All machines of one start, each in a thread; what each saw."""

    def one(rank):
        return answer(directory, job, attempt, machine(rank), nodes, patience=20, look_every=0.01)

    with ThreadPoolExecutor(nodes) as threads:
        return list(threads.map(one, range(nodes)))


def test_all_see_all(tmp_path):
    assert called(tmp_path / "new" / "out", nodes=3) == [[machine(rank) for rank in range(3)]] * 3


def test_one_that_does_not_come_is_named(tmp_path):
    with pytest.raises(SetupError) as error:
        answer(tmp_path, "7", "0", machine(1), 4, patience=0.05, look_every=0.01)
    assert str(error.value) == (
        f"--nodes 4: host1 (machine 1) saw nothing of machine 0, 2, 3 in {tmp_path} within 0.05 s: it was not started, "
        "or output_dir is not on storage that all machines share."
    )
    called(tmp_path, attempt="1")
    with pytest.raises(SetupError, match="saw nothing of machine 1 "):  # an earlier start does not answer
        answer(tmp_path, "7", "2", machine(0), 2, patience=0.05, look_every=0.01)


def test_storage_that_cannot_be_written(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputError, match=r"cannot be written by host0 \(machine 0\): .*storage that every machine"):
        answer(tmp_path / "out", "7", "0", machine(0), 1, patience=1)


def test_versions_that_differ():
    same_versions([machine(0), machine(1)])
    with pytest.raises(SetupError) as error:
        same_versions([machine(0), machine(1, "1.1")])
    assert str(error.value) == (
        "hf_efficient: host0 (machine 0) has 1.0, host1 (machine 1) has 1.1. Install the same version on all of them."
    )


def test_a_first_start_and_a_later_one(tmp_path):
    run_file = tmp_path / "efficiency" / "recipe.resolved.yaml"
    called(tmp_path, "sky/2026 a_b", "31 4")
    assert not started_before(tmp_path, "sky/2026 a_b", "31 4", run_file)
    called(tmp_path, "sky/2026 a_b", "99")
    assert started_before(tmp_path, "sky/2026 a_b", "99", run_file)
    called(tmp_path, "another job", "99")
    assert not started_before(tmp_path, "another job", "99", run_file)


def test_a_run_that_was_to_be_replaced_is_not_gone_on_with(tmp_path):
    """The first start was told to overwrite it, and ended before it came to."""
    run_file = tmp_path / "run"
    run_file.write_text("another run's")
    called(tmp_path, attempt="0")
    called(tmp_path, attempt="1")
    first = tmp_path / FOLDER / "7" / "first_attempt"
    os.utime(run_file, (1000, 1000))
    assert not started_before(tmp_path, "7", "1", run_file)
    os.utime(run_file, (first.stat().st_mtime + 5,) * 2)
    assert started_before(tmp_path, "7", "1", run_file)
