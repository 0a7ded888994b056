"""A budget over real trainings, whose time passes by hand: when it warns, where it stops, and how the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from hand_clock import Hand, timeline_of
from tiny_training import causal_trainer, losses, trained_weights
from transformers import Trainer, TrainerCallback

from hf_efficient.accounting.account import read_account
from hf_efficient.callbacks import stop as budgets
from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.callbacks.stop import BudgetCallback
from hf_efficient.errors import SetupError
from hf_efficient.facts.prices import Rates
from hf_efficient.recording import timeline as timelines
from hf_efficient.recording.earlier import read_earlier
from hf_efficient.recording.system import SystemSampler
from hf_efficient.records.amounts import BudgetAccount
from hf_efficient.run_dir.reading import read_steps
from hf_efficient.trainer import EfficientTrainer

STEP, EVALUATION, SAVE = 10, 30, 5


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
    """Lets the time of a step pass, of an evaluation, of a save."""

    def __init__(self, clock, step=STEP):
        self.clock, self.step, self.events = clock, step, []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.clock.wait(self.step(state.global_step + 1) if callable(self.step) else self.step)

    def on_prediction_step(self, args, state, control, **kwargs):
        self.clock.wait(EVALUATION / 2)  # two batches

    def on_evaluate(self, args, state, control, **kwargs):
        self.events.append(("evaluation", state.global_step))

    def on_save(self, args, state, control, **kwargs):
        self.events.append(("save", state.global_step))


def saving(kind, clock):
    """A trainer class below which a checkpoint takes its time."""

    class Slow(kind):
        def save_model(self, *args, **kwargs):
            super().save_model(*args, **kwargs)
            clock.wait(SAVE)

    return Slow


def train(tiny_dir, output, clock, *, budget, resume=False, kind=EfficientTrainer, step=STEP, price=None, **changes):
    """Twelve steps of 10 s, an evaluation of 30 s after every fifth and the last, a checkpoint of 5 s with it.

    At 36 USD an hour a second costs a cent.
    """
    rates = Rates(price_usd_per_hour=price)
    told = []
    passing = Passing(clock, step)
    settings = {
        "max_steps": 12,
        "eval_strategy": "steps",
        "eval_steps": 5,
        "save_strategy": "steps",
        "save_steps": 5,
        **changes,
    }
    mine = BudgetCallback(**budget, rates=rates, tell=told.append) if budget else None
    trainer = causal_trainer(
        saving(kind, clock),
        tiny_dir,
        output,
        eval_rows=4,
        callbacks=[passing, *([mine] if mine is not None and kind is Trainer else [])],
        mixin={"budget": mine, "rates": rates} if kind is EfficientTrainer else None,
        **settings,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, passing.events, told


def budget_of(output) -> BudgetAccount | None:
    return read_account(Path(output) / "efficiency/run.json").money.budget


def checkpoints(output):
    return sorted(path.name for path in Path(output).glob("checkpoint-*"))


def test_a_budget_that_is_enough_says_nothing(tiny_dir, tmp_path, hand):
    # 100 s before, 12 * 10 s, 3 * 30 s (5, 10, 12), 3 * 5 s: 325 s.
    trainer, events, told = train(tiny_dir, tmp_path, hand, budget={"hours": 330 / 3600})
    assert (trainer.state.global_step, trainer.budget_reached, told) == (12, None, [])
    assert [step for kind, step in events if kind == "evaluation"] == [5, 10, 12]
    assert budget_of(tmp_path) == BudgetAccount(None, 330 / 3600, None, None, None)


@pytest.mark.parametrize("kind", [EfficientTrainer, Trainer])
def test_it_stops_where_the_next_step_and_its_checkpoint_no_longer_fit(tiny_dir, tmp_path, hand, kind):
    # 100 s before, 5 steps, evaluation and checkpoint: 185 s after step 5; 195, 205 and 215 s after the next ones. A
    # further step with a checkpoint needs 15 s: they fit into 228 s after step 6 and 7 (until 210, 220), not after 8.
    trainer, events, told = train(tiny_dir, tmp_path, hand, budget={"usd": 2.28}, kind=kind, price=36.0)
    assert trainer.state.global_step == 8
    assert events == [("evaluation", 5), ("save", 5), ("save", 8)]
    assert checkpoints(tmp_path) == ["checkpoint-5", "checkpoint-8"]
    found = read_account(tmp_path / "efficiency/run.json")
    assert found.ended == "done"
    assert found.time.wall_seconds == pytest.approx(220)
    assert found.money.budget == BudgetAccount(2.28, None, None, "usd: $2.20 of $2.28 spent after step 8 of 12", 8)
    # 4 steps, the evaluations of 10 and 12 and their checkpoints are left: 220 + 40 + 60 + 10 = 330 s; and 100 s until
    # the process that goes on trains.
    assert told[-1] == (
        "budget: usd=2.28: $2.20 are spent after step 8 of 12, and what comes next does not fit. The run is saved in "
        "checkpoint-8 and ends here; trainer.train(resume_from_checkpoint=True) with usd=4.8 goes on."
    )


def test_an_evaluation_that_does_not_fit_is_left_out(tiny_dir, tmp_path, hand):
    # 100 s before, 30 s for the evaluation before the first step, 5 steps: 180 s. The next evaluation and one more step
    # end at 220 s.
    trainer, events, _ = train(tiny_dir, tmp_path, hand, budget={"hours": 219 / 3600}, eval_on_start=True)
    assert events == [("evaluation", 0), ("save", 5)]
    assert trainer.state.global_step == 5


def test_an_evaluation_that_fits_is_done(tiny_dir, tmp_path, hand):
    _, events, _ = train(tiny_dir, tmp_path, hand, budget={"hours": 221 / 3600}, eval_on_start=True)
    assert events == [("evaluation", 0), ("evaluation", 5), ("save", 5), ("save", 6)]


def test_the_last_step_is_not_held_back(tiny_dir, tmp_path, hand):
    # 290 s before the last evaluation and save, which end at 325 s.
    trainer, events, _ = train(tiny_dir, tmp_path, hand, budget={"hours": 306 / 3600})
    assert trainer.state.global_step == 12
    assert trainer.budget_reached is None
    assert events[-2:] == [("evaluation", 12), ("save", 12)]


NOTHING_ELSE = {"eval_strategy": "no", "save_strategy": "no"}


def test_it_warns_once_as_soon_as_the_forecast_passes(tiny_dir, tmp_path, hand):
    # After five recorded steps, at step 6, 160 s are spent and 6 steps of 10 s left: 220 s of 201 s.
    _, events, told = train(tiny_dir, tmp_path, hand, budget={"hours": 201 / 3600}, **NOTHING_ELSE)
    assert told[0] == (
        "budget: hours=0.0558333 (3 min 21 s): the run will take about 3 min 40 s, the rest of its 12 steps about "
        "1 min 00 s. max_steps=10 would fit; as it is, the run is saved and stopped around step 10."
    )
    assert len(told) == 2
    assert "are spent after step 10 of 12" in told[1]
    assert events == [("save", 10)]  # which no strategy asks for
    assert checkpoints(tmp_path) == ["checkpoint-10"]


def test_it_warns_again_only_when_it_gets_clearly_worse(tiny_dir, tmp_path, hand):
    # 20 steps of 10 s: 300 s of 291 s. From step 8 on a step takes 40 s. At step 8 this is not known; at step 9 the
    # mean of steps 4 to 8 is 16 s: 250 s and 11 * 16 s.
    _, _, told = train(
        tiny_dir,
        tmp_path,
        hand,
        budget={"hours": 291 / 3600},
        step=lambda number: 40 if number >= 8 else 10,
        max_steps=20,
        **NOTHING_ELSE,
    )
    warnings = [text.partition("will take ")[2].partition(";")[0] for text in told[:-1]]
    assert warnings == [
        "about 5 min 00 s, the rest of its 20 steps about 2 min 20 s. max_steps=19 would fit",
        "about 7 min 06 s, the rest of its 20 steps about 2 min 56 s. max_steps=11 would fit",
    ]
    assert "after step 10 of 20" in told[-1]


@pytest.mark.slow
def test_resumed_with_more_it_ends_as_if_it_had_never_stopped(tiny_dir, tmp_path, hand, monkeypatch):
    whole, _, _ = train(tiny_dir, tmp_path / "whole", hand, budget=None)
    new_process(monkeypatch, hand)
    stopped, _, _ = train(tiny_dir, tmp_path / "parts", hand, budget={"hours": 228 / 3600})
    assert stopped.state.global_step == 8
    new_process(monkeypatch, hand)
    # 220 s before, 100 s until this process trains, then 4 steps, 2 evaluations and 2 saves: 430 s.
    budget = {"hours": 430 / 3600}
    resumed, events, told = train(tiny_dir, tmp_path / "parts", hand, budget=budget, resume=True)
    assert (resumed.state.global_step, told) == (12, [])
    assert events == [("evaluation", 10), ("save", 10), ("evaluation", 12), ("save", 12)]
    assert losses(resumed) == losses(whole)
    expected = trained_weights(whole)
    assert all(weight.equal(expected[name]) for name, weight in trained_weights(resumed).items())
    found = read_account(tmp_path / "parts/efficiency/run.json")
    assert found.time.wall_seconds == pytest.approx(430)
    assert found.money.budget == BudgetAccount(None, 430 / 3600, None, None, None)
    assert [one.step for one in found.evaluations] == [5, 10, 12]


def test_resumed_with_as_much_it_does_not_begin(tiny_dir, tmp_path, hand, monkeypatch):
    train(tiny_dir, tmp_path, hand, budget={"hours": 228 / 3600})
    new_process(monkeypatch, hand)
    with pytest.raises(SetupError, match=r"has spent 5 min 20 s before its next step, and nothing is left"):
        train(tiny_dir, tmp_path, hand, budget={"hours": 228 / 3600}, resume=True)


def test_a_training_from_the_start_in_an_old_folder_is_a_run_of_its_own(tiny_dir, tmp_path, hand, monkeypatch):
    train(tiny_dir, tmp_path, hand, budget={"hours": 228 / 3600})
    new_process(monkeypatch, hand)
    trainer, _, _ = train(tiny_dir, tmp_path, hand, budget={"hours": 228 / 3600})
    assert trainer.budget_reached == "hours: 3 min 40 s of 3 min 48 s spent after step 8 of 12"


def test_nothing_of_an_epoch_follows_the_end(tiny_dir, tmp_path, hand):
    # An epoch is 12 steps: 220 s, then 35 s for its evaluation and checkpoint. After step 14 275 s are spent, and 15 s
    # more do not fit into 289 s.
    _, events, _ = train(
        tiny_dir,
        tmp_path,
        hand,
        budget={"hours": 289 / 3600},
        max_steps=-1,
        num_train_epochs=3,
        eval_strategy="epoch",
        save_strategy="epoch",
    )
    assert events == [("evaluation", 12), ("save", 12), ("save", 14)]


def test_the_checkpoint_to_go_on_from_stays_beside_the_best(tiny_dir, tmp_path, hand):
    trainer, _, _ = train(
        tiny_dir, tmp_path, hand, budget={"hours": 228 / 3600}, load_best_model_at_end=True, save_total_limit=1
    )
    assert trainer.args.save_total_limit == 1
    assert checkpoints(tmp_path) == ["checkpoint-5", "checkpoint-8"]


def test_energy_is_counted_by_the_meter(tiny_dir, tmp_path, hand, monkeypatch):
    # 360 W: 100 s before are 0.01 kWh, every step 0.001 kWh, the checkpoint at the end half of it.
    joules = property(lambda self: 360.0 * timelines.process_timeline().lived_seconds())
    monkeypatch.setattr(SystemSampler, "energy_joules", joules)
    trainer, _, _ = train(tiny_dir, tmp_path, hand, budget={"kwh": 0.0199}, **NOTHING_ELSE)
    assert trainer.state.global_step == 9
    assert trainer.budget_reached == "kwh: 0.0195 kWh of 0.0199 kWh spent after step 9 of 12"


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (
            {"usd": 1.0},
            "budget: usd=1: no price is known of a machine without a GPU; set efficiency.price_usd_per_hour in the "
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
def test_what_cannot_be_counted_is_refused_before_the_first_step(tiny_dir, tmp_path, hand, monkeypatch, budget, said):
    monkeypatch.setattr(SystemSampler, "energy_joules", None)
    monkeypatch.setattr(budgets, "_METERS_WITHIN_SECONDS", 0.0)
    with pytest.raises(SetupError) as refused:
        train(tiny_dir, tmp_path, hand, budget=budget)
    assert str(refused.value) == said
    assert not (tmp_path / "efficiency/steps.jsonl").exists() or not (tmp_path / "efficiency/steps.jsonl").read_text()


@pytest.mark.parametrize(("limits", "said"), [({}, "without a limit"), ({"usd": 0}, "positive"), ({"hours": -1}, "-1")])
def test_a_budget_is_a_positive_number(limits, said):
    with pytest.raises(ValueError, match=said):
        BudgetCallback(**limits)


def test_a_budget_needs_records(tiny_dir, tmp_path):
    with pytest.raises(ValueError, match="budget: euro, eur: no such limit; give usd, hours or kwh"):
        causal_trainer(EfficientTrainer, tiny_dir, tmp_path, mixin={"budget": {"usd": 1, "euro": 5, "eur": 1}})
    with pytest.raises(ValueError, match="leave record_steps on"):
        causal_trainer(EfficientTrainer, tiny_dir, tmp_path, mixin={"budget": {"hours": 1}, "record_steps": False})


def test_a_fault_of_the_watch_is_told_once_and_training_goes_on(tiny_dir, tmp_path, hand, monkeypatch, caplog):
    from hf_efficient.recording.budget import BudgetWatch

    def broken(*args, **kwargs):
        raise RuntimeError("planted")

    monkeypatch.setattr(BudgetWatch, "look", broken)
    trainer, _, _ = train(tiny_dir, tmp_path, hand, budget={"hours": 200 / 3600}, **NOTHING_ELSE)
    assert trainer.state.global_step == 12
    assert [record.message for record in caplog.records if "budget" in record.message] == [
        "The budget is no longer watched, because of a fault."
    ]


@pytest.mark.parametrize("first", [True, False])
def test_beside_an_account_callback_a_training_is_recorded_once(tiny_dir, tmp_path, hand, first):
    mine = BudgetCallback(hours=1, tell=pytest.fail)
    both = [AccountCallback(), mine] if first else [mine, AccountCallback()]
    passing = Passing(hand)
    settings = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    for _ in range(2):  # the second training of the same folder is another segment
        causal_trainer(
            saving(Trainer, hand), tiny_dir, tmp_path, eval_rows=4, callbacks=[passing, *both], **settings
        ).train()
    steps = [(one.segment, one.step) for one in read_steps(tmp_path / "efficiency/steps.jsonl")]
    assert steps == [(segment, number) for segment in (0, 1) for number in (1, 2, 3, 4)]
    found = read_account(tmp_path / "efficiency/run.json")
    assert [(one.step, one.seconds) for one in found.evaluations] == [(2, 30.0), (4, 30.0)] * 2
    assert found.money.budget == BudgetAccount(None, 1.0, None, None, None)
    assert found.time.phase_seconds["checkpointing"] == 4 * SAVE
    assert read_earlier(tmp_path / "efficiency").save_seconds == 4 * SAVE


def test_under_the_mixin_a_callback_of_ones_own_counts_the_same(tiny_dir, tmp_path, hand):
    mine = BudgetCallback(hours=228 / 3600, tell=lambda text: None)
    trainer = causal_trainer(
        saving(EfficientTrainer, hand),
        tiny_dir,
        tmp_path,
        eval_rows=4,
        callbacks=[Passing(hand), mine],
        max_steps=12,
        eval_strategy="steps",
        eval_steps=5,
        save_strategy="steps",
        save_steps=5,
    )
    trainer.train()
    assert trainer.state.global_step == 8
    assert len(list(read_steps(tmp_path / "efficiency/steps.jsonl"))) == 8
