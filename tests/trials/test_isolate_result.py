import dataclasses

import pytest

from hf_efficient.trials.attribution import Difference, difference, differences, plain_seconds, wants_another_round
from hf_efficient.trials.isolate import isolation_of
from tests.conftest import small_recipe
from tests.trials.variants_run import SCHEDULE, measured, outcomes


def recipe(**efficiency):
    return small_recipe(efficiency={"plan": False, **efficiency})


def replaced(name, **changes):
    """All variants, one of which took something else."""
    held = outcomes()
    return {**held, name: dataclasses.replace(held[name], runs=[measured(name, **changes)])}


def test_the_parts_of_a_step_add_up():
    found = isolation_of(recipe(), outcomes(), 6, 3)
    parts = {part.name: part.seconds for part in found.parts}
    # a log of 0.1 s every 10 steps, an evaluation of 5 s every 50, a save of 2 s every 100
    steps = {"forward": 0.25, "backward_optimizer": 0.5, "data": 0.2, "instrumentation": 0.05}
    assert parts == pytest.approx({**steps, "logging": 0.01, "evaluation": 0.1, "checkpointing": 0.02})
    assert found.step_seconds == pytest.approx(1.0 + 0.01 + 0.1 + 0.02)
    assert found.unexplained_seconds == pytest.approx(0.0)
    assert found.tokens_per_second == pytest.approx(400 / 1.13)
    assert found.loop_seconds == pytest.approx(1130)


def test_what_is_measured_by_itself():
    found = isolation_of(recipe(), outcomes(), 6, 3)
    assert (found.loader.step_seconds, found.loader.model_step_seconds) == (0.2, 0.75)
    assert found.loader.cpu_seconds == pytest.approx(0.05)
    assert (found.tokenisation.examples_per_second, found.tokenisation.tokens_per_second) == (50, 2500)
    assert found.forward_without_graph_seconds == 0.2
    # 0.15 s of 50 tokens, 0.2 of 100, 0.3 of 200: 1 ms a token, 0.1 s before the first
    assert found.micro_batch.fixed_seconds == pytest.approx(0.1)
    assert found.micro_batch.token_seconds == pytest.approx(0.001)
    assert (found.micro_batch.seconds, found.micro_batch.points) == (0.2, 18)
    assert found.micro_batch.doubled_positions == 1.0


def test_a_difference_inside_its_spread_is_none_and_stays_unexplained():
    seconds = [0.95, 0.55, 0.95, 0.55, 0.95, 0.55]  # around the 0.75 of the quiet steps' model
    found = isolation_of(recipe(), replaced("quiet", step_seconds=seconds), 6, 3)
    data = found.part("data")
    assert (data.seconds, data.note) == (0.0, "no difference")
    assert data.low < 0 < data.high


def test_a_variant_that_failed_leaves_its_neighbours_unknown_and_says_why():
    found = isolation_of(recipe(), outcomes(held_batches="out of device memory"), 6, 3)
    for name in ("data", "backward_optimizer"):
        part = found.part(name)
        assert part.seconds is None
        assert part.note == "held_batches failed: out of device memory"
    assert found.part("instrumentation").seconds == pytest.approx(0.05)
    assert found.unexplained_seconds == pytest.approx(0.7)
    assert "held_batches failed" in {one.rule: one.why for one in found.diagnosis.abstentions}["few_workers"]


def test_remarks_on_what_is_left_out():
    plain = isolation_of(recipe(), outcomes(), 6, 3)
    assert plain.notes == []
    other = replaced("forward", step_tokens=[300] * 6)
    as_is = other["as_is"]
    again = {"as_is": dataclasses.replace(as_is, runs=[*as_is.runs, measured("as_is", step_seconds=[1.3] * 6)])}
    said = recipe(plan=True).model_copy(update={"train": {"report_to": "wandb"}})
    notes = " ".join(isolation_of(said, {**other, **again}, 6, 3).notes)
    assert "what wandb takes" in notes
    assert "plans once" in notes
    assert "batches of forward were not those" in notes
    assert "1.30 times as long" in notes


def test_no_more_is_waited_for_a_loader_than_it_takes_alone():
    found = isolation_of(recipe(), replaced("loader", step_seconds=[0.05] * 6), 6, 3)
    data = found.part("data")
    assert data.seconds == pytest.approx(0.05)
    assert data.note == "200 ms by difference, but the loader alone takes no more"
    assert found.unexplained_seconds == pytest.approx(0.15)
    beside = dataclasses.replace(SCHEDULE, workers=2)  # whose cores the training may miss
    both = {**replaced("loader", step_seconds=[0.05] * 6), "as_is": replaced("as_is", schedule=beside)["as_is"]}
    assert isolation_of(recipe(), both, 6, 3).part("data").seconds == pytest.approx(0.2)


