"""Which updates bfloat16 rounds away: by hand, and by rounding."""

import pytest
import torch

from hf_efficient.estimate.rounding import rounds_to_nearest, smallest_still_weight, still_share, still_share_of


def test_by_hand():
    assert smallest_still_weight(1e-5) == 2**-8  # 1e-5 < 2^-16
    assert smallest_still_weight(2e-5) == 2**-7  # 2e-5 < 2^-15
    assert smallest_still_weight(0.0) == 0.0
    assert still_share(1e308) == 0.0
    assert still_share(1e-5) == pytest.approx(0.845, abs=1e-3)  # erfc(0.0039 / 0.0283)
    assert still_share_of(1e-5, {-9: 1, -8: 2, -3: 1}) == 0.75
    assert still_share_of(1e-5, {}) == 0.0


@pytest.mark.parametrize("rate", [1e-5, 2e-5, 3.1e-5, 2e-4])
def test_weights_in_bfloat16_stay_from_there_on(rate):
    """Those below are another matter: the half of a binade below, where values lie half as close, always moves."""
    torch.manual_seed(0)
    weights = (torch.rand(10_000) * 0.1).bfloat16()
    limit = smallest_still_weight(rate)
    moved = (weights.float() + rate).bfloat16() != weights
    assert not moved[weights > limit].any()
    assert moved[weights < limit].all()


@pytest.mark.parametrize(
    ("optim", "said", "expected"),
    [
        ("adamw_torch_fused", None, True),
        ("paged_adamw_8bit", None, True),
        ("lion_8bit", None, True),
        ("sgd", None, False),
        ("stable_adamw", None, False),
        ("adamw_torch_8bit", None, True),
        ("adamw_torch_8bit", "block_size=256, bf16_stochastic_round=True", False),
        ("adamw_torch_8bit", "bf16_stochastic_round=false", True),
        ("adamw_anyprecision", "use_kahan_summation=True", False),
    ],
)
def test_optimizers_that_lose_the_remainder(optim, said, expected):
    assert rounds_to_nearest(optim, said) == expected
