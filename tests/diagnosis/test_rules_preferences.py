"""Preference tuning that goes wrong without an error."""

from hf_efficient.diagnosis.rules.preferences import beta_without_effect, length_bias, margin_without_likelihood
from hf_efficient.records.findings import Abstention
from tests.diagnosis.made import case_in, judged, settings, step


def run(folder, margins, rewards=(), objective="dpo", lengths=None, **arguments):
    """A log after every step; ``rewards`` are of the better answers."""
    rewards = rewards or [0.0] * len(margins)
    held = [{"margin": one, "chosen_reward": reward} for one, reward in zip(margins, rewards, strict=True)]
    steps = [step(number, loss=0.6, preferences=one) for number, one in enumerate(held, 1)]
    arguments = {"beta": 0.1, "learning_rate": 1e-5, "loss_type": ["sigmoid"], **arguments}
    facts = {"settings": settings(arguments=arguments), **({"answers": lengths} if lengths else {})}
    return case_in(folder, steps, facts=facts, recipe=f"recipe:\n  objective: {objective}\n")


GROWING = [0.0, 0.1, 0.4, 0.8, 1.2, 1.6, 2.0, 2.1, 2.2]
FALLING = [0.0, -0.1, -0.2, -0.5, -0.9, -1.2, -1.4, -1.5, -1.6]


def test_a_margin_that_costs_likelihood(tmp_path):
    found = margin_without_likelihood(run(tmp_path, GROWING, FALLING))
    assert found.title == "the margin grows by 2 while the better answers lose 14 nats of log-probability"
    judged(found, overrides={"train.loss_type": ["sigmoid", "sft"], "train.loss_weights": [1.0, 0.1]})
    simpo = margin_without_likelihood(run(tmp_path / "cpo", GROWING, FALLING, "cpo", beta=0.5))
    judged(simpo, overrides={"train.cpo_alpha": 1.0})


def test_a_margin_of_better_answers_is_no_finding(tmp_path):
    up = [-one for one in FALLING]
    assert margin_without_likelihood(run(tmp_path / "a", GROWING, up)) is None
    noisy = [0.0, -1.0, 0.9, -0.8, 1.0, -0.9, 0.8, -1.0, 0.1]
    assert margin_without_likelihood(run(tmp_path / "b", GROWING, noisy)) is None
    assert margin_without_likelihood(run(tmp_path / "c", GROWING, FALLING, "reward")) is None
    assert margin_without_likelihood(run(tmp_path / "d", GROWING, FALLING, "sft")) is None
    assert isinstance(margin_without_likelihood(run(tmp_path / "e", GROWING[:3], FALLING[:3])), Abstention)


def test_a_beta_that_holds_nothing_back(tmp_path):
    still = [0.0, 0.0001, -0.0002, 0.0001, 0.0003, 0.0002, 0.0001]
    found = beta_without_effect(run(tmp_path / "a", still))
    assert found.title == "beta 0.1 does nothing: the policy stays within 0.0015 nats of its reference"
    judged(found, overrides={"train.learning_rate": 1e-4})
    assert beta_without_effect(run(tmp_path / "b", GROWING)) is None
    assert beta_without_effect(run(tmp_path / "c", still, objective="orpo")) is None


LONG = {"chosen_tokens": 90.0, "rejected_tokens": 60.0, "longer_chosen_share": 0.8}


def test_better_answers_that_are_longer(tmp_path):
    found = length_bias(run(tmp_path / "a", GROWING, lengths=LONG))
    assert found.title == (
        "length may be all that is learnt: better answers have 1.5 times the tokens of worse ones, the longer one in "
        "80% of the pairs"
    )
    judged(found, overrides={"train.ld_alpha": 0.5})
    assert length_bias(run(tmp_path / "b", GROWING, lengths=LONG, ld_alpha=0.5)) is None
    assert length_bias(run(tmp_path / "c", GROWING, lengths=LONG, objective="cpo", loss_type="simpo")) is None
    assert length_bias(run(tmp_path / "d", GROWING, lengths={**LONG, "longer_chosen_share": 0.5})) is None
    assert length_bias(run(tmp_path / "e", GROWING, objective="reward", lengths=LONG)).remedies[0].overrides == {}
    assert isinstance(length_bias(run(tmp_path / "f", GROWING)), Abstention)
