"""Coefficients against whole evaluations of the same formulas; kernels and heads by hand."""

from __future__ import annotations

import random

import pytest
from tiny_models import tiny_config

from hf_efficient.estimate.flops import (
    Amounts,
    Coefficients,
    MicroBatch,
    WorkFormula,
    Workload,
    coefficients,
    training_flops,
)
from hf_efficient.estimate.model_shape import ModelShape, Trained

FAMILIES = {
    "llama": {},
    "mistral": {"sliding_window": 7, "head_dim": 24},
    "gemma3_text": {"head_dim": 24, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"] * 1},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "mlp_only_layers": [2]},
}


def shape_of(family: str) -> ModelShape:
    changes = dict(FAMILIES[family])
    if "layer_types" in changes:
        changes["num_hidden_layers"] = len(changes["layer_types"])
    return ModelShape.from_config(tiny_config(family, **changes))


@pytest.mark.parametrize("targets", [None, ["q_proj", "v_proj"], ["o_proj", "lm_head"]])
@pytest.mark.parametrize("way", ["none", "non_reentrant", "reentrant"])
@pytest.mark.parametrize("family", FAMILIES)
def test_coefficients_give_what_the_formulas_give(family, way, targets):
    """For batches drawn at random: FLOPs of model and hardware, to the last one."""
    shape = shape_of(family)
    trained = Trained.full() if targets is None else Trained.adapter(shape, targets, 8, input_gradient=way != "none")
    windows = set(shape.windows)
    model = coefficients(shape, trained)
    hardware = coefficients(shape, trained, checkpointing=way, head_recomputed=True)
    draw = random.Random(family + way)
    for _ in range(5):
        documents = [draw.randint(1, 20) for _ in range(draw.randint(1, 6))]
        rows = [max(documents)] * len(documents)
        head = draw.choice([None, 3])
        work = Workload.of(
            documents,
            rows,
            masked_square=draw.random() < 0.5,
            head_tokens=head,
            head_recomputed=True,
        )
        wanted = training_flops(shape, trained, work, checkpointing=way)
        found = model.flops(work.needed(windows)), hardware.flops(work.computed(windows))
        assert found == (wanted[0].total, wanted[1].total)


def test_the_forward_alone():
    shape = shape_of("llama")
    work = Workload.of([5, 9])
    amounts = work.needed([None])
    for trained in (Trained(), Trained.adapter(shape, rank=8)):
        forward = training_flops(shape, trained, work)[0].forward
        assert coefficients(shape, trained, forward_alone=True).flops(amounts) == forward
    assert coefficients(shape, Trained()) == coefficients(shape, Trained(), forward_alone=True)


def test_checkpointing_of_some_layers():
    """Three layers alike, trained in full: each that is checkpointed adds as much."""
    shape = shape_of("llama")

    def of(layers):
        found = coefficients(shape, Trained.full(), checkpointing="reentrant", checkpointed_layers=layers)
        return found.per_token, found.per_pair[None]

    none, one, every = of(()), of({1}), of(None)
    assert every == tuple(base + 3 * (more - base) for base, more in zip(none, one, strict=True))
    assert one[1] - none[1] == 2 * 2 * 64  # a pair's score and its weighing, forward, over 64 features


def test_coefficients_add_up():
    left, right = Coefficients(3, {None: 5}, 7), Coefficients(10, {None: 1, 4: 2}, 20)
    both = left + right
    assert both == Coefficients(13, {None: 6, 4: 2}, 27)
    amounts = Amounts(2, {None: 10, 4: 100}, 1)
    assert left.flops(amounts) == 3 * 2 + 5 * 10 + 7
    assert both.flops(amounts) == left.flops(amounts) + right.flops(amounts)


ONE = Coefficients(0, {None: 1, 4: 1000}, 0)
"""Pairs in layers without a window, and a thousand for each with a window of four."""


@pytest.mark.parametrize(
    ("kernel", "batch", "pairs"),
    [
        # One row of 6 without padding: 21 causal pairs, 1 + 2 + 3 + 4 + 4 + 4 in the window, 36 in the square.
        ("square", MicroBatch(1, 6, [6]), 36_036),
        ("sdpa", MicroBatch(1, 6, [6]), 36_021),  # the window needs a mask, for the row is as long
        ("documents", MicroBatch(1, 6, [6]), 18_021),
        ("sdpa", MicroBatch(2, 4, [4, 4]), 32_020),  # as long as the window: masked
        ("sdpa", MicroBatch(2, 3, [3, 3]), 12_012),  # shorter than it: causal everywhere
        ("sdpa", MicroBatch(2, 3, [3, 2]), 18_018),  # padding: 2 * 9
        ("documents", MicroBatch(2, 3, [3, 2]), 9_009),
        ("sdpa", MicroBatch(1, 3, [2, 1]), 9_009),  # a pack
        ("documents", MicroBatch(1, 3, [2, 1]), 4_004),
    ],
)
def test_which_pairs_a_kernel_computes(kernel, batch, pairs):
    needed = WorkFormula(ONE, ONE, "documents").flops(batch)[0]
    assert WorkFormula(ONE, ONE, kernel).flops(batch) == (needed, pairs)


def test_sdpa_that_is_always_given_a_mask():
    formula = WorkFormula(ONE, ONE, "sdpa", always_masked=True)
    assert formula.flops(MicroBatch(1, 3, [3])) == (6_006, 9_009)


HEAD = Coefficients(100, {None: 0}, 1)


@pytest.mark.parametrize(
    ("head", "model", "hardware"),
    [("everywhere", 505, 606), ("shifted", 503, 604), ("scored", 503, 603)],
)
def test_which_positions_the_head_projects(head, model, hardware):
    """Two rows of three with five tokens, three of which are predicted with a loss."""
    assert WorkFormula(HEAD, HEAD, "square", head).flops(MicroBatch(2, 3, [3, 2], 3)) == (model, hardware)


def test_what_is_not_known_stays_unknown():
    batch = MicroBatch(2, 3, [3, 2])
    assert WorkFormula(HEAD, HEAD, "square", "scored").flops(batch) is None
    assert WorkFormula(HEAD, None, "square").flops(batch) == (505, None)
