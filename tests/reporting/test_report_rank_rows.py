"""Ranks in words."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from hf_efficient.records.account import AcrossRanks, PhaseSkew, RankAccount
from hf_efficient.reporting.comparison import comparison_rows
from hf_efficient.reporting.console import rank_renderables
from hf_efficient.reporting.run_rows import across_lines, rank_rows

GIB = 2**30
FIRST = RankAccount(
    0, 10, 10, 8.0, "node-a", "NVIDIA H100 0", {"data_wait": 1.0, "forward": 0.1}, 3.0, None, GIB, 2 * GIB, 3 * GIB
)
SECOND = dataclasses.replace(FIRST, rank=1, host="node-b", waited_seconds=1.0, device_peak_allocated_bytes=None)
SKEW = [
    PhaseSkew("backward", 1, "node-b", "NVIDIA H100 0", 5.0, 2.0, 0.25, True),
    PhaseSkew("forward", 0, "node-a", "NVIDIA H100 0", 3.0, 0.01, 0.001, True),
]
ACROSS = AcrossRanks(2, 2, SKEW, 1.0, 1.0, "device", 0.5, 0.125)


@pytest.fixture
def account(bare_run):
    told = bare_run.account
    time = dataclasses.replace(told.time, training_seconds=10.0)
    return dataclasses.replace(told, time=time, ranks=[FIRST, SECOND], across=ACROSS)


def test_a_row_per_rank(account):
    first, second = rank_rows(account)
    assert (first.rank, first.where, first.steps, first.training) == ("0", "node-a, NVIDIA H100 0", "10", "8.0 s")
    assert first.phases == {"data wait": "1.0 s", "forward": "0.1 s"}
    assert (first.waited, second.waited) == ("3.0 s", "1.0 s")
    assert (first.memory, second.memory) == ("2.00 GiB", "1.00 GiB")


def test_the_device_tells_what_it_knows(account):
    timed = dataclasses.replace(FIRST, device_seconds={"forward": 2.0, "communication": 0.5})
    row = rank_rows(dataclasses.replace(account, ranks=[timed, SECOND]))[0]
    assert row.phases["forward"] == "2.0 s"
    assert row.waited == "0.5 s"


def test_communication_and_the_ranks_that_take_longer_with_what_it_costs(account):
    communication, skew = across_lines(account)
    assert communication.startswith("communication: 1.0 s exposed (10% of the training, $0.50)")
    assert communication.endswith("waited 1.0 s each for those that came later, $0.12")
    assert skew == ("rank 1 (node-b, NVIDIA H100 0) takes 2.0 s longer than the other in backward on the device, $0.25")


def test_what_computation_covers_is_told_where_it_is_known(account):
    told = dataclasses.replace(account, across=dataclasses.replace(ACROSS, covered_seconds=4.0))
    assert next(across_lines(told)).endswith("; 4.0 s are covered by computation (estimated by DDP's own log)")


def test_the_terminal_shows_them_and_nothing_of_one_rank(account):
    console = Console(width=200, record=True, file=io.StringIO())
    for part in rank_renderables(account):
        console.print(part)
    text = console.export_text()
    assert "node-b, NVIDIA H100 0" in text
    assert "waits" in text
    assert "rank 1 (node-b" in text
    assert list(rank_renderables(dataclasses.replace(account, across=None))) == []


def test_runs_on_different_numbers_of_ranks_have_a_scaling_efficiency(bare_run):
    def run(ranks, rate):
        tokens = dataclasses.replace(bare_run.account.tokens, non_padding_tokens_per_second=rate)
        each = [dataclasses.replace(FIRST, rank=rank) for rank in range(ranks)]
        return dataclasses.replace(bare_run, account=dataclasses.replace(bare_run.account, tokens=tokens, ranks=each))

    *_, ranks, scaling = comparison_rows([run(1, 1000.0), run(2, 1500.0)])
    assert [cell.value for cell in ranks.runs] == ["1", "2"]
    assert scaling.label == "scaling efficiency against the first run"
    assert [cell.value for cell in scaling.runs] == ["100%", "75%"]
    assert "scaling" not in comparison_rows([run(2, 1.0), run(2, 2.0)])[-1].label
