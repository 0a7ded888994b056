"""Fewer rows, the same global batch."""

from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.memory import smaller_micro_batch
from tests.diagnosis.cases import case_in, settings


@pytest.mark.parametrize(
    ("rows", "accumulated", "fewer"),
    [(8, 1, (4, 2)), (5, 1, (1, 5)), (5, 2, (2, 5)), (6, 2, (3, 4)), (7, 3, (3, 7)), (1, 4, None)],
)
def test_the_rows_of_a_step_stay(tmp_path, rows, accumulated, fewer):
    arguments = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": accumulated}
    found = smaller_micro_batch(case_in(tmp_path, facts={"settings": settings(arguments=arguments)}))
    assert (None if found is None else tuple(found.values())) == fewer
