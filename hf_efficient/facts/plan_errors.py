"""How far published trainings were from their plans: the error of a planned figure, by what was planned."""

import functools
from dataclasses import dataclass
from typing import Literal

from hf_efficient.facts.tables import rows


@dataclass(frozen=True)
class PlanError:
    """Of ``trainings`` of a kind: measured over planned, less 1, of the one in twenty that is lowest and highest. Fewer
    than twenty have an interval that also holds that of all kinds. ``source`` says whose trainings."""

    low: float
    high: float
    trainings: int
    source: str

    def around(self, planned: float) -> tuple[float, float]:
        """Hand-worked: -0.25 and 0.5 around 8: 6 and 12."""
        return planned * (1 + self.low), planned * (1 + self.high)


@functools.cache
def plan_error(figure: Literal["memory", "speed"], *, adapted: bool, several: bool) -> PlanError:
    """Of ``memory`` needed on a GPU or ``speed`` in tokens per second, of full or ``adapted`` training, on one GPU or
    ``several``. CPUs are not meant: a plan of one is exact."""
    method, gpus = "adapter" if adapted else "full", "several" if several else "one"
    row = next(
        row for row in rows("plan_errors") if (row["figure"], row["method"], row["gpus"]) == (figure, method, gpus)
    )
    return PlanError(row["low"], row["high"], row["trainings"], row["source"])
