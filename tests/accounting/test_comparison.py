"""Runs compared: what changed, what lies outside the noise, what is not compared, and regressions."""

import pytest

from hf_efficient.accounting.comparison import compare_runs, with_regressions
from hf_efficient.errors import OutputError
from hf_efficient.reporting.run_data import read_run
from hf_efficient.run_dir.paths import records_folder
from tests.accounting.compared_runs import write_run


@pytest.fixture
def compared(tmp_path):
    """The comparison of runs that are written with these arguments; a list of them is a side of repeated runs."""

    def compare(*sides):
        held = []
        for place, side in enumerate(sides):
            each = side if isinstance(side, list) else [side]
            folders = [write_run(tmp_path / f"{place}-{number}", **one) for number, one in enumerate(each)]
            held.append([read_run(records_folder(folder)) for folder in folders])
        return compare_runs(held)

    return compare


def figures(found, place=1):
    return {one.name: (one.values[0], one.values[place], one.changes[place]) for one in found.figures}


SPEED = ("non_padding_tokens_per_second", "step_p50_seconds", "step_p95_seconds")


def test_a_slowdown_of_three_percent_in_equal_batches(compared):
    found = compared({"seed": 1}, {"seed": 2, "seconds": 0.0103, "peak": 2000, "torch": "2.1"})
    held = figures(found)
    before, after, change = held["non_padding_tokens_per_second"]
    assert (before, after) == pytest.approx((100, 97), rel=0.01)  # tokens a second: one takes 0.01 s
    assert change.judgement == "worse"
    assert change.compared.method == "paired_steps"
    assert change.compared.low < 1 / 1.03 < change.compared.high
    assert change.compared.count == 57  # without three of warm-up
    _, _, change = held["step_p50_seconds"]
    assert (change.judgement, change.relative) == ("worse", pytest.approx(0.03, abs=0.006))
    _, _, change = held["peak_rss_bytes"]
    # One value has no noise to lie outside of.
    assert (change.relative, change.judgement, change.compared) == (1.0, "", None)
    assert held["training_loss_at_equal_tokens"][2].judgement == "alike"
    assert [(one.kind, one.key, one.values) for one in found.changed] == [("version", "torch", ["2.0", "2.1"])]
    assert found.resolution[0].share < 0.01
    assert any(note.startswith("A and B: steps in pairs") for note in found.notes)


def test_a_run_and_its_like_differ_in_nothing(compared):
    held = figures(compared({"seed": 1}, {"seed": 2}))
    assert {held[name][2].judgement for name in (*SPEED, "training_seconds")} == {"alike"}
    assert figures(compared({"seed": 1}, {"seed": 1}))["step_p50_seconds"][2].relative == 0


@pytest.mark.parametrize(
    "other",
    [
        {"data": 2},
        {"recipe": {"train": {"seed": 5}}},
        {"data": 2, "recipe": {"data": {"train": [{"path": "o.jsonl"}]}}},
    ],
)
def test_other_batches_are_not_paired(compared, other):
    found = compared({"steps": 200}, {"steps": 200, "seed": 2, "seconds": 0.0103, **other})
    change = figures(found)["non_padding_tokens_per_second"][2]
    assert change.compared.method == "steps"
    assert change.judgement == "worse"  # by the token the lengths do not matter
    assert figures(found)["step_p50_seconds"][2].judgement == "alike"  # by the step they hide it
    assert any("steps of each run alone" in note for note in found.notes)


def test_losses_at_equal_tokens(compared):
    long, short = {"steps": 120, "evaluations": [(60, 3.0), (120, 1.0)]}, {"evaluations": [(30, 3.5), (60, 2.9)]}
    found = compared(long, {**short, "seed": 2})
    held = figures(found)
    # both after the 60 steps that the second did; the last logged ones are of 120 and 60
    assert held["evaluation_loss_at_equal_tokens"][:2] == (3.0, 2.9)
    assert held["loss_after"][:2] == (1.0, 2.9)
    before, after, change = held["training_loss_at_equal_tokens"]
    assert before == pytest.approx(after, abs=0.002)
    assert change.judgement == "alike"
    assert held["training_loss"][0] < held["training_loss"][1] - 0.02
    assert [held[name][2].judgement for name in ("wall_seconds", "loss_after")] == ["", ""]  # of other lengths
    worse = figures(compared({"steps": 120}, {"steps": 120, "seed": 2, "loss": 2.1}))
    assert worse["training_loss_at_equal_tokens"][2].judgement == "worse"


def test_what_is_not_compared(compared):
    found = compared({"price": 1.0}, {"price": 1.0, "recipe": {"model": {"id": "other"}}})
    assert set(found.left_out) >= {*SPEED[:1], "training_loss", "usd_per_million_non_padding_tokens"}
    held = figures(found)
    assert "non_padding_tokens_per_second" not in held
    assert {"step_p50_seconds", "peak_rss_bytes", "cost_usd"} <= set(held)
    found = compared({"evaluations": [(60, 2.0)]}, {"recipe": {"data": {"eval": [{"path": "o"}]}}})
    assert found.left_out == dict.fromkeys(
        ("loss_after", "evaluation_loss_at_equal_tokens"), "the evaluation data differ"
    )
    found = compared({}, {"recipe": {"objective": "dpo"}})
    assert found.left_out["training_loss"] == "the objectives differ"


