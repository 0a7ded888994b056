"""What a run says of its budget."""

import math
from dataclasses import dataclass

from hf_efficient.estimate.forecast import LimitName, Limits
from hf_efficient.text import counted, seconds, usd


def amount(limit: LimitName, value: float) -> str:
    """A value in the unit of a limit: ``$1.20``, ``2 h 07 min``, ``0.35 kWh``."""
    if limit == "usd":
        return usd(value)
    return seconds(3600 * value) if limit == "hours" else f"{value:.3g} kWh"


@dataclass(frozen=True)
class BudgetWords:
    """The sentences of one run, which differ by where its budget is written. ``key`` stands before a limit's name;
    ``resume`` says how a saved run resumes with ``{limit}`` raised to ``{value}``."""

    limits: Limits
    key: str = "budget: "
    steps_key: str = "max_steps"
    resume: str = "trainer.train(resume_from_checkpoint=True) with {limit}={value} continues"
    meter: str = "set a limit of usd or hours instead"

    def will_pass(
        self, limit: LimitName, total: float, steps: int, fits: int, *, at_least: bool, train_seconds: float
    ) -> str:
        """The forecast passes a limit: the whole run takes ``total``, and ``fits`` of its ``steps`` would not pass."""
        about = "at least" if at_least else "about"
        return (
            f"{self._head(limit)}: the run will take {about} {amount(limit, total)}, the rest of its "
            f"{counted(steps, 'step')} {about} {seconds(train_seconds)}. {self.steps_key}={fits} would fit; as it is, "
            f"the run is saved and stopped around step {fits:,}."
        )

    def stopped(self, limit: LimitName, spent: float, step: int, steps: int, enough: float, *, exact: bool) -> str:
        """The run ends here, and would take ``enough``; ``exact``: the checkpoint holds all that a resumption needs."""
        value = f"{_rounded_up(max(enough, self.limits.given()[limit])):g}"
        remedy = self.resume.format(limit=limit, value=value)
        if not exact:
            remedy = "with save_only_model the checkpoint holds the weights alone, and the run cannot resume from it"
        return (
            f"{self._head(limit)}: {amount(limit, spent)} are spent after step {step:,} of {steps:,}, and what comes "
            f"next does not fit. The run is saved in checkpoint-{step} and ends here; {remedy}."
        )

    def reached(self, limit: LimitName, spent: float, step: int, steps: int) -> str:
        of = amount(limit, self.limits.given()[limit])
        return f"{limit}: {amount(limit, spent)} of {of} spent after step {step} of {steps}"

    def spent_before(self, limit: LimitName, spent: float) -> str:
        return (
            f"{self._head(limit)}: the run has spent {amount(limit, spent)} before its next step, and nothing is left. "
            f"Write a larger budget, or none."
        )

    def no_price(self, why: str) -> str:
        return f"{self._head('usd')}: {why}."

    def no_meter(self) -> str:
        return f"{self._head('kwh')}: nothing here measures energy; {self.meter}."

    def _head(self, limit: LimitName) -> str:
        value = self.limits.given()[limit]
        return f"{self.key}{limit}={value:g}" + (f" ({seconds(3600 * value)})" if limit == "hours" else "")


def _rounded_up(value: float) -> float:
    """A tenth more, to two digits, upwards: 3.1 -> 3.5, 0.021 -> 0.024."""
    more = 1.1 * value
    scale = 10.0 ** (1 - math.floor(math.log10(more)))
    return math.ceil(round(more * scale, 6)) / scale
