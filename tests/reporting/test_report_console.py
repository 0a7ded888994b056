"""Rows about a run in words, and its screens on a terminal."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest
from page_reader import printed

from hf_efficient.accounting.comparison import compare_runs
from hf_efficient.accounting.live import RunView
from hf_efficient.estimate.forecast import Forecast
from hf_efficient.records import account as rec
from hf_efficient.records import amounts
from hf_efficient.reporting import run_rows
from hf_efficient.reporting.comparison import comparison_rows
from hf_efficient.reporting.console import live_screen, rank_renderables

GIB = 2**30


def categories(**sizes):
    return [amounts.MemoryCategory(name, int(size * GIB), "exact") for name, size in sizes.items()]


def test_the_largest_first():
    found = categories(weights=4, adapter=0.5, gradients=0, optimizer_state=1, rest=2)
    by_phase = {"forward_backward": 8 * GIB, "optimizer": 6 * GIB}
    memory = amounts.MemoryAccount(3 * GIB, 8 * GIB, 9 * GIB, 2, by_phase, found)
    assert list(run_rows.memory_rows(memory)) == [
        (
            "memory",
            "3.00 GiB at most in the host's memory, 8.00 GiB allocated on the device, 9.00 GiB reserved, "
            "2 allocation retries",
        ),
        ("", "weights 4.00 GiB, everything else 2.00 GiB, optimizer state 1.00 GiB, adapter 512.0 MiB"),
        ("", "at most in forward and backward 8.00 GiB, optimizer 6.00 GiB"),
    ]


FIRST = rec.RankAccount(
    0, 10, 10, 8.0, "node-a", "NVIDIA H100 0", {"data_wait": 1.0, "forward": 0.1}, 3.0, None, GIB, 2 * GIB, 3 * GIB
)
SECOND = dataclasses.replace(FIRST, rank=1, host="node-b", waited_seconds=1.0, device_peak_allocated_bytes=None)
SKEW = [
    rec.PhaseSkew("backward", 1, "node-b", "NVIDIA H100 0", 5.0, 2.0, 0.25, True),
    rec.PhaseSkew("forward", 0, "node-a", "NVIDIA H100 0", 3.0, 0.01, 0.001, True),
]
ACROSS = rec.AcrossRanks(2, 2, SKEW, 1.0, 1.0, "device", 0.5, 0.125)


@pytest.fixture
def account(bare_run):
    told = bare_run.account
    time = dataclasses.replace(told.time, training_seconds=10.0)
    return dataclasses.replace(told, time=time, ranks=[FIRST, SECOND], across=ACROSS)


def test_a_row_per_rank(account):
    found = run_rows.rank_table(account)
    assert found.headings == ["rank", "on", "steps", "training", "data wait", "forward", "waits", "memory"]
    assert found.rows[0] == ["0", "node-a, NVIDIA H100 0", "10", "8.0 s", "1.0 s", "0.1 s", "3.0 s", "2.00 GiB"]
    assert found.rows[1][-2:] == ["1.0 s", "1.00 GiB"]


def test_communication_and_the_ranks_that_take_longer_with_what_it_costs(account):
    communication, skew = run_rows.across_lines(account)
    assert communication.startswith("communication: 1.0 s exposed (10% of the training, $0.50)")
    assert communication.endswith("waited 1.0 s each for those that came later, $0.12")
    assert skew == ("rank 1 (node-b, NVIDIA H100 0) takes 2.0 s longer than the other in backward on the device, $0.25")


def test_the_terminal_shows_them_and_nothing_of_one_rank(account):
    text = "\n".join(printed(*rank_renderables(account), width=200))
    assert all(told in text for told in ("node-b, NVIDIA H100 0", "waits", "rank 1 (node-b"))
    assert list(rank_renderables(dataclasses.replace(account, across=None))) == []


def test_runs_on_different_numbers_of_ranks_have_a_scaling_efficiency(bare_run):
    def run(ranks, rate):
        tokens = dataclasses.replace(bare_run.account.tokens, non_padding_tokens_per_second=rate)
        each = [dataclasses.replace(FIRST, rank=rank) for rank in range(ranks)]
        return dataclasses.replace(bare_run, account=dataclasses.replace(bare_run.account, tokens=tokens, ranks=each))

    def rows(*runs):
        return comparison_rows(compare_runs([[one] for one in runs]), [one.account for one in runs])

    *_, ranks, scaling = rows(run(1, 1000.0), run(2, 1500.0))
    assert [cell.value for cell in ranks.sides] == ["1", "2"]
    assert scaling.label == "scaling efficiency against the first run"
    assert [cell.value for cell in scaling.sides] == ["100%", "75%"]
    assert "scaling" not in rows(run(2, 1.0), run(2, 2.0))[-1].label


WHOLE = rec.Preflight(
    "f", True, 93.0, world_size=2, device="a GPU", batch_rows=4, batch_tokens=2048, micro_batches=2,
    recipe_micro_batches=8, memory_bytes=24 * GIB, training_peak_bytes=12 * GIB, evaluation_peak_bytes=3 * GIB,
    evaluation_rows=2, checkpoint_bytes=GIB // 2, model_bytes=1000, save_seconds=2.0, load_seconds=5.0,
    compared_tensors=40, next_loss=1.25, next_loss_after_load=1.25, checkpoints_to_come=12, needed_bytes=6 * GIB,
    free_bytes=90 * GIB,
)  # fmt: skip

RESTARTS = [
    (
        rec.RestartAccount(1, 5, 3, 2, 20.0, 80.0, 0.1),
        "start 2 resumed from step 3, 2 steps done again: 1 min 20 s until it trained and 20.0 s of lost steps, $0.10",
    ),
    (rec.RestartAccount(2, 5, None, 0, 0.0, 30.0, None), "start 3 never came to train: 30.0 s"),
    (
        rec.RestartAccount(3, 3, 0, 3, 9.0, 12.0, None),
        "start 4 from the first step again, 3 steps done again: 12.0 s until it trained and 9.0 s of lost steps",
    ),
    (rec.RestartAccount(4, 8, 8, 0, 0.0, 12.0, None), "start 5 resumed from step 8: 12.0 s until it trained"),
]


@pytest.mark.parametrize(("restart", "told"), RESTARTS)
def test_a_restart_in_words(restart, told):
    assert run_rows.restart_words(restart) == told


def test_what_passed():
    assert run_rows.preflight_words(WHOLE) == [
        "longest batch 4 x 2,048 tokens (2 of 8 micro-batches a step): peak 12.00 GiB of 24.00 GiB; 2 rows evaluated: "
        "peak 3.00 GiB",
        "saved 512.0 MiB in 2.00 s, loaded back in 5.00 s: 40 tensors of weights and optimizer are equal, and the next "
        "loss, 1.25, bit for bit",
        "12 checkpoints to come and the model need 6.00 GiB, 90.00 GiB are free",
        "passed in 1 min 33 s",
    ]


def test_what_failed_is_told_as_far_as_it_came():
    failure = rec.PreflightFailure("memory", "the evaluation of the longest batch", "out of memory", 1)
    found = rec.Preflight("", False, 20.0, batch_rows=1, batch_tokens=9, training_peak_bytes=GIB, failure=failure)
    assert run_rows.preflight_words(found) == [
        "longest batch 1 x 9 tokens: peak 1.00 GiB",
        "failed in 20.0 s, in the evaluation of the longest batch",
    ]
    unloaded = dataclasses.replace(WHOLE, load_seconds=None)
    assert run_rows.preflight_words(unloaded)[1].endswith("not loaded back: train.save_only_model keeps no optimizer")


PLAN = rec.PlanAccount(
    "NVIDIA L4",
    8,
    [
        rec.PlanFigure("weights_bytes", 2**30, 2**30, 0.0),
        rec.PlanFigure("optimizer_state_bytes", 1000004, 1000000, 4e-6),
        rec.PlanFigure("step_seconds", None, 0.5, None, "not calibrated"),
        rec.PlanFigure("training_seconds", None, 4.0, None, "not calibrated"),
        rec.PlanFigure("training_cost_usd", 0.3, 0.4, -0.25),
        rec.PlanFigure("training_energy_joules", None, None, None, "no meter"),
    ],
)


def test_rows():
    assert run_rows.plan_rows(PLAN) == [
        run_rows.PlanRow("weights", "1.00 GiB", "1.00 GiB", "exact"),
        run_rows.PlanRow("optimizer state", "976.6 KiB", "976.6 KiB", "+0.0%"),
        run_rows.PlanRow("mean step", "n/a", "500 ms", ""),
        run_rows.PlanRow("all steps", "n/a", "4.0 s", ""),
        run_rows.PlanRow("cost of all steps", "$0.30", "$0.40", "-25.0%"),
    ]


PHASES = {"imports": 5.0, "model_load": 2.0, "data_wait": 0.5, "forward": 30.0, "backward": 40.0}
MORE = {"optimizer": 3.0, "evaluation": 15.0, "checkpointing": 1.0, "shutdown": 1.5}
PROCESS = rec.ProcessAccount(
    0, 0.0, 100.0, {**PHASES, **MORE}, 2.0, 9.0, 46, 1, 46, "died", None, "forward", 100.0, "kernel"
)
ACCOUNT = rec.RunAccount(
    schema_version=2, hf_efficient_version="0", recorded_by="recipe", ended="died", error=None,
    time=rec.TimeAccount(100.0, {**PHASES, **MORE}, 2.0, 75.0, 9.0, [PROCESS]),
    steps=rec.StepTimes(46, 3, "", 1.5, 2.25, 3.0, 3.5, 9.0),
    tokens=amounts.TokenAccount(10_000, 9_000, 4_000, 0.1, 120.0, 133.0),
    memory=amounts.MemoryAccount(3 * 2**30, None, None, None),
    sequences=amounts.SequenceAccount(), work=amounts.WorkAccount(mfu=0.31), energy=amounts.EnergyAccount(),
    money=amounts.MoneyAccount(cost_usd=1.25, price_usd_per_hour=45.0),
    evaluations=[amounts.Evaluation(40, {"loss": 2.91, "perplexity": None})], ranks=[], not_measured=[],
)  # fmt: skip
VIEW = RunView(ACCOUNT, "running", 0.5, 46, 120, Forecast(152.0, False), 3.15, [4.0, 3.0, 2.5, 2.0])


def shown(view, width=80):
    return printed(live_screen(view, Path("outputs/one")), width=width)


SCREEN = """\
where the time went       seconds   share
start of Python, imports     5.00    5.0%  █
model load                   2.00    2.0%
forward                     30.00   30.0%  ███████
backward                    40.00   40.0%  ██████████
optimizer                    3.00    3.0%  █
evaluation                  15.00   15.0%  ████
other phases                 3.00    3.0%  █
unattributed                 2.00    2.0%
total                      100.00  100.0%

