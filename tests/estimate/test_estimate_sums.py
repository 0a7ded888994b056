from __future__ import annotations

import pytest

from hf_efficient.estimate.statistics import sum_if_known


@pytest.mark.parametrize(("parts", "total"), [([1, 2], 3), ([0], 0), ([1, None], None), ([None], None), ([], None)])
def test_a_part_that_is_not_known_makes_the_sum_unknown(parts, total):
    assert sum_if_known(parts) == total
