"""What is taken for granted of machines that may be taken away at any time (``facts/spot.yaml``)."""

from __future__ import annotations

from dataclasses import dataclass

from hf_efficient.hardware.tables import rows

__all__ = ["SpotTerms", "spot_terms"]


@dataclass(frozen=True)
class SpotTerms:
    """How spot machines behave.

    Attributes:
        hours_between_preemptions: on average; of a run on several machines, of the first that goes.
        restart_seconds: from a machine's start to the next step of training; paid.
        write_mb_per_second: 10^6 bytes of a checkpoint per second.
        assumed: those of these that the user did not say, each with where it is from.
        write_of: the disk whose speed that of the checkpoints is; None where the user said it.
    """

    hours_between_preemptions: float
    restart_seconds: float
    write_mb_per_second: float
    assumed: tuple[str, ...] = ()
    write_of: str | None = None


def spot_terms(
    hours_between_preemptions: float | None = None,
    restart_seconds: float | None = None,
    write_mb_per_second: float | None = None,
) -> SpotTerms:
    """What the user says, and for what is None the table's figure."""
    facts = {row["figure"]: row for row in rows("spot")}
    assumed: list[str] = []

    def chosen(said: float | None, figure: str, told: str) -> float:
        if said is not None:
            return said
        row = facts[figure]
        assumed.append(f"{told.format(row['value'])} ({row['of']})")
        return float(row["value"])

    return SpotTerms(
        chosen(hours_between_preemptions, "preemption", "a machine is taken away every {:g} h on average"),
        chosen(restart_seconds, "restart", "{:g} s until the next one trains"),
        chosen(write_mb_per_second, "write", "checkpoints are written at {:g} MB/s"),
        tuple(assumed),
        facts["write"]["of"] if write_mb_per_second is None else None,
    )
