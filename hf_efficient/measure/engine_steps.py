"""The optimizer's step of a DeepSpeed engine, which accelerate runs inside its backward, as a phase of its own."""

from __future__ import annotations

import functools
from typing import Any

from hf_efficient.measure.rank_marks import PhaseMarks

__all__ = ["tell_engine_steps"]

_TOLD = "_told_by_hf_efficient"


def tell_engine_steps(accelerator: Any, phases: PhaseMarks) -> None:
    """From here on ``engine.step`` is the phase ``optimizer``; does nothing without DeepSpeed, and once per engine.

    What the engine exchanges in it (ZeRO gathers the updated weights) is communication as far as its calls are seen.

    Args:
        accelerator: whose backward runs it.
        phases: is told.
    """
    engine = getattr(getattr(accelerator, "deepspeed_engine_wrapped", None), "engine", None)
    if engine is None or getattr(engine.step, _TOLD, False):
        return
    step = engine.step

    @functools.wraps(step)
    def told(*args: Any, **kwargs: Any) -> Any:
        phases.end("communication")  # of the backward, whose gradients are there
        phases.begin("optimizer", instead_of="backward")
        try:
            return step(*args, **kwargs)
        finally:
            phases.end("optimizer")

    setattr(told, _TOLD, True)
    engine.step = told
