"""A budget over real trainings, whose time passes by hand: when it warns, where it stops, and how the run goes on."""

import pytest
from hand_clock import Hand, timeline_of
from tiny_training import causal_trainer, every, losses, records, train_causal, trained_weights
from transformers import Trainer, TrainerCallback

from hf_efficient.accounting.account import read_account
from hf_efficient.accounting.money import read_earlier
from hf_efficient.callbacks import stop as budgets
from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.callbacks.stop import BudgetCallback
from hf_efficient.errors import SetupError
from hf_efficient.facts.prices import Rates
from hf_efficient.recording import timeline as timelines
from hf_efficient.recording.system import SystemSampler
from hf_efficient.records.amounts import BudgetAccount
from hf_efficient.trainer import EfficientTrainer

EVALUATION, SAVE = 30, 5
NOTHING_ELSE = {"eval_strategy": "no", "save_strategy": "no"}


@pytest.fixture
def hand(monkeypatch):
    """The clock of this process, which started a hundred seconds ago."""
    clock = Hand()
    new_process(monkeypatch, clock)
    return clock


def new_process(monkeypatch, clock):
    clock.wait(1000)
    monkeypatch.setattr(timelines, "_timeline", timeline_of(clock))


class Passing(TrainerCallback):
    """Lets the time of a step pass and of an evaluation; ``e5`` is an evaluation after step 5, ``s5`` a save."""

    def __init__(self, clock, step=lambda number: 10):
        self.clock, self.step, self.events = clock, step, []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.clock.wait(self.step(state.global_step + 1))

    def on_prediction_step(self, args, state, control, **kwargs):
        self.clock.wait(EVALUATION / 2)  # two batches

    def on_evaluate(self, args, state, control, **kwargs):
        self.events.append(f"e{state.global_step}")

    def on_save(self, args, state, control, **kwargs):
        self.events.append(f"s{state.global_step}")


def saving(kind, clock):
    """A trainer class below which a checkpoint takes its time."""

    class Slow(kind):
        def save_model(self, *args, **kwargs):
            super().save_model(*args, **kwargs)
            clock.wait(SAVE)

    return Slow


@pytest.fixture
def train(tiny_dir, tmp_path, hand):
    """Twelve steps of 10 s, an evaluation of 30 s after every fifth and the last, a checkpoint of 5 s with it.

    The budget is of seconds or of limits by their names. At 36 USD an hour a second costs a cent. Gives the trainer,
    the events by their step and what the budget says.
    """

    def run(budget, output=tmp_path, kind=EfficientTrainer, price=None, callback=False, passing=None, **changes):
        rates, said, passing = Rates(price_usd_per_hour=price), [], passing or Passing(hand)
        limits = budget if isinstance(budget, dict) else {"hours": budget / 3600} if budget else None
        mine = BudgetCallback(**limits, rates=rates, tell=said.append) if limits else None
        settings = {"max_steps": 12, "eval_rows": 4, **every(evaluate=5, save=5), **changes}
        settings["callbacks"] = [passing, mine] if callback else [passing]
        settings["mixin"] = (
            {"rates": rates, **({} if callback else {"budget": mine})} if kind is EfficientTrainer else {}
        )
        trainer = train_causal(saving(kind, hand), tiny_dir, output, **settings)
        return trainer, " ".join(passing.events), said

    return run


def budget_of(output) -> BudgetAccount | None:
    return read_account(output / "efficiency/run.json").money.budget


def checkpoints(output):
    return sorted(path.name for path in output.glob("checkpoint-*"))


BY_EPOCH = {"max_steps": -1, "num_train_epochs": 3, "eval_strategy": "epoch", "save_strategy": "epoch"}


@pytest.mark.parametrize(
    ("seconds", "changes", "reached", "events"),
    [
        # 100 s before, 12 * 10 s, 3 * 30 s (5, 10, 12), 3 * 5 s: 325 s.
        pytest.param(330, {}, 12, "e5 s5 e10 s10 e12 s12", id="enough"),
        # 290 s before the last evaluation and save, which end at 325 s.
        pytest.param(306, {}, 12, "e5 s5 e10 s10 e12 s12", id="the last step is not held back"),
        # 100 s before, 30 s for the evaluation before the first step, 5 steps: 180 s. The next evaluation and one more
        # step end at 220 s.
        pytest.param(219, {"eval_on_start": True}, 5, "e0 s5", id="an evaluation that does not fit is left out"),
        pytest.param(221, {"eval_on_start": True}, 6, "e0 e5 s5 s6", id="an evaluation that fits is done"),
        # An epoch is 12 steps: 220 s, then 35 s for its evaluation and checkpoint. After step 14 275 s are spent, and
        # 15 s more do not fit into 289 s.
        pytest.param(289, BY_EPOCH, 14, "e12 s12 s14", id="nothing of an epoch follows the end"),
    ],
)
def test_where_it_stops(train, tmp_path, seconds, changes, reached, events):
    trainer, happened, said = train(seconds, **changes)
    assert (trainer.state.global_step, happened) == (reached, events)
    assert (trainer.budget_reached is None) == (reached == 12)
    if seconds == 330:
        assert (said, budget_of(tmp_path)) == ([], BudgetAccount(None, 330 / 3600, None, None, None))


