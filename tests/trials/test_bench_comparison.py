"""The comparison by hand-worked figures: ratios, percentiles, refusals, and what the tables show of them."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from hf_efficient.errors import SetupError
from hf_efficient.records.bench import ArmRun, Comparison, Work
from hf_efficient.reporting.trials import SPEED, arms_table, markdown, picture
from hf_efficient.trials import bench
from hf_efficient.trials.arms import ARMS
from hf_efficient.trials.bench import run_rounds, summary, tokens_per_second, why_not_learning
from hf_efficient.trials.prepare import rows_of
from hf_efficient.trials.process import RunFailed
from tests.trials.machine import Heard

FALLING, FLAT, WARM_UP = [3.0, 2.5, 2.0], [1.0, 1.0, 1.0], 1
WORK = Work("r.json", "rows.jsonl", "messages", 3, 2, 1, 96, 67.0, "cpu", "CPU", "tiny")


def arm_run(seconds=(9.0, 2.0, 4.0), losses=FALLING, norms=FLAT, **more):
    values = {"non_padding": [300] * 3, "processed": [400] * 3, "peak_host_bytes": 2**30, **more}
    return ArmRun(seconds=list(seconds), losses=list(losses), gradient_norms=list(norms), **values)


def compared(rounds=2, **runs):
    """Arms by name; each has its runs in order, or a reason in place of one."""
    left, order = {name: list(found) for name, found in runs.items()}, []

    def run(arm):
        order.append(arm.name)
        found = left[arm.name].pop(0)
        if isinstance(found, str):
            raise RunFailed(found)
        return found

    outcomes = run_rounds([ARMS[name] for name in runs], rounds, WARM_UP, run, Heard(), {})
    base = next(name for name, one in outcomes.items() if one.runs and not one.reason)
    found = summary(outcomes, base, WARM_UP)
    head = {"schema_version": 1, "hf_efficient_version": "0", "recipe": "r.yaml", "started_at": "", "load_average": 1.5}
    table = Comparison(
        **head, environment={}, work=WORK, rounds=rounds, steps=3, warm_up=WARM_UP, base=base, arms=found
    )
    return {one.name: one for one in found}, order, table


@pytest.mark.parametrize(
    ("losses", "norms", "told"),
    [
        (FALLING, FLAT, ""),
        (FALLING, [1.0, 0.0, 1.0], "does not learn: the gradient norm of step 2 is 0"),
        (FALLING, [1.0, float("nan"), 1.0], "does not learn: the gradient norm of step 2 is nan"),
        (FALLING[::-1], FLAT, "does not learn: its loss is 2 in the first third and 3 in the last"),
        (FLAT, FLAT, "does not learn: its loss is 1 in the first third and 1 in the last"),
        ([3.0, 2.0, float("nan")], FLAT, "does not learn: its loss is 3 in the first third and nan in the last"),
        ([], [], "it logged no loss and gradient norm of each step"),
    ],
)
def test_an_arm_learns_where_it_has_gradients_and_its_loss_falls(losses, norms, told):
    assert why_not_learning(arm_run(losses=losses, norms=norms)) == told


def test_warm_up_is_left_out_and_padding_is_no_token():
    assert tokens_per_second(arm_run(), WARM_UP) == 100  # 600 tokens in 2 + 4 seconds


def test_ratios_are_of_the_same_round_over_the_first_arm():
    found, order, table = compared(
        trl=[arm_run((9, 3, 3)), arm_run((9, 6, 6))], recipe=[arm_run((9, 1, 1)), arm_run((9, 1, 2))]
    )
    assert order == ["recipe", "trl", "trl", "recipe"]
    # round 1: 300 / 100; round 2: 600 / 3 over 50
    assert dataclasses.astuple(found["recipe"].ratio) == (3.5, 3.0, 4.0, 0.5)
    assert found["trl"].ratio.median == 1
    assert found["recipe"].tokens_per_second == 250
    # of 1, 1, 1, 2: the place of the 95th percentile is 2.85
    assert (found["recipe"].step_p50_seconds, found["recipe"].step_p95_seconds) == (1, pytest.approx(1.85))
    assert found["recipe"].padding_share == 0.25
    assert (found["recipe"].first_loss, found["recipe"].last_loss) == (3, 2)
    shown = arms_table(table, SPEED)
    row = dict(zip(shown.headings, shown.rows[1], strict=True))
    assert row["tokens/s"] == "250"
    assert row["x"] == "3.50 [3.00, 4.00]"
    assert row["host memory"] == "1.00 GiB"
    assert "MFU" not in row
    assert 'width="420.0"' not in picture(table)  # the interval of 3 to 4 is longer than the bar of 3.5
    assert f'width="{420 * 3.5 / 4:.1f}"' in picture(table)


def test_the_speed_of_a_peer_that_does_not_learn_is_not_shown():
    planted = arm_run((9, 0.001, 0.001), norms=[0.0] * 3)
    found, order, table = compared(trl=[planted], bare=[arm_run(), arm_run()], recipe=[arm_run(), arm_run()])
    assert order.count("trl") == 1  # it runs no more
    assert table.base == "bare"
    one = found["trl"]
    assert (one.refused, one.tokens_per_second, one.ratio, one.runs[0].seconds) == (True, None, None, [])
    assert (one.first_loss, one.least_gradient_norm) == (3, 0)
    text = markdown(table, "hf-efficient bench r.yaml")
    assert "- trl is refused, its speed not shown: does not learn: the gradient norm of step 1 is 0" in text
    assert "300,000" not in text
    assert "| refused | - | - |" in text
    assert "trl" not in picture(table)


@pytest.mark.parametrize(("peak", "mfu"), [(50.0, 0.6), (None, None)])
def test_mfu_is_of_the_steps_after_warm_up(monkeypatch, tmp_path, peak, mfu):
    three = {"wall_seconds": [99.0, 2.0, 4.0], "model_flops": [300.0, 300.0, 60.0]}
    three |= dict.fromkeys(("non_padding", "processed", "loss", "grad_norm"), [1.0] * 3)
    steps = SimpleNamespace(**{name: np.array(values) for name, values in three.items()})
    work = SimpleNamespace(peak_flops_per_second=peak, accelerators=2)
    memory = SimpleNamespace(peak_rss_bytes=1, device_peak_allocated_bytes=None)
    monkeypatch.setattr(bench, "load_run", lambda run_dir: SimpleNamespace(work=work, memory=memory))
    monkeypatch.setattr(bench, "read_columns", lambda path: steps)
    assert bench.recorded_run(tmp_path, WARM_UP).mfu == mfu  # 360 FLOPs in 6 seconds of 2 x 50


def test_the_loop_by_hand_has_the_work_of_the_recipe_where_its_batches_are_the_same():
    found, _, _ = compared(rounds=1, bare=[arm_run(seconds=(9.0, 1.0, 2.0))], recipe=[arm_run(mfu=0.25)])
    assert found["bare"].mfu == pytest.approx(0.5)
    other = arm_run(seconds=(9.0, 1.0, 2.0), processed=[400, 399, 400])
    assert compared(rounds=1, bare=[other], recipe=[arm_run(mfu=0.25)])[0]["bare"].mfu is None


def test_a_peer_that_fails_is_listed_with_the_reason_and_the_others_stay():
    found, _, table = compared(trl=[arm_run(), "exit code 1: boom"], recipe=[arm_run(), arm_run()])
    assert (found["trl"].reason, found["trl"].runs) == ("failed: exit code 1: boom", [])
    assert found["recipe"].ratio.median == 1
    assert "- trl was not measured: failed: exit code 1: boom" in markdown(table, "")


def test_where_no_arm_runs_there_is_no_table():
    with pytest.raises(SetupError, match=r"none of the arms ran: trl: failed: x; recipe: failed: y"):
        run_rounds([ARMS["trl"], ARMS["recipe"]], 2, 1, failing({"trl": "x", "recipe": "y"}), Heard(), {})


def test_peers_that_cannot_run_are_told_before_anything_trains():
    def never(arm):
        raise AssertionError(arm.name)

    why = {"unsloth": "no GPU", "axolotl": "not installed", "recipe": ""}
    arms = [ARMS[name] for name in why]
    with pytest.raises(SetupError, match=r"--against: none .* unsloth: no GPU; axolotl: not installed\. Write trl"):
        run_rounds(arms, 2, 1, never, Heard(), why)
    heard, ran = Heard(), []
    outcomes = run_rounds(arms, 1, 1, lambda arm: ran.append(arm.name) or arm_run(), heard, {**why, "axolotl": ""})
    assert heard.lines[:1] == ["unsloth: does not run: no GPU"]
    assert sorted(ran) == ["axolotl", "recipe"]
    assert outcomes["unsloth"].reason == "no GPU"


def failing(told):
    def run(arm):
        raise RunFailed(told[arm.name])

    return run


@pytest.mark.parametrize(
    ("packs", "rows", "expected"), [(True, 4, (4, 10)), (False, 10, (4, 10)), (False, 1, (1, 1)), (True, 1, (1, 3))]
)
def test_packed_and_padded_micro_batches_hold_about_as_many_examples(packs, rows, expected):
    # 512 / 200 = 2.56 examples in a pack
    assert rows_of(packs, rows, 512, 200.0) == expected