loss       4 → 2
evaluated  after step 40: loss 2.91
steps      p50 1.50 s, p95 2.25 s
tokens     120 per second without padding, 10% padding, 31% MFU
memory     3.00 GiB at most in the host's memory
"""


def test_a_run_that_goes_on():
    lines = shown(VIEW)
    assert lines[0] == "outputs/one  running for 1 min 40 s, in forward"
    assert lines[1].endswith("  46/120 steps, 2:32 left, $1.25 of about $3.15")
    assert lines[3:] == SCREEN.splitlines()
    assert len(lines) <= 23


SILENT, GONE = {"state": "silent", "silent_seconds": 12.0}, {"state": "gone", "silent_seconds": 61.0}
KILLED = "no heartbeat for 1 min 01 s: it was killed, or its machine stands still; it had run for 1 min 40 s"
SPENT = amounts.MoneyAccount(budget=amounts.BudgetAccount(2.0, None, None, "usd: $1.98 of $2.00 spent", 46))
FAILED = {"ended": "error", "error": "ValueError: [no]"}


def test_how_it_stands():
    for changes, account, said in (
        (SILENT, {}, "no heartbeat for 12.0 s; it had run for 1 min 40 s, in forward"),
        (GONE, {}, f"{KILLED}, in forward"),
        ({}, {"ended": "done"}, "ended after 1 min 40 s"),
        ({}, FAILED, "failed after 1 min 40 s: ValueError: [no]"),
        ({}, {"ended": "done", "money": SPENT}, "ended by its budget after 1 min 40 s: usd: $1.98 of $2.00 spent"),
    ):
        view = replace(VIEW, state="ended", rest=None, total_usd=None, account=replace(ACCOUNT, **account))
        lines = shown(replace(view, **changes), 160)
        assert lines[0] == f"outputs/one  {said}"
        assert "left" not in lines[1]
