"""Memory and the device's time in the account, from hand-made records."""

import made_records
import pytest
from made_records import end, lines, train

from hf_efficient.accounting.account import account_of
from hf_efficient.records.amounts import MemoryCategory
from hf_efficient.records.steps import StepMemory, StepRecord


def process(number=0, **memory):
    """A process that lived for ten seconds, and its peaks."""
    return [made_records.process(number, way="trainer"), train(number, 1.0, number), end(10.0, number, **memory)]


def facts(number=0, device="cpu", missing=(), **categories):
    told = [{"name": name, "bytes": size, "how": "exact", "note": "now"} for name, size in categories.items()]
    missing = [{"what": what, "why": "because"} for what in missing]
    return made_records.facts(number, memory={"device": device, "categories": told, "missing": missing})


def step(number, segment=0, device=None, memory=None):
    return StepRecord(
        segment, 0, number, None, 1.0, float(number), {"forward": 1.0}, 1, device_seconds=device, memory=memory
    ).to_json()


def test_the_rest_of_a_cpus_peak(tmp_path):
    held = {"weights": 100, "gradients": 10, "optimizer_state": 20, "activations": 40, "logits": 7}
    counted = facts(**dict(reversed(held.items())))
    lines(tmp_path / "spans.jsonl", *process(), facts(weights=100), counted)
    memory = account_of(tmp_path).memory
    exact = [(name, size, "exact") for name, size in held.items()]
    assert [(one.name, one.bytes, one.how) for one in memory.categories] == [*exact, ("rest", 823, "derived")]
    assert memory.categories[-1].note == "of the peak: temporary tensors, Python with its libraries, and the data"


def test_the_rest_of_a_devices_peak_may_be_negative_and_says_so(tmp_path):
    lines(tmp_path / "spans.jsonl", *process(device_peak_allocated_bytes=120), facts(device="cuda:0", weights=100))
    (_, rest) = account_of(tmp_path).memory.categories
    assert rest == MemoryCategory(
        "rest", 20, "derived", "of the peak: temporary tensors, activations and logits, gradients"
    )
    lines(tmp_path / "spans.jsonl", facts(device="cuda:0", weights=100, gradients=50))
    rest = account_of(tmp_path).memory.categories[-1]
    assert rest.bytes == -30
    assert rest.note.startswith("negative, since what is counted above is not all there at one moment")


def test_the_last_process_that_counted_wins_with_its_own_peak(tmp_path):
    lines(tmp_path / "spans.jsonl", *process(peak_rss_bytes=5000), facts(weights=100))
    lines(tmp_path / "spans.jsonl", *process(1, peak_rss_bytes=600), facts(1, weights=200))
    lines(tmp_path / "spans.jsonl", *process(2, peak_rss_bytes=50))
    memory = account_of(tmp_path).memory
    assert memory.peak_rss_bytes == 5000
    assert [(one.name, one.bytes) for one in memory.categories] == [("weights", 200), ("rest", 400)]


def test_what_was_not_counted_is_named(tmp_path):
    lines(tmp_path / "spans.jsonl", *process(), facts(missing=["memory of the gradients"], weights=1))
    gaps = {gap.what: gap.why for gap in account_of(tmp_path).not_measured}
    assert gaps["memory of the gradients"] == "because"
    assert "time on the device" not in gaps


def test_the_devices_time_and_peaks_over_the_steps(tmp_path):
    lines(tmp_path / "spans.jsonl", *process(device_peak_allocated_bytes=900), *process(1))
    both = StepMemory(90, 100, {"forward": 70, "backward": 90})
    lines(
        tmp_path / "steps.jsonl",
        step(1, device={"forward": 0.25, "optimizer": 0.5}, memory=both),
        step(2, device={"exposed_wait": 0.125, "forward": 0.5}, memory=StepMemory(95, 100, {"forward": 95})),
        step(3, segment=1, device={"exposed_wait": 0.25, "forward": 1.0}, memory=StepMemory(90, 100, {"forward": 80})),
    )
    found = account_of(tmp_path)
    assert found.time.device_seconds == {"forward": 1.75, "optimizer": 0.5, "exposed_wait": 0.375}
    assert found.memory.phase_peak_allocated_bytes == {"forward": 95, "backward": 90}
    assert not [gap for gap in found.not_measured if gap.what.startswith("time on the device")]


@pytest.mark.parametrize(
    ("timed", "told"),
    [
        (0, ("time on the device", "phases are host time")),
        (1, ("time on the device in 2 of 3 steps", "their events were not done in time")),
    ],
)
def test_steps_without_a_time_on_the_device_are_named(tmp_path, timed, told):
    lines(tmp_path / "spans.jsonl", *process(device_peak_allocated_bytes=900))
    lines(tmp_path / "steps.jsonl", *(step(i, device={"forward": 1.0} if i <= timed else None) for i in (1, 2, 3)))
    (gap,) = (gap for gap in account_of(tmp_path).not_measured if gap.what.startswith("time on the device"))
    assert gap.what == told[0]
    assert gap.why.startswith(told[1])