def test_too_few_steps_and_runs_that_died(compared):
    found = compared({"steps": 10}, {"steps": 60, "ended": "error"})
    assert any(
        "A has 7 steps after warm-up, too few for a spread: train 11 steps or more" in one for one in found.notes
    )
    assert any("B did not end by itself (error): its totals are of 60 steps" in one for one in found.notes)
    change = figures(found)["step_p50_seconds"][2]
    assert change.compared is None
    assert change.relative is not None
    with pytest.raises(OutputError, match=r"--threshold step_p50_seconds: 7 steps after warm-up: too few. Train 11"):
        with_regressions(found, {"step_p50_seconds": 0.05})


def test_records_that_were_removed_leave_figures_without_a_spread(tmp_path):
    from hf_efficient.accounting.account import account_of, write_account

    first, second = (write_run(tmp_path / name) / "efficiency" for name in ("a", "b"))
    write_account(second, account_of(second))
    for name in ("steps.jsonl", "spans.jsonl"):
        (second / name).unlink()
    found = compare_runs([[read_run(first)], [read_run(second)]])
    assert any(note.startswith("B has no records of its steps") for note in found.notes)
    assert figures(found)["step_p50_seconds"][2].compared is None


def test_regressions(compared):
    found = compared({"seed": 1}, {"seed": 2, "seconds": 0.0104, "peak": 1030})
    assert with_regressions(found, {"tokens_per_second": 0.06, "peak_memory": 0.04}).regressions == []
    worse = with_regressions(found, {"tokens_per_second": 0.02, "peak_memory": 0.02, "step_p50_seconds": 0.0})
    assert [(one.letter, one.figure) for one in worse.regressions] == [
        ("B", "non_padding_tokens_per_second"),
        ("B", "peak_rss_bytes"),
        ("B", "step_p50_seconds"),
    ]
    better = compared({"seed": 1, "seconds": 0.0104}, {"seed": 2})
    assert with_regressions(better, {"tokens_per_second": 0.0, "step_p95_seconds": 0.0}).regressions == []


def test_what_the_noise_hides_is_no_regression_and_is_said(compared):
    found = compared({"steps": 40, "noise": 0.2}, {"steps": 40, "noise": 0.2, "seed": 3, "seconds": 0.0105})
    gated = with_regressions(found, {"tokens_per_second": 0.01})
    assert gated.regressions == []
    assert "B, tokens_per_second: 1.00% may hide in the noise; " in gated.notes[-1]
    assert "steps on each side would show it" in gated.notes[-1]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("speed", "--threshold speed: these runs have no such figure that can be better or worse. Write one of"),
        ("steps", "--threshold steps: these runs have no such figure that can be better or worse"),
        ("cost_usd", "--threshold cost_usd: these runs have no such figure"),
        (
            "training_loss_at_equal_tokens",
            "--threshold training_loss_at_equal_tokens: it is not compared: the training",
        ),
    ],
)
def test_thresholds_of_figures_that_are_absent(compared, name, why):
    found = compared({}, {"data": 2, "recipe": {"data": {"train": [{"path": "o.jsonl"}]}}})
    with pytest.raises(OutputError) as error:
        with_regressions(found, {name: 0.01})
    assert str(error.value).startswith(why)
    assert "tokens_per_second" in str(error.value)


def test_a_threshold_of_a_figure_that_one_run_lacks(compared):
    with pytest.raises(OutputError, match="--threshold cost_usd: A has no such figure"):
        with_regressions(compared({}, {"price": 2.0}), {"cost_usd": 0.1})


def test_repeated_runs_by_the_u_test(compared):
    first = [{"seed": seed, "peak": 1000 + seed} for seed in range(4)]
    found = compared(first, [{"seed": seed + 10, "peak": 1100 + seed, "seconds": 0.0102} for seed in range(4)])
    before, after, change = figures(found)["peak_rss_bytes"]
    assert (before, after) == (1001.5, 1101.5)
    assert change.compared.p_value == pytest.approx(2 / 70)
    assert change.judgement == "worse"
    assert figures(found)["non_padding_tokens_per_second"][2].judgement == "worse"
    few = compared(first[:3], first[:3])
    assert "A and B: 3 and 3 runs are too few; a difference shows from 4 each" in few.notes
    assert figures(few)["peak_rss_bytes"][2].judgement == "alike"
    with pytest.raises(OutputError, match=r"repeated runs of A have one recipe, and these differ in train.seed"):
        compared([{}, {"recipe": {"train": {"seed": 2}}}], {})


def test_several_sides_are_each_against_the_first(compared):
    found = compared({"seed": 1}, {"seed": 2, "seconds": 0.011}, {"seed": 3, "seconds": 0.009})
    assert [figures(found, place)["step_p50_seconds"][2].judgement for place in (1, 2)] == ["worse", "better"]
    assert [side.letter for side in found.sides] == ["A", "B", "C"]
