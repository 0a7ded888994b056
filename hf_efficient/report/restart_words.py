"""What it took to go on, in words."""

from __future__ import annotations

from collections.abc import Sequence

from hf_efficient.records import RestartAccount
from hf_efficient.units import seconds, usd

__all__ = ["restart_words"]


def restart_words(restarts: Sequence[RestartAccount]) -> list[str]:
    """A line each, in their order."""
    return [_words(one) for one in restarts]


def _words(one: RestartAccount) -> str:
    cost = f", {usd(one.cost_usd)}" if one.cost_usd is not None else ""
    if one.resumed_after_step is None:
        return f"start {one.process + 1} never came to train: {seconds(one.start_seconds)}{cost}"
    where = f"on from step {one.resumed_after_step}" if one.resumed_after_step else "from the first step again"
    lost = f", {one.steps_again} step{'' if one.steps_again == 1 else 's'} done again" if one.steps_again else ""
    took = f"{seconds(one.start_seconds)} until it trained"
    took += f" and {seconds(one.seconds_again)} of lost steps" if one.steps_again else ""
    return f"start {one.process + 1} {where}{lost}: {took}{cost}"
