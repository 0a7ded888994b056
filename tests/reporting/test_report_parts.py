"""A run of several starts and several calls of train(): how many there were, and each by itself."""

from __future__ import annotations

import dataclasses
import re

from hf_efficient.records.account import TrainingAccount
from hf_efficient.reporting.console import account_renderables
from hf_efficient.reporting.html.run_page import run_page
from hf_efficient.reporting.run_rows import told_parts

CALLS = [
    TrainingAccount(0, 20.0, 30.0, 8, 1, 8, 2.5, "done", None),
    TrainingAccount(1, 60.0, 4.0, 0, None, None, None, "error", "ValueError: no"),
]


def with_calls(run, *calls):
    processes = [
        dataclasses.replace(process, began_at_seconds=5.0, trainings=list(trainings))
        for process, trainings in zip(run.account.time.processes, calls, strict=True)
    ]
    time = dataclasses.replace(run.account.time, processes=processes)
    return dataclasses.replace(run, account=dataclasses.replace(run.account, time=time))


def said(run):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", run_page(run)))


def test_how_many_parts(full_run, resumed_run):
    assert told_parts(with_calls(full_run, CALLS[:1]).account) == ""
    assert told_parts(with_calls(full_run, CALLS).account) == ", 2 calls of train()"
    assert told_parts(with_calls(resumed_run, CALLS[:1], CALLS[1:]).account) == ", 2 starts"
    assert told_parts(with_calls(resumed_run, CALLS, CALLS[1:]).account) == ", 2 starts, 3 calls of train()"
    title = account_renderables(with_calls(full_run, CALLS).account)[0]
    assert str(title).endswith(", 2 calls of train()")


def test_each_call_has_a_row(full_run, resumed_run):
    page = said(with_calls(full_run, CALLS))
    assert "1 1 to 8 15.0 s 30.0 s 2.5 s finished 2 none 55.0 s 4.0 s failed: ValueError: no" in page
    assert "2 calls of train()" in page
    page = said(with_calls(resumed_run, CALLS, CALLS[:1]))
    assert "2.1 1 to 8 15.0 s 30.0 s 2.5 s finished" in page
    assert "call of train()" not in said(with_calls(resumed_run, CALLS[:1], CALLS[1:]))
