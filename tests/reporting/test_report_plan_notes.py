"""How often to save on spot machines, in words."""

from __future__ import annotations

import dataclasses

import pytest
from sample_plan import FITS, TOO_SMALL

from hf_efficient.reporting.plan import spot_saves

SAVE = "spot: a save writes 256.0 MiB in 2.05 s; "


def fitting(name, every):
    return dataclasses.replace(FITS, name=name, spot=dataclasses.replace(FITS.spot, save_every_steps=every))


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (None, "train.save_steps that costs least: 1,234 on L4, 40 on A10"),
        (2000, "train.save_steps that costs least: 1,234 on L4, 40 on A10"),
        (1234, "train.save_steps that costs least: 40 on A10; no save before the end of the run costs least on L4"),
        (40, "no save before the end of the run costs least on L4, A10"),
    ],
)
def test_after_how_many_steps_or_only_at_the_end(steps, told):
    assert spot_saves([fitting("L4", 1234), fitting("A10", 40)], steps) == SAVE + told


def test_nothing_where_it_is_not_known():
    assert spot_saves([fitting("L4", None), TOO_SMALL], 100) == ""
