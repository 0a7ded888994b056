"""What somebody sees who looks on, from hand-made records."""

import pytest
from made_records import lines, process, step, train

from hf_efficient.accounting.account import account_run
from hf_efficient.accounting.live import view_of
from hf_efficient.estimate.forecast import Forecast

RUN = {"max_steps": 20, "evaluate_every": 8, "save_every": 10, "world_size": 1}


def write(folder, *more, steps=6, facts=RUN):
    """Ten seconds until the training, then steps of 2 s, the first of them of 5 s, with a loss every second one."""
    spans = [process(), train(0, 10.0), {"kind": "facts", "facts": {"run": facts}}, *more]
    walls = [5.0, *[2.0] * (steps - 1)][:steps]
    records = [
        step(number, sum(walls[: number - 1]), wall, forward=wall) | {"loss": None if number % 2 else 4.0 - number / 10}
        for number, wall in enumerate(walls, start=1)
    ]
    for name, held in (("spans", [{"process": 0, **line} for line in spans]), ("steps", records)):
        (folder / f"{name}.jsonl").unlink(missing_ok=True)
        lines(folder / f"{name}.jsonl", *held)


def view(folder, silent_seconds=0.0):
    return view_of(account_run(folder), silent_seconds)


def alive(at, phase="forward", **seconds):
    told = {"started_at_seconds": 25.0, "open_phase": phase, "phase_seconds": seconds, "memory": {}}
    return {"kind": "alive", "at_seconds": at, **told}


def test_a_run_that_goes_on(tmp_path):
    write(tmp_path, alive(25.5))
    seen = view(tmp_path)
    assert (seen.state, seen.step, seen.max_steps) == ("running", 6, 20)
    assert seen.losses == pytest.approx([3.8, 3.6, 3.4])
    # 14 steps of 15 s / 6; the evaluations at 8, 16 and 20 and the saves at 10 and 20 are of unknown length.
    assert seen.rest == Forecast(pytest.approx(14 * 2.5), True)
    assert seen.total_usd is None


def test_what_is_to_come_is_paid_at_the_last_price(tmp_path):
    """25.5 s at 3600 dollars an hour, one a second; 14 steps of 2.5 s, and 1 s of the second process, at twice that."""
    prices = [{"price_usd_per_hour": usd, "source": "a", "estimated": False} for usd in (3600.0, 7200.0)]
    write(
        tmp_path,
        alive(25.5),
        {"kind": "facts", "facts": {"price": prices[0]}},
        {"kind": "facts", "process": 1, "facts": {"price": prices[1], "run": RUN}},
        {**alive(1.0), "process": 1, "started_at_seconds": 0.0},
    )
    assert view(tmp_path).total_usd == pytest.approx(25.5 + 2 * (1.0 + 14 * 2.5))


@pytest.mark.parametrize(
    ("silent", "state", "forecasts"),
    [(9.9, "running", True), (10.1, "silent", True), (59.9, "silent", True), (60.1, "gone", False)],
)
def test_a_run_without_a_heartbeat(tmp_path, silent, state, forecasts):
    write(tmp_path, alive(25.5))
    seen = view(tmp_path, silent)
    assert (seen.state, seen.silent_seconds, seen.rest is not None) == (state, silent, forecasts)


SEEN = (
    {"kind": "evaluation", "at_seconds": 10.0, "step": 0, "seconds": 4.0, "metrics": {"loss": 4.0}},
    {"kind": "save", "at_seconds": 12.0, "step": 1, "seconds": 1.0},
)
WHOLE = 14 * 2.5 + 3 * 4.0 + 2 * 1.0


@pytest.mark.parametrize(
    ("phase", "seconds", "left"),
    [
        ("forward", {"data_wait": 0.5, "forward": 1.0}, WHOLE - 1.5),
        ("forward_backward", {"forward_backward": 1.0}, WHOLE - 1.0),
        ("forward", {"forward": 60.0}, WHOLE - 2.5),  # a stall: the step is due
        ("evaluation", {"forward": 2.0, "evaluation": 3.0}, WHOLE - 5.0),
        ("evaluation", {"forward": 2.0, "evaluation": 9.0}, WHOLE - 6.0),
        ("checkpointing", {"forward": 2.0, "evaluation": 4.0, "checkpointing": 0.5}, WHOLE - 6.5),
        ("trainer_setup", {"trainer_setup": 2.0}, WHOLE),  # no part of the forecast
    ],
)
def test_what_has_passed_of_a_step_is_not_to_come(tmp_path, phase, seconds, left):
    write(tmp_path, *SEEN, alive(25.5, phase, **seconds))
    assert view(tmp_path).rest == Forecast(pytest.approx(left), False)


def test_the_evaluation_after_the_training_counts_down_and_is_over(tmp_path):
    run = {**RUN, "evaluate_every": None, "save_every": None, "evaluate_after": True}
    trained = {"kind": "train_end", "segment": 0, "ended": "done", "error": None, "at_seconds": 55.0}

    def left(*more):
        write(tmp_path, *SEEN, trained, *more, steps=20, facts=run)
        return view(tmp_path).rest.seconds

    assert left(alive(56.0, "checkpointing", checkpointing=1.0)) == 4.0
    assert left(alive(57.5, "evaluation", evaluation=1.5)) == 2.5
    assert left(alive(66.0, "evaluation", evaluation=10.0)) == 0.0
    done = {**SEEN[0], "at_seconds": 66.5, "step": 20}
    assert left(done, alive(67.0, "merging", merging=0.5)) == 0.0
