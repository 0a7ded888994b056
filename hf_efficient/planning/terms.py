"""What a run's money depends on beside the accelerator."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hf_efficient.estimate.parallelism import ZERO
from hf_efficient.facts.energy import grid_intensity
from hf_efficient.facts.prices import Market, SpotTerms, spot_terms
from hf_efficient.planning.rehearsed import Rank
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.plan import PlannedMemory


@dataclass(frozen=True)
class Terms:
    """What the recipe says of money, and what its plan knows.

    Attributes:
        price_usd_per_hour: that the user pays in ``market``; None: the cheapest list price.
        provider: whose list prices alone count; None: anybody's.
        market: that decides the headline.
        grid_grams_per_kwh: CO2e of the electricity.
        tokens: of an optimizer step.
        checkpoint_bytes: of one save.
        spot: how machines that may be taken away behave.
        devices: that train together.
        saves: that the recipe asks for, in the whole run; None where not known.
    """

    price_usd_per_hour: float | None
    provider: str | None
    market: Market
    grid_grams_per_kwh: float | None
    tokens: int
    checkpoint_bytes: int
    spot: SpotTerms
    devices: int = 1
    saves: int | None = 0

    @property
    def save_seconds(self) -> float:
        """One save, in which training stands still."""
        return self.checkpoint_bytes / (self.spot.write_mb_per_second * 1e6)


def terms_of(
    recipe: Recipe, memory: PlannedMemory, tokens: int, rank: Rank | None = None, saves: int | None = 0
) -> Terms:
    """As the recipe says.

    Args:
        recipe: that was rehearsed.
        memory: of its rehearsal.
        tokens: of an optimizer step.
        rank: whose memory that is; None of a process that trains alone.
        saves: in the whole run; None where not known.
    """
    saved = checkpoint_bytes(memory, recipe.adapter.method) if rank is None else _saved_by_all(rank, memory)
    section = recipe.efficiency
    said = section.spot
    return Terms(
        price_usd_per_hour=section.price_usd_per_hour,
        provider=section.price_from,
        market=section.market,
        grid_grams_per_kwh=grid_intensity(section.grid).grams_per_kwh,
        tokens=tokens,
        checkpoint_bytes=saved,
        spot=spot_terms(said.hours_between_preemptions, said.restart_seconds, said.write_mb_per_second),
        devices=1 if rank is None else rank.sharding.ranks,
        saves=saves,
    )


def checkpoint_bytes(memory: PlannedMemory, method: str) -> int:
    """What a save writes: the optimizer's state and what is trained; the whole model of a full fine-tune.

    Some kilobytes are left out: scheduler, random states, the Trainer's own state.

    Args:
        memory: of the rehearsal.
        method: ``adapter.method``.
    """
    held = memory.category_peak_bytes
    weights = memory.model_bytes if method == "full" else held.get("adapter", 0)
    return weights + held.get("optimizer_state", 0) + memory.paged_bytes


def _saved_by_all(rank: Rank, memory: PlannedMemory) -> int:
    """What is trained and the optimizer's state, of which each rank may hold a part; paged state is none of ``states``.

    Every rank of DDP holds, and pages, the whole state.
    """
    states, sharding = rank.states, rank.sharding
    shares = sharding.ranks if sharding.strategy in (*ZERO, "fsdp2") else 1
    held = math.ceil(states.trained * (states.trained_bytes + states.optimizer_bytes + states.master_bytes))
    return held + memory.paged_bytes * shares
