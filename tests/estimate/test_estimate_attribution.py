from __future__ import annotations

from hf_efficient.estimate.comparison import ChainTimes, attribute

ONE = frozenset({"one_process"})


def chain(left_out=ONE, **seconds) -> ChainTimes:
    """One round of six equal steps of each variant."""
    rounds = {name: [[each] * 6] for name, each in seconds.items()}
    return ChainTimes(rounds, left_out, [[False] * 6])


def medians(times: ChainTimes) -> dict[str, float | None]:
    return {part: None if one is None else one.seconds for part, one in attribute(times).differences.items()}


def test_the_chain_of_one_process_adds_up():
    times = chain(as_is=10.0, quiet=9.5, logged=9.75, held_batches=8.0, forward=3.0)
    assert medians(times) == {"logging": 0.25, "instrumentation": 0.5, "data": 1.5, "backward_optimizer": 5.0}
    found = attribute(times)
    assert (found.plain_seconds, found.forward_seconds) == (10.0, 3.0)


def test_other_processes_are_what_one_does_without():
    times = chain(frozenset(), as_is=10.0, quiet=10.0, held_batches=8.0, one_process=7.0, forward=3.0)
    parts = medians(times)
    assert (parts["communication"], parts["backward_optimizer"]) == (1.0, 4.0)


def test_a_log_that_fell_into_a_step_is_not_our_recording():
    times = ChainTimes(
        {"as_is": [[10.0, 12.0] * 3], "quiet": [[9.0] * 6], "logged": [[11.0] * 6]}, ONE, [[False, True] * 3]
    )
    found = attribute(times)
    assert found.plain_seconds == 10.0
    assert found.differences["instrumentation"].seconds == 1.0


def test_what_failed_is_not_known_and_hides_no_other_part():
    parts = medians(chain(as_is=10.0, quiet=9.0, logged=9.5, forward=3.0))
    assert parts == {"logging": 0.5, "instrumentation": 1.0, "data": None, "backward_optimizer": None}
    assert attribute(chain(as_is=10.0)).forward_seconds is None


def test_a_recipe_without_logs_has_no_such_part():
    assert "logging" not in medians(chain(frozenset({"one_process", "logged"}), as_is=10.0, quiet=9.0))
