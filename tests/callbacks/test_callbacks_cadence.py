"""``train.save_steps: auto`` on a clock that the test moves."""

from types import SimpleNamespace

import pytest
from transformers import TrainerControl, TrainerState

from hf_efficient.callbacks import stop as cadence
from hf_efficient.callbacks.stop import FIRST_SAVE_SECONDS, SaveCadence
from hf_efficient.estimate.cost import daly_interval
from hf_efficient.estimate.forecast import Earlier

HOUR = 3600.0


class Agreement:
    """Of ranks that are asked in their order; what rank 0 decides is known to the others."""

    said: tuple[int, int] = (0, 0)

    def __init__(self, rank: int, world_size: int) -> None:
        self.decides, self._next = rank == 0, 0

    def due(self, step: int) -> bool:
        return step >= self._next

    def settle(self, decision: int, next_step: int) -> int:
        if self.decides:
            Agreement.said = (decision, next_step)
        decision, self._next = Agreement.said
        return decision


class Run:
    """A training of one or two ranks, whose steps and saves take given seconds; rank 1's clock runs twice as fast."""

    def __init__(self, hours: float, ranks: int = 1, *, stated: bool = True) -> None:
        self.seconds, self.saves, self.step = 0.0, list[int](), 0
        self.callbacks = [
            SaveCadence(hours, stated=stated, now=lambda rank=rank: self.seconds * (1 + rank)) for rank in range(ranks)
        ]
        self.events("on_train_begin")

    def events(self, name: str) -> list[bool]:
        state, found = TrainerState(global_step=self.step), []
        for rank, callback in enumerate(self.callbacks):
            control = TrainerControl()
            getattr(callback, name)(SimpleNamespace(process_index=rank, world_size=len(self.callbacks)), state, control)
            found.append(control.should_save)
        return found

    def steps(self, count: int, each: float, save: float, evaluation: float = 0.0) -> None:
        for _ in range(count):
            self.seconds, self.step = self.seconds + each, self.step + 1
            wanted = self.events("on_step_end")
            assert len(set(wanted)) == 1  # all ranks alike
            if wanted[0]:
                self.seconds += evaluation
                self.events("on_evaluate")
                self.seconds += save
                self.events("on_save")
                self.saves.append(self.step)


@pytest.fixture
def timeline(monkeypatch):
    held = SimpleNamespace(earlier=Earlier())
    monkeypatch.setattr(cadence, "process_timeline", lambda: held)
    monkeypatch.setattr(cadence, "Agreement", Agreement)
    return held


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_first_save_is_measured_and_gives_the_cadence(timeline, ranks):
    """The first after a minute; then, with saves of 5 s and a failure in 10 h, every 600 (1 + 0.0083 / 3) - 5 s,
    596.7: 298 steps of 2 s. What an evaluation before a save takes is not of the save."""
    run = Run(10.0, ranks)
    run.steps(1000, each=2.0, save=5.0, evaluation=30.0)
    assert daly_interval(5.0, 10 * HOUR) == pytest.approx(596.7, abs=0.1)
    assert run.saves == [FIRST_SAVE_SECONDS / 2, 30 + 298, 30 + 2 * 298, 30 + 3 * 298]


def test_a_resumed_run_knows_what_a_save_costs(timeline):
    timeline.earlier = Earlier(saves=4, save_seconds=20.0)
    run = Run(10.0)
    run.steps(400, each=2.0, save=5.0)
    assert run.saves == [298]


def test_saves_that_become_slower_become_rarer(timeline):
    run = Run(10.0)
    run.steps(330, each=2.0, save=5.0)
    run.steps(1000, each=2.0, save=50.0)
    gaps = [later - before for before, later in zip(run.saves, run.saves[1:], strict=False)]
    assert gaps[0] == 298
    assert gaps == sorted(gaps)
    assert gaps[-1] > 500


def test_the_runs_own_failures_correct_an_assumption_and_nothing_else(timeline):
    """24 h assumed, and three failures in 8 h: one in 8 h, not in 24."""
    timeline.earlier = Earlier(wall_seconds=8 * HOUR, saves=1, save_seconds=5.0, failures=3)
    assumed, stated = Run(24.0, stated=False), Run(24.0)
    assert assumed.callbacks[0].interval_seconds() == pytest.approx(daly_interval(5.0, 8 * HOUR))
    assert stated.callbacks[0].interval_seconds() == pytest.approx(daly_interval(5.0, 24 * HOUR))


def test_steps_longer_than_the_interval_are_all_saved(timeline):
    run = Run(1.0)
    run.steps(3, each=900.0, save=1.0)
    assert run.saves == [1, 2, 3]
