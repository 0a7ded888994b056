"""The data of a plan: how long the examples are, and what each kind of batch makes of them."""

from __future__ import annotations

from hf_efficient.records.plan import Plan
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.plan_data import data_sentence
from hf_efficient.units import share

__all__ = ["planned_data_section"]


def planned_data_section(plan: Plan) -> Section | None:
    """None where the data were not read."""
    if plan.data is None:
        return None
    kinds = [
        {
            "name": one.name,
            "chosen": one.chosen,
            "positions": f"{one.epoch_positions:,}",
            "padding": share(one.padding_share),
            "steps": f"{one.epoch_steps:,}",
        }
        for one in plan.data.batchings
    ]
    return Section("planned_data", "Data", context={"sentence": data_sentence(plan.data), "kinds": kinds})
