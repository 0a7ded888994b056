"""Several ranks: who ran where, what each waited, and in which phase one takes longer, worked out by hand."""

import made_records
import pytest
from made_records import end, facts, lines, price, process, train

from hf_efficient.accounting.account import account_of
from hf_efficient.accounting.live import scaling_of
from hf_efficient.records.amounts import MemoryCategory


def step(number, phases, **more):
    made = made_records.step(number, 1.0 * number, sum(phases.values()), tokens=(100, 90, 80), **phases)
    return {**made, **more}


def write(folder, rank, steps, *, host=None, device=None, memory=None, exchange=None, weights=None):
    suffix = f".rank{rank}" if rank else ""
    topics = {"price": price(36.0), "settings": {"device": device or {"type": "cpu"}}}  # a cent per second
    if exchange is not None:
        topics["exchange"] = exchange
    if weights is not None:
        category = {"name": "weights", "bytes": weights, "how": "exact", "note": "when training begins"}
        topics["memory"] = {"device": "cpu", "categories": [category], "missing": [], "positions": None}
    if host is not None:
        topics["system"] = {"hostname": host}
    began = {**process(way="trainer"), "rank": rank}
    ended = {**end(20.0), "memory": memory or {}}
    lines(folder / f"spans{suffix}.jsonl", began, train(0, 1.0), facts(**topics), ended)
    lines(folder / f"steps{suffix}.jsonl", *({**one, "rank": rank} for one in steps))


def on_cpus(folder):
    """Rank 1 takes 0.3 s longer in each of two backwards, and 1 s longer of its own in a save."""
    own = {"data_wait": 0.1, "forward": 0.2}
    quick = {**own, "backward": 0.4, "communication": 0.5}
    slow = {**own, "backward": 0.7, "communication": 0.2}
    saves = {"checkpointing": 3.0}
    waited = {"checkpointing": 1.0}
    first = [step(1, quick), step(2, {**quick, **saves}, waited_seconds=waited)]
    write(folder, 0, first, host="a", memory={"peak_rss_bytes": 50})
    write(folder, 1, [step(1, slow), step(2, {**slow, **saves})], host="b", memory={"peak_rss_bytes": 70})
    return account_of(folder)


def test_skew_communication_and_waits_by_hand(tmp_path):
    account = on_cpus(tmp_path)
    first, second = account.ranks
    assert (first.host, first.device, second.host, second.device) == ("a", "cpu", "b", "cpu")
    assert (first.peak_rss_bytes, second.peak_rss_bytes) == (50, 70)
    assert first.waited_seconds == pytest.approx(0.5 + 0.5 + 1.0)
    assert second.waited_seconds == pytest.approx(0.4)
    assert second.phase_seconds == pytest.approx(
        {"data_wait": 0.2, "forward": 0.4, "backward": 1.4, "communication": 0.4, "checkpointing": 3.0}
    )
    # The own time of the slowest beyond the others, by phase.
    across = account.across
    assert (across.ranks, across.hosts) == (2, 2)
    worst, next_one = across.skew[:2]
    assert (worst.phase, worst.rank, worst.host) == ("checkpointing", 1, "b")
    assert (worst.own_seconds, worst.extra_seconds) == (pytest.approx(3.0), pytest.approx(1.0))
    assert worst.usd == pytest.approx(0.01)
    assert (next_one.phase, next_one.rank, next_one.extra_seconds) == ("backward", 1, pytest.approx(0.6))
    assert all(one.extra_seconds == pytest.approx(0.0) for one in across.skew[2:])
    # Communication is what the rank has that waits least; the rest is for late ranks.
    assert across.exposed_by == "host"
    assert across.exposed_seconds == pytest.approx(0.4)  # of rank 1
    assert across.late_seconds == pytest.approx((2.0 + 0.4) / 2 - 0.4)
    assert across.exposed_usd == pytest.approx(0.004)
    assert "communication that computation covers" in {gap.what for gap in account.not_measured}


def test_each_rank_has_what_it_held_itself(tmp_path):
    for rank, weights in ((0, 600), (1, 500), (2, None)):
        write(tmp_path, rank, [step(1, {"forward": 0.2})], weights=weights, memory={"peak_rss_bytes": 1000})
    account = account_of(tmp_path)
    assert [one.memory_categories for one in account.ranks] == [
        [MemoryCategory("weights", 600, "exact", "when training begins")],
        [MemoryCategory("weights", 500, "exact", "when training begins")],
        [],
    ]
    assert [(one.name, one.bytes) for one in account.memory.categories] == [("weights", 600), ("rest", 400)]


def test_on_gpus_the_devices_events_tell(tmp_path):
    phases = {"forward": 0.2, "backward": 0.8, "communication": 0.0}
    gpu = {"type": "cuda", "name": "NVIDIA H100"}
    quick = {"forward": 0.3, "backward": 0.4, "communication": 0.25}
    slow = {"forward": 0.3, "backward": 0.6, "communication": 0.05}
    write(tmp_path, 0, [step(1, phases, device_seconds=quick)], device={**gpu, "index": 0})
    write(tmp_path, 1, [step(1, phases, device_seconds=slow)], device={**gpu, "index": 1})
    account = account_of(tmp_path)
    worst = account.across.skew[0]
    assert (worst.phase, worst.rank, worst.device, worst.on_device) == ("backward", 1, "NVIDIA H100 1", True)
    assert worst.extra_seconds == pytest.approx(0.2)
    assert account.across.exposed_by == "device"
    assert (account.across.exposed_seconds, account.across.late_seconds) == (pytest.approx(0.05), pytest.approx(0.1))
    assert account.across.hosts is None  # not told


def test_where_waits_were_not_told_apart_no_phase_in_which_ranks_wait_is_compared(tmp_path):
    write(tmp_path, 0, [step(1, {"forward": 0.2, "backward": 0.9})])
    write(tmp_path, 1, [step(1, {"forward": 0.5, "backward": 0.6})])
    account = account_of(tmp_path)
    assert [(one.phase, one.rank) for one in account.across.skew] == [("forward", 1)]
    assert account.across.exposed_seconds is None
    assert "communication between the ranks, by itself" in {gap.what for gap in account.not_measured}


def test_global_tokens_per_second_and_scaling_are_of_all_ranks(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    write(tmp_path / "one", 0, [step(1, {"forward": 1.0})])
    write(tmp_path / "two", 0, [step(1, {"forward": 1.0, "communication": 0.2})])
    write(tmp_path / "two", 1, [step(1, {"forward": 1.25})])
    one, two = account_of(tmp_path / "one"), account_of(tmp_path / "two")
    assert two.tokens.non_padding_tokens_per_second == pytest.approx(2 * 90 / 1.25)
    assert scaling_of([one, two]) == [pytest.approx(1.0), pytest.approx(0.8)]


def test_what_computation_covers_is_ddps_own_log_of_the_rank_that_waited_least(tmp_path):
    steps = [step(number, {"backward": 0.5, "communication": 0.1}) for number in (1, 2, 3)]
    write(tmp_path, 0, steps, exchange={"seconds": 0.5, "covered_seconds": 0.2})
    write(tmp_path, 1, steps, exchange={"seconds": 0.3, "covered_seconds": 0.25})
    account = account_of(tmp_path)
    assert account.across.covered_seconds == pytest.approx(3 * 0.25)
    assert "communication that computation covers" not in {gap.what for gap in account.not_measured}