def test_a_difference_and_how_sure_it_is():
    # 1, 2, 3 and 0, 1, 5: median 1.5, medians of the rounds 2 and 1; six pairs lie between their ends with 96.9%
    found = difference([[5.0, 6.0, 7.0], [4.0, 5.0, 9.0]], [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]])
    assert found == Difference(seconds=1.5, low=0.0, high=5.0, rounds=2, is_sure=True)
    assert not found.is_clear
    found = difference([[2.0] * 6, [9.0] * 6], [[1.0] * 6])
    assert found == Difference(1.0, 1.0, 1.0, 1, True)
    # 20 pairs of +1 and 4 of -1: the pairs alone are sure of +1, the second round is not
    found = difference([[2.0] * 20, [0.0] * 4], [[1.0] * 20, [1.0] * 4])
    assert (found.seconds, found.low, found.high) == (1.0, -1.0, 1.0)
    assert not found.is_clear
    found = difference([[1.0] * 12], [[1.5] * 12])
    assert (found.seconds, found.high) == (-0.5, -0.5)
    assert not found.is_clear
    assert wants_another_round(found, whole_seconds=1.5)
    assert difference([[2.0] * 5], [[1.0] * 5]) == Difference(1.0, 1.0, 1.0, 1, False)
    assert not Difference(1.0, 1.0, 1.0, 1, False).is_clear


@pytest.mark.parametrize("base", [[], [[]]])
def test_without_a_common_step_there_is_no_difference_to_tell(base):
    assert difference([[1.0]], base) is None


@pytest.mark.parametrize(
    ("found", "again"),
    [
        (Difference(0.50, 0.48, 0.53, 1, True), False),  # large, clear, and known well
        (Difference(0.50, 0.30, 0.70, 1, True), True),  # large, and known to within 40% of a step only
        (Difference(0.05, 0.04, 0.06, 1, True), True),  # clear, but small: another process may differ by as much
        (Difference(0.05, 0.04, 0.06, 2, True), False),
        (Difference(0.01, -0.05, 0.06, 2, True), True),  # neither clear nor nothing
        (Difference(0.00, -0.02, 0.02, 2, True), False),  # nothing that matters
        (Difference(0.01, -0.05, 0.06, 3, True), False),  # three rounds are the most
    ],
)
def test_what_is_run_again(found, again):
    assert wants_another_round(found, whole_seconds=1.0) is again


@pytest.mark.parametrize(
    ("left_out", "seconds", "parts"),
    [
        (
            ("one_process",),
            {"quiet": 9.5, "logged": 9.75, "held_batches": 8.0, "forward": 3.0},
            {"logging": 0.25, "instrumentation": 0.5, "data": 1.5, "backward_optimizer": 5.0},
        ),
        (
            ("logged",),
            {"quiet": 10.0, "held_batches": 8.0, "one_process": 7.0, "forward": 3.0},
            {"instrumentation": 0.0, "data": 2.0, "communication": 1.0, "backward_optimizer": 4.0},
        ),
        (
            ("one_process",),
            {"quiet": 9.0, "logged": 9.5, "forward": 3.0},
            {"logging": 0.5, "instrumentation": 1.0, "data": None, "backward_optimizer": None},
        ),
    ],
)
def test_the_chain_adds_up(left_out, seconds, parts):
    held = chain(left_out, as_is=10.0, **seconds)
    assert {name: None if one is None else one.seconds for name, one in differences(held).items()} == parts
    assert plain_seconds(held) == 10.0


def chain(left_out, **seconds):
    """One round of six equal steps of each variant, or of those given."""
    runs = {
        name: [measured("quiet", step_seconds=each if isinstance(each, list) else [each] * 6)]
        for name, each in seconds.items()
    }
    return {
        name: dataclasses.replace(one, runs=runs.get(name, []), left_out="it is" if name in left_out else "")
        for name, one in outcomes().items()
    }


def test_a_log_that_fell_into_a_step_is_not_our_recording():
    held = chain(("one_process",), quiet=9.0, logged=11.0)
    own = measured("as_is", step_seconds=[10.0, 12.0] * 3, step_logged=[False, True] * 3)
    held["as_is"] = dataclasses.replace(held["as_is"], runs=[own])
    assert plain_seconds(held) == 10.0
    assert differences(held)["instrumentation"].seconds == 1.0
