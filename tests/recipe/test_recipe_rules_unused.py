from __future__ import annotations

import pytest

HEAD = "name: t\nmodel: {id: m}\ndata: {train: [{path: a}], eval_fraction: 0.1}\noutput_dir: o\n"
DPO = "method=dpo"


@pytest.mark.parametrize(
    ("flags", "key", "said"),
    [
        (
            ["train.prediction_loss_only=true", "evaluate.metrics=[perplexity]"],
            "train.prediction_loss_only",
            "is true, but `evaluate.metrics` are computed from predictions. Remove it, or the metrics.",
        ),
        (
            ["train.remove_unused_columns=true"],
            "train.remove_unused_columns",
            "has no effect: prepared rows hold what is needed. Remove it.",
        ),
        (["train.do_eval=true"], "train.do_eval", "has no effect: it is read by example scripts only. Remove it."),
        (
            [
                "train.metric_for_best_model=eval_perplexity",
                "train.greater_is_better=true",
                "evaluate.metrics=[perplexity]",
            ],
            "train.greater_is_better",
            "is true, but the best perplexity is the lowest. Remove it.",
        ),
        (
            ["adapter.method=full", "model.dtype=float16"],
            "model.dtype",
            "is float16, whose range is too small for weights that are trained. "
            "Write bfloat16, or float32 with `train.fp16: true`.",
        ),
        (
            [DPO, "data.overlong=drop"],
            "data.overlong",
            "is drop, but TRL's DPOTrainer truncates to `train.max_length`. "
            "Write truncate, or shorten the pairs beforehand.",
        ),
        (
            [DPO, "evaluate.generate.show=2"],
            "evaluate.generate.show",
            "is set, but an evaluation of `method: dpo` generates no answers. Write 0.",
        ),
    ],
)
def test_what_would_do_nothing_is_refused(problems, flags, key, said):
    found = problems(HEAD, *flags)
    assert len(found) == 1
    assert found[0].endswith(f"{key}: {said}")


@pytest.mark.parametrize(
    "flags",
    [
        ["train.prediction_loss_only=true"],
        ["train.remove_unused_columns=false"],
        [DPO, "train.remove_unused_columns=true"],
        ["train.metric_for_best_model=perplexity", "train.greater_is_better=false", "evaluate.metrics=[perplexity]"],
        [
            "train.metric_for_best_model=token_accuracy",
            "train.greater_is_better=true",
            "evaluate.metrics=[token_accuracy]",
        ],
        ["adapter.method=lora", "model.dtype=float16"],
        [DPO, "data.overlong=truncate"],
        ["evaluate.generate.show=2"],
    ],
)
def test_what_has_an_effect_is_accepted(problems, flags):
    assert problems(HEAD, *flags) == []
