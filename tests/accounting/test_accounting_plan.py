"""Planned against observed, and what profilers left, from hand-made records."""

import logging

import pytest
from made_records import end, facts, lines, price, process, step, train

from hf_efficient.accounting.account import account_of
from hf_efficient.accounting.plan import profile_account
from hf_efficient.accounting.run_records import ProcessSpans
from hf_efficient.records.profile import InstrumentAccount, OperatorTable, OperatorTime
from hf_efficient.run_dir.json_file import PROFILE, strict_json, table_path, write_whole

PLANNED = {
    "device": "NVIDIA L4", "steps": 2, "positions": 200, "step_tokens": 300.0,
    "categories": {"weights": 1000, "gradients": 50, "activations": 4000, "logits": 800},
    "peak_allocated_bytes": 6600, "peak_reserved_bytes": 8000, "fits": True, "step_seconds": 1.5,
    "tokens_per_second": 200.0, "training_seconds": 3.0, "training_cost_usd": 0.003, "training_energy_joules": 216.0,
    "reasons": {},
}  # fmt: skip
CATEGORIES = {"weights": 1000, "gradients": 40, "activations": 1900, "logits": 400}


def write(folder, planned, *, steps=2, positions=100, categories=CATEGORIES, gpu=True):
    told = [{"name": name, "bytes": size, "how": "exact", "note": ""} for name, size in categories.items()]
    memory = {"device": "cuda:0", "categories": told, "missing": [], "positions": positions}
    topics = {"memory": memory, "price": price(3.6)} | ({} if planned is None else {"plan": planned})
    peaks = {"device_peak_allocated_bytes": 6000, "device_peak_reserved_bytes": 10000} if gpu else {}
    lines(folder / "spans.jsonl", process(), facts(**topics), train(0, 1.0), end(10.0, **peaks))
    done = [step(n, 2.0 * n, 2.0, tokens=(320, 300, 200), forward=2.0) for n in range(1, steps + 1)]
    lines(folder / "steps.jsonl", *done)


def figures(folder):
    found = account_of(folder).plan
    assert found is not None
    return {one.name: one for one in found.figures}


def test_every_figure_with_its_error(tmp_path):
    write(tmp_path, PLANNED)
    found = figures(tmp_path)
    assert {name: (one.predicted, one.observed, one.relative_error) for name, one in found.items()} == {
        "peak_allocated_bytes": (6600, 6000, pytest.approx(0.1)),
        "peak_reserved_bytes": (8000, 10000, pytest.approx(-0.2)),
        "weights_bytes": (1000, 1000, 0.0), "gradients_bytes": (50, 40, pytest.approx(0.25)),
        # planned for 200 positions: 4000 and 800; counted in 100
        "activations_bytes": (2000, 1900, pytest.approx(1 / 19)), "logits_bytes": (400, 400, 0.0),
        "tokens_per_second": (200.0, 160.0, pytest.approx(0.25)), "step_seconds": (1.5, 2.0, pytest.approx(-0.25)),
        "training_seconds": (3.0, 4.0, pytest.approx(-0.25)),
        "training_cost_usd": (0.003, pytest.approx(0.004), pytest.approx(-0.25)),
        "training_energy_joules": (216.0, None, None),  # no meter of a GPU was read
    }  # fmt: skip
    assert "planned for a micro-batch of 200 positions, scaled to the 100 of the counted" in found["logits_bytes"].note


def test_a_run_of_other_steps_does_not_tell_of_the_whole(tmp_path):
    write(tmp_path, PLANNED, steps=1)
    found = figures(tmp_path)
    for name in ("training_seconds", "training_cost_usd"):
        assert (found[name].observed, found[name].relative_error) == (None, None)
        assert found[name].note == "1 step done, 2 planned"
    assert found["step_seconds"].observed == 2.0


def test_what_is_not_known_has_its_reason(tmp_path):
    unknown = ("step_seconds", "tokens_per_second", "training_seconds", "training_cost_usd", "training_energy_joules")
    planned = {**PLANNED, **dict.fromkeys(unknown), "peak_allocated_bytes": None, "peak_reserved_bytes": None}
    planned["reasons"] = {"time": "not calibrated", "energy": "no power"}
    write(tmp_path, planned, positions=None, gpu=False)
    found = figures(tmp_path)
    assert "peak_allocated_bytes" not in found
    assert found["activations_bytes"].relative_error == pytest.approx(4000 / 1900 - 1)
    for name, why in zip(unknown, ["not calibrated"] * 4 + ["no power"], strict=True):
        assert (found[name].predicted, found[name].relative_error, found[name].note) == (None, None, why)
    assert found["step_seconds"].observed == 2.0


@pytest.mark.parametrize("planned", [None, {"missing": []}, {"device": "L4"}])
def test_no_plan(planned, tmp_path):
    write(tmp_path, planned)
    assert account_of(tmp_path).plan is None


TABLE = OperatorTable(0, 3, 1.5, 0.9, None, [OperatorTime("aten::mm", 6, 0.5, None, 96, "[2, 3] [3, 8]")], 4)
TOLD = {"cost_seconds": 2.0, "own_seconds": 1.5, "steps": 3, "files": ["profile/operators.rank0.json"], "note": "n"}


def processes(*facts):
    return [ProcessSpans(number, facts=told) for number, told in enumerate(facts)]


@pytest.fixture
def table(tmp_path):
    (tmp_path / PROFILE).mkdir()
    path = table_path(tmp_path / PROFILE, "operators", 0)
    write_whole(path, strict_json(TABLE))
    return path


def test_facts_and_tables_of_the_last_process_that_had_instruments(table, tmp_path):
    found = profile_account(processes({"profile": {"old": TOLD}}, {"profile": {"trace": TOLD}}, {}), tmp_path)
    assert found.instruments == [InstrumentAccount("trace", 2.0, 1.5, 3, ["profile/operators.rank0.json"], "n")]
    assert found.operators == TABLE
    assert [path.name for path in (tmp_path / PROFILE).iterdir()] == ["operators.rank0.json"]


def test_a_half_written_table_is_left_out_and_said(table, tmp_path, caplog):
    table.write_text(table.read_text()[:40])
    with caplog.at_level(logging.WARNING):
        assert profile_account(processes({"profile": {"trace": TOLD}}), tmp_path).operators is None
    assert "operators.rank0.json: cannot be read, so that it is left out" in caplog.text


def test_a_table_of_an_earlier_run_in_the_folder_is_not_this_ones(table, tmp_path):
    found = profile_account(processes({"profile": {"memory": {**TOLD, "files": []}}}), tmp_path)
    assert found.operators is None
