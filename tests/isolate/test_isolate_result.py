import dataclasses

import pytest

from hf_efficient.isolate.result import isolation_of
from tests.conftest import small_recipe
from tests.isolate.variants_run import SCHEDULE, measured, outcomes


def recipe(**efficiency):
    return small_recipe(efficiency={"plan": False, **efficiency})


def replaced(name, **changes):
    """All variants, one of which took something else."""
    other = [measured(name, **changes)]
    return [dataclasses.replace(one, runs=other) if one.name == name else one for one in outcomes()]


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
    again = [dataclasses.replace(one, runs=[*one.runs, measured("as_is", step_seconds=[1.3] * 6)]) for one in other[:1]]
    said = recipe(plan=True).model_copy(update={"train": {"report_to": "wandb"}})
    notes = " ".join(isolation_of(said, [*again, *other[1:]], 6, 3).notes)
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
    others = [one for one in replaced("loader", step_seconds=[0.05] * 6) if one.name != "as_is"]
    own = [one for one in replaced("as_is", schedule=beside) if one.name == "as_is"]
    assert isolation_of(recipe(), [*own, *others], 6, 3).part("data").seconds == pytest.approx(0.2)
