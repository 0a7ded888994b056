"""What a search tries, accepts and refuses, on a machine that trains nothing."""

import math

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.records.tuning import Prediction
from hf_efficient.trials.process import RunFailed
from tests.trials.machine import NAIVE, Machine, accepted, searched, verdict

NO_ROOM = RunFailed("it is planned for 30 GiB", "no_room")


def test_changes_that_gain_are_accepted_one_after_the_other_and_the_rest_is_left():
    machine = Machine()
    found = searched(machine)
    assert accepted(found)[0] == "cadence"  # again where faster steps make pauses weigh more
    assert [name for name in accepted(found) if name != "cadence"] == ["packing", "precision", "checkpointing"]
    assert found.base.changes["train.packing"] is True
    assert found.base.changes["train.bf16"] is True
    gains = [one.gain for one in found.tried if one.verdict == "accepted"]
    assert gains[1].ratio == pytest.approx(1 / 0.4, rel=0.1)  # less, since pauses stay as they are
    assert gains[1].low > 1
    assert [rung.gain for rung in found.ladder[1:]] == gains
    assert found.total.ratio == pytest.approx(math.prod(one.ratio for one in gains), rel=0.05)
    assert found.total.ratio > 3


def test_pauses_count_in_the_rate_and_rarer_ones_need_no_trial():
    found = searched(Machine(noise=0), without=frozenset({"packing", "precision"}))
    # a step of 2 s, and every 5 steps 4 s of evaluation and 0.5 s of a save
    assert found.ladder[0].tokens_per_second == pytest.approx(800 / (2 + 4.5 / 5))
    assert found.ladder[0].pause_share == pytest.approx(0.9 / 2.9)
    assert found.base.changes["train.eval_steps"] == 40  # 4 s in 5% of the time: 38 steps
    assert found.tried[0].rounds == 0
    assert found.ladder[1].gain.ratio == pytest.approx(2.9 / (2 + 4 / 40 + 0.5 / 10), rel=0.01)


def test_a_recipe_that_gains_nothing_stays_as_it_is():
    tuned = {"packing": True, "eval_strategy": "no", "save_strategy": "no", "gradient_checkpointing": False}
    claims = tries = 0
    for seed in range(30):
        found = searched(Machine(times={}, noise=0.03, seed=seed), {**NAIVE, **tuned, "pad_to_multiple_of": None})
        claims += len(accepted(found))
        tries += len(found.tried)
    assert tries > 100
    assert claims <= 0.05 * tries


def test_what_the_diagnosis_ranks_first_is_tried_first_and_its_prediction_stands_beside_the_gain():
    remedy = Prediction("checkpointing_unneeded", {"train.gradient_checkpointing": False}, 0.25)
    found = searched(Machine(predictions=[remedy]), without=frozenset({"cadence"}))
    assert found.tried[0].knob == "checkpointing"
    # of 2 s a quarter, while evaluations and saves stay
    assert found.tried[0].predicted == pytest.approx((2 + 0.9) / (1.5 + 0.9), rel=0.01)


def test_what_is_promised_elsewhere_and_not_tried_says_why():
    notes = searched(Machine(data_wait_share=0.004)).notes
    (workers,) = [one for one in notes if one.startswith("workers: ")]
    assert workers.endswith("not tried: the loop waits for data 0.4% of its time, so that it gives 1.004 times at most")
    assert any(one.startswith("pinned_memory: ") and one.endswith("or there is no GPU to copy to") for one in notes)
    assert any(one.startswith("compile: promised elsewhere: 1.3 to 2 times") for one in notes)
    assert not [one for one in notes if one.startswith("packing: ")]  # it was tried


def test_faster_and_worse_is_refused():
    found = searched(Machine(losses={"train.packing": 1.03}))
    assert verdict(found, "packing") == "worse_loss"
    assert "train.packing" not in found.base.changes
    assert "train.packing" in searched(Machine(losses={"train.packing": 1.03}), tolerance=0.05).base.changes


def test_small_losses_do_not_add_up():
    found = searched(Machine(losses={"train.packing": 1.015, "train.bf16": 1.015}))
    verdicts = {verdict(found, "packing"), verdict(found, "precision")}
    assert verdicts == {"accepted", "worse_loss"}
    assert found.notes[-1] == "loss on held-out rows after 6,400 tokens: 1.015 times the original's"


@pytest.mark.parametrize(
    ("machine", "goal", "knob"),
    [
        (Machine(memory={"train.gradient_checkpointing": 2.0}), {"most_bytes": 1_500_000_000}, "checkpointing"),
        (Machine(times={"train.bf16": 0.5, "train.packing": 1.0}), {"most_p95_seconds": 0.5}, "checkpointing"),
    ],
    ids=["memory", "p95"],
)
def test_limits(machine, goal, knob):
    found = searched(machine, **goal)
    assert knob not in accepted(found)


def test_a_step_may_not_grow_where_its_p95_is_kept():
    times = {"train.packing": 1.2}
    machine = Machine(times=times, step_tokens=[800] * 6)
    slower = searched(machine, keeps_p95=True)
    assert verdict(slower, "packing") in ("no_gain", "over_limit")


def test_memory_is_saved_first_where_the_recipe_takes_more_than_it_may():
    train = {**NAIVE, "gradient_checkpointing": False}
    machine = Machine(memory={"train.gradient_checkpointing": 0.5})
    found = searched(machine, train, most_bytes=600_000_000)
    assert "recomputation" in accepted(found)
    assert found.base.latest.peak_bytes < 600_000_000
    stays = searched(Machine(), train, most_bytes=600_000_000)
    assert "no change that was tried brings the peak under --max-memory" in stays.notes[0]


def test_what_does_not_fit_or_fails_is_named_and_the_rest_goes_on():
    faults = {
        "train.packing": RunFailed("it is planned for 30 GiB", "no_room"),
        "train.bf16": RunFailed("no such kernel"),
    }
    machine = Machine(faults=faults)
    found = searched(machine)
    assert verdict(found, "packing") == "does_not_fit"
    assert verdict(found, "precision") == "failed"
    assert sum("train.bf16" in one for one in machine.asked) == 1
    assert "checkpointing" in accepted(found)


def test_when_the_time_ends_what_is_accepted_stays():
    found = searched(Machine(), minutes=2.9, without=frozenset({"padding"}))
    assert set(accepted(found)) == {"cadence", "packing"}
    assert "the time ended while precision was tried: more --minutes go further" in found.notes
    assert found.spent < 2.9 * 60


@pytest.mark.parametrize(
    ("machine", "goal", "told"),
    [
        (Machine(), {"minutes": 0.6}, "--minutes: 0.6 are too few: one trial of this recipe took 26"),
        (Machine(), {"objective": "usd_per_million_tokens"}, "needs a price, and none is known. Write cost.price_usd"),
        (Machine(faults={None: NO_ROOM}), {}, "does not fit: it is planned for 30 GiB"),
        (Machine(faults={None: RunFailed("no such file")}), {}, "as it is does not train: no such file"),
    ],
    ids=["minutes", "price", "fits", "trains"],
)
def test_bad_input(machine, goal, told):
    with pytest.raises(SetupError, match=told):
        searched(machine, **goal)


def test_money_follows_time():
    found = searched(Machine(price_usd_per_hour=3.6), objective="usd_per_million_tokens")
    first = found.ladder[0]
    assert first.usd_per_million_tokens == pytest.approx(1_000_000 / first.tokens_per_second * 0.001)
    assert found.ladder[-1].usd_per_million_tokens < first.usd_per_million_tokens / 3
