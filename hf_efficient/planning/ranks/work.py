"""The operators of a rank's step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hf_efficient.estimate.parallelism import ZERO
from hf_efficient.planning.rehearsed import Rank
from hf_efficient.records.device import OperatorWork


def rank_operators(operators: Sequence[OperatorWork], rank: Rank | None) -> Sequence[OperatorWork]:
    """Those of the whole model, the optimizer's on the rank's share of the weights, or on the host.

    Args:
        operators: of a rehearsal.
        rank: None of a process that trains alone.
    """
    if rank is None or rank.sharding.strategy not in (*ZERO, "fsdp2"):
        return operators
    sharding = rank.sharding
    if sharding.offload_optimizer or (sharding.strategy == "fsdp2" and sharding.offload_parameters):
        return [one for one in operators if one.family != "optimizer"]
    return [_shared(one, sharding.ranks) if one.family == "optimizer" else one for one in operators]


def _shared(one: OperatorWork, ranks: int) -> OperatorWork:
    return replace(one, read_bytes=one.read_bytes // ranks, written_bytes=one.written_bytes // ranks)