@pytest.mark.parametrize(("kind", "callback"), [(EfficientTrainer, False), (EfficientTrainer, True), (Trainer, True)])
def test_it_stops_where_the_next_step_and_its_checkpoint_no_longer_fit(train, tmp_path, kind, callback):
    # 100 s before, 5 steps, evaluation and checkpoint: 185 s after step 5; 195, 205 and 215 s after the next ones. A
    # further step with a checkpoint needs 15 s: they fit into 228 s after step 6 and 7 (until 210, 220), not after 8.
    trainer, events, said = train({"usd": 2.28}, kind=kind, price=36.0, callback=callback)
    assert (trainer.state.global_step, events) == (8, "e5 s5 s8")
    assert [one.step for one in records(tmp_path)] == list(range(1, 9))
    assert checkpoints(tmp_path) == ["checkpoint-5", "checkpoint-8"]
    found = read_account(tmp_path / "efficiency/run.json")
    assert (found.ended, found.time.wall_seconds) == ("done", pytest.approx(220))
    assert found.money.budget == BudgetAccount(2.28, None, None, "usd: $2.20 of $2.28 spent after step 8 of 12", 8)
    # 4 steps, the evaluations of 10 and 12 and their checkpoints are left: 220 + 40 + 60 + 10 = 330 s; and 100 s until
    # the process that goes on trains.
    assert said[-1] == (
        "budget: usd=2.28: $2.20 are spent after step 8 of 12, and what comes next does not fit. The run is saved in "
        "checkpoint-8 and ends here; trainer.train(resume_from_checkpoint=True) with usd=4.8 continues."
    )


def test_it_warns_once_as_soon_as_the_forecast_passes(train, tmp_path):
    # After five recorded steps, at step 6, 160 s are spent and 6 steps of 10 s left: 220 s of 201 s.
    _, events, said = train(201, **NOTHING_ELSE)
    assert said[0] == (
        "budget: hours=0.0558333 (3 min 21 s): the run will take about 3 min 40 s, the rest of its 12 steps about "
        "1 min 00 s. max_steps=10 would fit; as it is, the run is saved and stopped around step 10."
    )
    assert len(said) == 2
    assert "are spent after step 10 of 12" in said[1]
    assert events == "s10"  # which no strategy asks for
    assert checkpoints(tmp_path) == ["checkpoint-10"]


def test_it_warns_again_only_when_it_gets_clearly_worse(train, hand):
    # 20 steps of 10 s: 300 s of 291 s. From step 8 on a step takes 40 s. At step 8 this is not known; at step 9 the
    # mean of steps 4 to 8 is 16 s: 250 s and 11 * 16 s.
    passing = Passing(hand, lambda number: 40 if number >= 8 else 10)
    _, _, said = train(291, passing=passing, max_steps=20, **NOTHING_ELSE)
    warnings = [text.partition("will take ")[2].partition(";")[0] for text in said[:-1]]
    assert warnings == [
        "about 5 min 00 s, the rest of its 20 steps about 2 min 20 s. max_steps=19 would fit",
        "about 7 min 06 s, the rest of its 20 steps about 2 min 56 s. max_steps=11 would fit",
    ]
    assert "after step 10 of 20" in said[-1]


@pytest.mark.slow
def test_resumed_with_more_it_ends_as_if_it_had_never_stopped(train, tmp_path, hand, monkeypatch):
    whole, _, _ = train(None, tmp_path / "whole")
    new_process(monkeypatch, hand)
    stopped, _, _ = train(228, tmp_path / "parts")
    assert stopped.state.global_step == 8
    new_process(monkeypatch, hand)
    # 220 s before, 100 s until this process trains, then 4 steps, 2 evaluations and 2 saves: 430 s.
    resumed, events, said = train(430, tmp_path / "parts", resume=True)
    assert (resumed.state.global_step, events, said) == (12, "e10 s10 e12 s12", [])
    assert losses(resumed) == losses(whole)
    expected = trained_weights(whole)
    assert all(weight.equal(expected[name]) for name, weight in trained_weights(resumed).items())
    found = read_account(tmp_path / "parts/efficiency/run.json")
    assert found.time.wall_seconds == pytest.approx(430)
    assert found.money.budget == BudgetAccount(None, 430 / 3600, None, None, None)
    assert [one.step for one in found.evaluations] == [5, 10, 12]


