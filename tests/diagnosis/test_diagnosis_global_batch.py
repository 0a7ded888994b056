"""Remedies of a run whose recipe names its global batch."""

from __future__ import annotations

import pytest
from cases import case_in, settings

from hf_efficient.diagnosis.remedies import with_global_batch
from hf_efficient.records.findings import Finding, Remedy

NAMED = "recipe: {name: t, distributed: {global_batch_size: 64}}\nprovenance: {}\n"
ROWS, ACCUMULATION = "train.per_device_train_batch_size", "train.gradient_accumulation_steps"


def overrides(folder, change, recipe=NAMED):
    """Of a run of 2 rows, accumulated 4 times (on 8 processes), after ``change``."""
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    case = case_in(folder, facts={"settings": settings(arguments=arguments)}, recipe=recipe)
    finding = Finding("r", "t", "warning", "likely", [], remedies=[Remedy("x", change)])
    return with_global_batch(finding, case).remedies[0].overrides


@pytest.mark.parametrize(
    ("change", "batch"),
    [
        ({ACCUMULATION: 8}, 128),
        ({ROWS: 8, ACCUMULATION: 2}, 128),
        ({ROWS: 8, ACCUMULATION: 1}, None),
        ({ROWS: 1}, 32),
        ({"train.packing": True}, None),
    ],
)
def test_another_batch_is_said(tmp_path, change, batch):
    expected = change if batch is None else {**change, "distributed.global_batch_size": batch}
    assert overrides(tmp_path, change) == expected


def test_a_recipe_that_names_none(tmp_path):
    unnamed = NAMED.replace("{global_batch_size: 64}", "{global_batch_size: null}")
    assert overrides(tmp_path, {ACCUMULATION: 8}, unnamed) == {ACCUMULATION: 8}
