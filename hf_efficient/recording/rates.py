"""Price and grid of a run, stated in its records for the account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_efficient.facts.prices import Rates, grid_facts, price_facts
from hf_efficient.recording.timeline import Timeline

if TYPE_CHECKING:
    import torch


def rate_facts(rates: Rates, device: torch.device, gpus: int) -> dict[str, dict[str, Any]]:
    """The facts ``price`` and ``grid`` of a run on this device.

    Args:
        rates: what the user says.
        device: of this process.
        gpus: those of all processes.

    Raises:
        SetupError: the provider that the user names has no known price of this GPU.
    """
    name = None
    if device.type == "cuda":
        import torch

        name = torch.cuda.get_device_name(device)
    return {"price": price_facts(rates, name, gpus), "grid": grid_facts(rates)}


def state_rates(timeline: Timeline, facts: dict[str, dict[str, Any]]) -> None:
    """Write them to the records of the run that holds the process."""
    for topic, stated in facts.items():
        timeline.state(topic, stated)