def test_a_second_process_goes_on_or_begins_anew(train, hand, monkeypatch):
    train(228)
    new_process(monkeypatch, hand)
    with pytest.raises(SetupError, match=r"has spent 5 min 20 s before its next step, and nothing is left"):
        train(228, resume=True)
    new_process(monkeypatch, hand)
    assert train(228)[0].budget_reached == "hours: 3 min 40 s of 3 min 48 s spent after step 8 of 12"


def test_the_checkpoint_to_go_on_from_stays_beside_the_best(train, tmp_path):
    trainer, _, _ = train(228, load_best_model_at_end=True, save_total_limit=1)
    assert trainer.args.save_total_limit == 1
    assert checkpoints(tmp_path) == ["checkpoint-5", "checkpoint-8"]


def test_energy_is_counted_by_the_meter(train, monkeypatch):
    # 360 W: 100 s before are 0.01 kWh, every step 0.001 kWh, the checkpoint at the end half of it.
    joules = property(lambda self: 360.0 * timelines.process_timeline().lived_seconds())
    monkeypatch.setattr(SystemSampler, "energy_joules", joules)
    trainer, _, _ = train({"kwh": 0.0199}, **NOTHING_ELSE)
    assert trainer.budget_reached == "kwh: 0.0195 kWh of 0.0199 kWh spent after step 9 of 12"


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (
            {"usd": 1.0},
            "budget: usd=1: no price is known of a machine without a GPU; set cost.price_usd_per_hour in the "
            "recipe, or Rates(price_usd_per_hour=...).",
        ),
        ({"kwh": 1.0}, "budget: kwh=1: nothing here measures energy; set a limit of usd or hours instead."),
        (
            {"hours": 0.02},
            "budget: hours=0.02 (1 min 12 s): the run has spent 1 min 40 s before its next step, and nothing is left. "
            "Write a larger budget, or none.",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused_before_the_first_step(train, monkeypatch, tmp_path, budget, said):
    monkeypatch.setattr(SystemSampler, "energy_joules", None)
    monkeypatch.setattr(budgets, "_METERS_WITHIN_SECONDS", 0.0)
    with pytest.raises(SetupError) as refused:
        train(budget)
    assert str(refused.value) == said
    assert not [path for path in tmp_path.glob("efficiency/steps.jsonl") if path.read_text()]


@pytest.mark.parametrize(("limits", "said"), [({}, "without a limit"), ({"usd": 0}, "positive"), ({"hours": -1}, "-1")])
def test_a_budget_is_a_positive_number(limits, said):
    with pytest.raises(ValueError, match=said):
        BudgetCallback(**limits)


def test_a_budget_needs_records(tiny_dir, tmp_path):
    with pytest.raises(ValueError, match="budget: euro, eur: no such limit; give usd, hours or kwh"):
        causal_trainer(EfficientTrainer, tiny_dir, tmp_path, mixin={"budget": {"usd": 1, "euro": 5, "eur": 1}})
    with pytest.raises(ValueError, match="leave record_steps on"):
        causal_trainer(EfficientTrainer, tiny_dir, tmp_path, mixin={"budget": {"hours": 1}, "record_steps": False})


@pytest.mark.parametrize("first", [True, False])
def test_beside_an_account_callback_a_training_is_recorded_once(tiny_dir, tmp_path, hand, first):
    mine = BudgetCallback(hours=1, tell=pytest.fail)
    both = [AccountCallback(), mine] if first else [mine, AccountCallback()]
    settings = {"max_steps": 4, "eval_rows": 4, "callbacks": [Passing(hand), *both], **every(evaluate=2, save=2)}
    for _ in range(2):  # the second training of the same folder is another segment
        train_causal(saving(Trainer, hand), tiny_dir, tmp_path, **settings)
    steps = [(one.segment, one.step) for one in records(tmp_path)]
    assert steps == [(segment, number) for segment in (0, 1) for number in (1, 2, 3, 4)]
    found = read_account(tmp_path / "efficiency/run.json")
    assert [(one.step, one.seconds) for one in found.evaluations] == [(2, 30.0), (4, 30.0)] * 2
    assert found.money.budget == BudgetAccount(None, 1.0, None, None, None)
    assert found.time.phase_seconds["checkpointing"] == 4 * SAVE
    assert read_earlier(tmp_path / "efficiency").save_seconds == 4 * SAVE
