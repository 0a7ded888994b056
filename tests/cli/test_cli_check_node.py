"""``hf-efficient check-node``: what a machine of a job says of itself."""

from __future__ import annotations

import pytest

from hf_efficient.version import __version__


@pytest.fixture
def check(run, tmp_path):
    def checked(*arguments, job="7", attempt="0"):
        return run("check-node", str(tmp_path / "out"), "--job", job, "--attempt", attempt, *arguments)

    return checked


def test_a_first_start_says_nothing_and_a_later_one_to_resume(check, tmp_path):
    first = check("--written-by", __version__)
    assert (first.code, first.out) == (0, "")
    assert first.err.endswith(f": hf_efficient {__version__}, no GPUs asked for, {tmp_path / 'out'}\n")
    assert check(attempt="1").out == "--resume\n"
    assert check(attempt="1", job="8").out == ""


def test_a_job_that_another_version_wrote_is_remarked_on(check):
    ended = check("--written-by", "0.0.7")
    assert ended.code == 0
    assert "The job was written by hf_efficient 0.0.7; " in ended.err


def test_gpus_that_are_not_there(check, monkeypatch, tmp_path):
    monkeypatch.setattr("hf_efficient.facts.environment.accelerator_count", lambda: 3)
    assert check("--gpus", "3").code == 0
    ended = check("--gpus", "4")
    assert ended.code == 2
    assert "shows torch 3 GPUs, and the job needs 4. Check the driver there" in ended.err


def test_a_rank_that_is_none(check, tmp_path):
    ended = check("--nodes", "2", "--node-rank", "2")
    assert (ended.code, ended.err) == (2, "error: --node-rank: is 2, but --nodes 2 counts from 0 to 1.\n")
    assert not (tmp_path / "out").exists()


def test_a_machine_that_stays_alone(check):
    ended = check("--nodes", "2", "--patience", "0")
    assert ended.code == 2
    assert "saw nothing of machine 1 in " in ended.err
