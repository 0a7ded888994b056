"""What a chunked loss cannot be combined with."""

from __future__ import annotations

import pytest

HEAD = "name: t\nmodel: {id: m}\ndata: {train: [{path: a}], eval_fraction: 0.1}\noutput_dir: o\n"
CHUNKED = "train.loss_type=chunked_nll"


@pytest.mark.parametrize(
    ("flags", "key", "said"),
    [
        (
            ["train.label_smoothing_factor=0.1"],
            "train.label_smoothing_factor",
            "is set, but `train.loss_type: chunked_nll` never has the whole logits that it needs. "
            "Write 0, or write `train.loss_type: nll`.",
        ),
        (
            ["train.use_liger_kernel=true"],
            "train.use_liger_kernel",
            "is true, but Liger's fused loss takes the place of `train.loss_type: chunked_nll`. "
            "Write `train.liger_kernel_config: {fused_linear_cross_entropy: false}`, or write `train.loss_type: nll`.",
        ),
        (
            ["adapter.target_modules=[q_proj, lm_head]"],
            "adapter.target_modules",
            "names lm_head, whose adapter `train.loss_type: chunked_nll` would leave out. "
            "Write it in `adapter.modules_to_save`, or write `train.loss_type: nll`.",
        ),
    ],
)
def test_what_the_fused_head_cannot_do_is_refused(problems, flags, key, said):
    found = problems(HEAD, CHUNKED, *flags)
    assert len(found) == 1
    assert found[0].endswith(f"{key}: {said}")
    assert problems(HEAD, *flags) == []


@pytest.mark.parametrize(
    "flags",
    [
        ["train.label_smoothing_factor=0"],
        ["train.use_liger_kernel=true", "train.liger_kernel_config={fused_linear_cross_entropy: false}"],
        ["adapter.target_modules=[q_proj, v_proj]", "adapter.modules_to_save=[lm_head]"],
        ["evaluate.metrics=[perplexity, token_accuracy]"],
    ],
)
def test_what_it_can_do_is_accepted(problems, flags):
    assert problems(HEAD, CHUNKED, *flags) == []
