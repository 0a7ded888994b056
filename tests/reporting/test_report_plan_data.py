"""The data of a plan on a terminal, from records made by hand."""

from __future__ import annotations

import pytest
from rich.console import Console

from hf_efficient.records.plan import PlannedBatching, PlannedData
from hf_efficient.reporting.plan import data_renderables

KINDS = [
    PlannedBatching("as they come", {}, True, 744_204, 0.281, 1_326),
    PlannedBatching("packed", {}, False, 534_723, 0.0, 557),
]


def printed(data):
    console = Console(width=140, highlight=False, color_system=None)
    with console.capture() as captured:
        for part in data_renderables(data):
            console.print(part)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_sentence_and_a_table():
    assert printed(PlannedData(5_301, 534_723, 256, 0.25, 64, 2, KINDS)) == [
        "",
        "Data: 5,301 examples of 534,723 tokens, the longest 256; 25% of a step is padding. "
        "64 rows are evaluated 2 times.",
        "an epoch's batches           positions  padding  steps",
        "  as they come (the recipe)    744,204    28.1%  1,326",
        "  packed                       534,723       0%    557",
    ]


@pytest.mark.parametrize(("times", "said"), [(0, "padding."), (1, "padding. 7 rows are evaluated once.")])
def test_evaluations(times, said):
    (_, line) = printed(PlannedData(1, 1, 1, 0.0, 7, times))
    assert line.endswith(said)
