"""What it took to go on, by hand."""

from __future__ import annotations

import pytest
from test_account_build import end, lines, process, span, step, train
from test_account_energy import facts
from test_account_money import price

from hf_efficient.accounting.account import account_of
from hf_efficient.records.account import RestartAccount


@pytest.fixture
def run(tmp_path):
    """Steps 1 to 5 of 10 s each, from second 100 on; the process is killed in step 6."""
    lines(tmp_path / "spans.jsonl", process(), facts(price=price(3600.0)), span(0.0, imports=100.0), train(0, 100.0))
    lines(tmp_path / "steps.jsonl", *(step(one, 10.0 * (one - 1), 10.0, forward=10.0) for one in range(1, 6)))
    return tmp_path


def test_one_start_has_none(run):
    assert account_of(run).restarts == []


def test_steps_beyond_the_checkpoint_are_done_again(run):
    """From checkpoint-3: steps 4 and 5, 20 s, and 80 s until the first step begins: 100 s at a dollar a second."""
    again = [step(one, 5.0 + 10.0 * (one - 4), 10.0, segment=1, forward=10.0) for one in range(4, 9)]
    lines(run / "steps.jsonl", *again)
    lines(run / "spans.jsonl", process(1), facts(1, price=price(3600.0)), span(0.0, 1, imports=75.0), train(1, 75.0, 1))
    lines(run / "spans.jsonl", end(130.0, 1))
    found = account_of(run)
    assert found.restarts == [RestartAccount(1, 5, 3, 2, 20.0, 80.0, 100.0)]
    assert [one.steps for one in found.time.processes] == [5, 5]
    assert found.time.wall_seconds == 150.0 + 130.0  # each second once


def test_nothing_is_done_again_after_a_checkpoint_of_the_last_step(run):
    lines(run / "steps.jsonl", step(6, 0.0, 10.0, segment=1, forward=10.0))
    lines(run / "spans.jsonl", process(1), train(1, 50.0, 1), end(60.0, 1))
    (found,) = account_of(run).restarts
    assert (found.resumed_after_step, found.steps_again, found.seconds_again, found.start_seconds) == (5, 0, 0.0, 50.0)


def test_a_start_that_never_came_to_train_and_one_from_the_beginning(run):
    """The second lives 30 s; the third begins anew after 40: 50 s of steps are lost."""
    lines(run / "spans.jsonl", process(1), facts(1, price=price(3600.0)), end(30.0, 1, ended="error", error="x"))
    lines(run / "steps.jsonl", *(step(one, 10.0 * (one - 1), 10.0, segment=1, forward=10.0) for one in range(1, 8)))
    lines(run / "spans.jsonl", process(2), train(1, 40.0, 2), end(110.0, 2))
    assert account_of(run).restarts == [
        RestartAccount(1, 5, None, 0, 0.0, 30.0, 30.0),
        RestartAccount(2, 5, 0, 5, 50.0, 40.0, None),
    ]


def test_what_a_killed_rank_did_not_write_is_missed(run):
    """Of five steps before the restart rank 1 left two; of those after it, all."""
    more = [step(one, 10.0 * (one - 6), 10.0, segment=1, forward=10.0) for one in (6, 7)]
    lines(run / "steps.jsonl", *more)
    lines(run / "spans.jsonl", process(1), train(1, 50.0, 1), end(70.0, 1))
    theirs = [step(one, 10.0 * (one - 1), 10.0, rank=1, forward=10.0) for one in (1, 2)]
    theirs += [step(one, 10.0 * (one - 6), 10.0, segment=1, rank=1, forward=10.0) for one in (6, 7)]
    lines(run / "steps.rank1.jsonl", *theirs)
    (gap,) = [one for one in account_of(run).not_measured if "of rank 1" in one.what]
    assert gap.what == "3 steps of rank 1"
    assert gap.why.startswith("its process was killed before it wrote their records")
