"""The optimizer of an engine that steps inside the backward."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hand_clock import SECOND, Hand

from hf_efficient.recording.deepspeed import tell_engine_steps
from hf_efficient.recording.phases import StepPhases


def broken():
    raise AssertionError("nothing failed")


def test_the_step_inside_a_backward_is_the_optimizers_time():
    hand = Hand()
    phases = StepPhases(hand, None, broken)
    engine = SimpleNamespace(step=lambda: hand.wait(4))
    accelerator = SimpleNamespace(deepspeed_engine_wrapped=SimpleNamespace(engine=engine))
    tell_engine_steps(accelerator, phases)
    tell_engine_steps(accelerator, phases)  # of a second train(): once is enough
    with phases.context("backward"):
        hand.wait(1)
        phases.begin("communication", instead_of="backward")
        hand.wait(2)
        engine.step()
        hand.wait(8)
    span, *_ = phases.cut()
    assert span.phase_ns == {"backward": 9 * SECOND, "communication": 2 * SECOND, "optimizer": 4 * SECOND}


def test_an_error_of_the_step_goes_on_and_ends_the_phase():
    hand = Hand()
    phases = StepPhases(hand, None, broken)
    engine = SimpleNamespace(step=lambda: hand.wait(1 / 0))
    tell_engine_steps(SimpleNamespace(deepspeed_engine_wrapped=SimpleNamespace(engine=engine)), phases)
    with pytest.raises(ZeroDivisionError):
        engine.step()
    hand.wait(1)
    span, *_ = phases.cut()
    assert span.phase_ns == {"optimizer": 0}


def test_without_deepspeed_nothing_happens():
    tell_engine_steps(SimpleNamespace(), None)
    tell_engine_steps(SimpleNamespace(deepspeed_engine_wrapped=None), None)
