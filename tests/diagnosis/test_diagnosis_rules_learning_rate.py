"""Learning rates that do nothing, and those at which the loss grows."""

from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.learning import learning_rate_diverges, learning_rate_idle
from hf_efficient.records.findings import Abstention
from tests.diagnosis.cases import case_in, settings, step


def run(folder, losses, rates=(1e-3,), every=10, optimizer="AdamW", run=None, **arguments):
    """A log every ten steps."""
    steps = []
    for place, loss in enumerate(losses):
        steps += [step(place * every + number) for number in range(1, every)]
        steps.append(step((place + 1) * every, loss=loss, learning_rate=rates[min(place, len(rates) - 1)]))
    model = {"parameters": 100, "trainable_parameters": 100}
    facts = {"settings": settings(arguments=arguments, optimizer={"class": optimizer}, model=model), "run": run or {}}
    return case_in(folder, steps, facts=facts)


FLAT = [8.38, 8.39, 8.37, 8.40, 8.38, 8.38]


def test_a_rate_that_moves_no_weight_is_critical(tmp_path):
    found = learning_rate_idle(run(tmp_path, FLAT, [1e-9], learning_rate=1e-9))
    assert found.title == "the learning rate does nothing: 1e-09 at most, and the loss stays at 8.38"
    assert found.severity == "critical"
    assert found.evidence[1].value == pytest.approx(6e-8)  # 60 steps
    assert found.remedies[0].overrides == {"train.learning_rate": 2e-5}


def test_a_flat_loss_alone_is_no_proof(tmp_path):
    assert learning_rate_idle(run(tmp_path / "a", FLAT, [1e-4], learning_rate=1e-4)) is None
    # Of plain gradient descent the gradient decides, too.
    assert learning_rate_idle(run(tmp_path / "b", FLAT, [1e-9], optimizer="SGD", learning_rate=1e-9)) is None
    assert learning_rate_idle(run(tmp_path / "c", FLAT, [0.0], optimizer="SGD", learning_rate=1e-3)) is not None


def test_a_small_rate_that_learns_is_fine(tmp_path):
    assert learning_rate_idle(run(tmp_path, [2.0, 1.9, 1.8, 1.7, 1.6, 1.5], [1e-6], learning_rate=1e-6)) is None


def test_a_run_within_its_warm_up(tmp_path):
    rising = [1e-5 * place for place in range(1, 7)]
    falling = [2.0, 1.99, 1.98, 1.96, 1.9, 1.8]
    found = learning_rate_idle(run(tmp_path / "a", falling, rising, run={"max_steps": 60}, learning_rate=2e-4))
    assert found.title == "the run ends within its warm-up, at 30% of the learning rate that was asked for"
    assert found.remedies[0].overrides == {"train.warmup_steps": 3}
    going_on = run(tmp_path / "b", falling, rising, run={"max_steps": 600}, learning_rate=2e-4)
    assert isinstance(learning_rate_idle(going_on), Abstention)


def test_a_loss_that_grows_at_first_is_critical(tmp_path):
    losses = [8.4, 15.4, 27.6, 44.7, 29.0, 30.2, 18.2, 17.5, 14.7, 13.8, 10.8, 10.7]
    found = learning_rate_diverges(run(tmp_path, losses, [0.3], learning_rate=0.3))
    assert found.title == "the loss grows from 8.4 to 44.7 at a learning rate of 0.3"
    assert found.severity == "critical"
    assert found.remedies[0].overrides == {"train.learning_rate": 0.03}


def test_a_loss_that_grows_at_the_end_is_found(tmp_path):
    losses = [4.0, 2.5, 1.8, 1.5, 1.4, 1.4, 1.5, 2.1, 2.9, 3.6]  # never above its start
    found = learning_rate_diverges(run(tmp_path, losses, [2e-3], learning_rate=2e-3))
    assert found.title == "the loss grows from 1.4 to 3.6 at a learning rate of 0.002"
    assert found.remedies[0].overrides == {"train.learning_rate": 2e-4}


def test_a_falling_or_noisy_loss_is_no_finding(tmp_path):
    falling = [8.4, 7.9, 7.6, 7.7, 7.2, 6.9]
    assert learning_rate_diverges(run(tmp_path / "a", falling)) is None
    noisy = [1.0, 2.1, 0.7, 1.6, 0.8, 2.2, 1.1, 0.6, 1.9, 1.4, 0.9, 2.0, 1.2]
    assert learning_rate_diverges(run(tmp_path / "b", noisy)) is None
    spike = [2.0, 1.9, 1.8, 9.0, 1.8, 1.7, 1.7, 1.6, 1.6, 1.6, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.4, 1.4, 1.4, 1.4]
    assert learning_rate_diverges(run(tmp_path / "c", spike + spike[4:])) is None
    assert learning_rate_diverges(run(tmp_path / "d", [0.1, -0.2, 0.3, -0.1])) is None


@pytest.mark.parametrize("rule", [learning_rate_idle, learning_rate_diverges])
def test_without_logs_they_abstain(tmp_path, rule):
    assert isinstance(rule(case_in(tmp_path / "a")), Abstention)
    assert isinstance(rule(run(tmp_path / "b", [2.0, 1.9])), Abstention)


def test_a_peak_that_is_overcome_is_no_finding(tmp_path):
    overcome = [2.0, 2.0, 3.5, 3.0, 2.0, 1.5, 1.2, 1.1, 1.05, 1.0]
    assert learning_rate_diverges(run(tmp_path, overcome, learning_rate=1e-3)) is None
