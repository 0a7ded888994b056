import pytest
from transformers import TrainerState, TrainingArguments

from hf_efficient.callbacks.run_facts import epoch_steps
from hf_efficient.estimate.forecast import Schedule, schedule_of

STEPS = {"eval_strategy": "steps", "eval_steps": 10}


def schedule(max_steps=30, batches=None, at_end=False, **arguments):
    """As the Trainer begins: its state holds the steps that shares of the run come to."""
    args = TrainingArguments("out", use_cpu=True, report_to=[], **arguments)
    state = TrainerState(max_steps=max_steps)
    state.compute_steps(args, max_steps)
    epoch = epoch_steps(args, state, None if batches is None else range(batches))
    return schedule_of(args, max_steps, epoch, state.eval_steps, state.save_steps, evaluate_at_end=at_end)


def test_by_steps():
    found = schedule(**STEPS, eval_delay=5, save_strategy="steps", save_steps=0.5)
    assert found == Schedule(30, evaluate_every=10, evaluate_from=5, save_every=15)


def test_by_epochs():
    # 21 batches, two to a step: the last step of an epoch has one.
    found = schedule(
        batches=21, gradient_accumulation_steps=2, eval_strategy="epoch", eval_delay=2, save_strategy="epoch"
    )
    assert found == Schedule(30, evaluate_every=11, evaluate_from=22, save_every=11)
    # An epoch of unknown length ends with the run.
    assert schedule(eval_strategy="epoch", save_strategy="no") == Schedule(30, evaluate_every=30)


def test_nothing_and_the_best():
    assert schedule(eval_strategy="no", save_strategy="no") == Schedule(30)
    best = schedule(**STEPS, save_strategy="best", metric_for_best_model="loss")
    assert best == Schedule(30, evaluate_every=10, save_best=True)


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        ({"eval_strategy": "no"}, True),
        (STEPS, False),  # the Trainer evaluates after the last step
        (STEPS | {"eval_delay": 31}, True),
        (STEPS | {"save_steps": 10, "load_best_model_at_end": True}, True),  # of another model
    ],
)
def test_an_evaluation_after_the_training(arguments, after):
    assert schedule(at_end=True, **arguments).evaluate_after is after
    assert schedule(at_end=False, **arguments).evaluate_after is False
