from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hf_efficient.accounting.live import RunView
from hf_efficient.estimate.forecast import Forecast
from hf_efficient.records.account import ProcessAccount, RunAccount, StepTimes, TimeAccount
from hf_efficient.records.amounts import (
    BudgetAccount,
    EnergyAccount,
    Evaluation,
    MemoryAccount,
    MoneyAccount,
    SequenceAccount,
    TokenAccount,
    WorkAccount,
)
from hf_efficient.reporting.console import live_screen, sparkline

PHASES = {"imports": 5.0, "model_load": 2.0, "data_wait": 0.5, "forward": 30.0, "backward": 40.0}
MORE = {"optimizer": 3.0, "evaluation": 15.0, "checkpointing": 1.0, "shutdown": 1.5}
PROCESS = ProcessAccount(
    0, 0.0, 100.0, {**PHASES, **MORE}, 2.0, 9.0, 46, 1, 46, "died", None, "forward", 100.0, "kernel"
)
ACCOUNT = RunAccount(
    schema_version=2,
    hf_efficient_version="0",
    recorded_by="recipe",
    ended="died",
    error=None,
    time=TimeAccount(100.0, {**PHASES, **MORE}, 2.0, 75.0, 9.0, [PROCESS]),
    steps=StepTimes(46, 3, "", 1.5, 2.25, 3.0, 3.5, 9.0),
    tokens=TokenAccount(10_000, 9_000, 4_000, 0.1, 120.0, 133.0),
    memory=MemoryAccount(3 * 2**30, None, None, None),
    sequences=SequenceAccount(),
    work=WorkAccount(mfu=0.31),
    energy=EnergyAccount(),
    money=MoneyAccount(cost_usd=1.25, price_usd_per_hour=45.0),
    evaluations=[Evaluation(40, {"loss": 2.91, "perplexity": None})],
    ranks=[],
    not_measured=[],
)
VIEW = RunView(ACCOUNT, "running", 0.5, 46, 120, Forecast(152.0, False), 3.15, [4.0, 3.0, 2.5, 2.0])


def shown(view, width=80):
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(live_screen(view, Path("outputs/one")))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_run_that_goes_on():
    lines = shown(VIEW)
    assert lines[0] == "outputs/one  running for 1 min 40 s, in forward"
    assert lines[1].endswith("  46/120 steps, 2:32 left, $1.25 of about $3.15")
    assert lines[3:14] == [
        "where the time went       seconds   share",
        "start of Python, imports     5.00    5.0%  █",
        "model load                   2.00    2.0%",
        "forward                     30.00   30.0%  ███████",
        "backward                    40.00   40.0%  ██████████",
        "optimizer                    3.00    3.0%  █",
        "evaluation                  15.00   15.0%  ████",
        "other phases                 3.00    3.0%  █",
        "unattributed                 2.00    2.0%",
        "in all                     100.00  100.0%",
        "",
    ]
    assert lines[14:] == [
        "loss       4 █▅▃▁ 2",
        "evaluated  after step 40: loss 2.91",
        "steps      p50 1.50 s, p95 2.25 s",
        "tokens     120 per second without padding, 10% padding, 31% MFU",
        "memory     3.00 GiB of the host's, at most",
    ]
    assert len(lines) <= 23


def test_it_fits_into_sixty_columns():
    assert max(len(line) for line in shown(VIEW, 60)) <= 60


def test_a_lower_bound_says_so():
    assert "more than 2:32 left" in shown(replace(VIEW, rest=Forecast(152.0, True)))[1]


@pytest.mark.parametrize(
    ("changes", "account", "said"),
    [
        (
            {"state": "silent", "silent_seconds": 12.0},
            {},
            "no sign of life for 12.0 s; it had run for 1 min 40 s, in forward",
        ),
        (
            {"state": "gone", "silent_seconds": 61.0},
            {},
            "no sign of life for 1 min 01 s: it was killed, or its machine stands still; it had run for 1 min 40 s, in "
            "forward",
        ),
        ({"state": "ended"}, {"ended": "done"}, "ended after 1 min 40 s"),
        (
            {"state": "ended"},
            {"ended": "error", "error": "ValueError: [no]"},
            "failed after 1 min 40 s: ValueError: [no]",
        ),
        (
            {"state": "ended"},
            {
                "ended": "done",
                "money": MoneyAccount(budget=BudgetAccount(2.0, None, None, "usd: $1.98 of $2.00 spent", 46)),
            },
            "ended by its budget after 1 min 40 s: usd: $1.98 of $2.00 spent",
        ),
    ],
)
def test_how_it_stands(changes, account, said):
    lines = shown(replace(VIEW, rest=None, total_usd=None, account=replace(ACCOUNT, **account), **changes), 160)
    assert lines[0] == f"outputs/one  {said}"
    assert "left" not in lines[1]


def test_what_is_not_known_has_no_line():
    bare = replace(
        ACCOUNT,
        steps=StepTimes(0, 0, "", None, None, None, None, None),
        tokens=TokenAccount(None, None, None, None, None, None),
        memory=MemoryAccount(None, None, None, None),
        work=WorkAccount(),
        evaluations=[],
    )
    lines = shown(replace(VIEW, account=bare, max_steps=None, rest=None, losses=[]))
    assert lines[1] == ""
    assert [line for line in lines if line][-1].startswith("in all")


def test_bars_of_losses():
    assert sparkline([]) == ""
    assert sparkline([1.0]) == "▁"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, 2.0, 4.0, 6.0], width=2) == "▁█"  # means of 1 and 5
    assert len(sparkline([float(number) for number in range(1001)])) == 40
