"""Evaluating, before and during training, changes nothing in the training."""

import random

import numpy as np
import pytest
import torch
from accelerate.state import GradientState
from datasets import Dataset
from tiny_training import (
    METHODS,
    assert_same_run,
    build_model,
    causal_trainer,
    every,
    losses,
    rows,
    train_causal,
    trl_trainer,
)
from transformers import Trainer, TrainerCallback

from hf_efficient import EfficientSFTTrainer
from hf_efficient.trainer import EfficientTrainer


def sampled_answers(trainer):
    """Samples, draws from every generator, leaves the model in training mode and a loader half-read."""
    prompt = torch.tensor([[1, 40, 41]])
    answer = trainer.model.generate(input_ids=prompt, max_new_tokens=4, do_sample=True)
    random.random()
    np.random.rand()
    trainer.model.train()
    next(iter(trainer.get_eval_dataloader()))
    return {"answer_tokens": float(answer.shape[1] > 3)}


EVALUATING = {**every(evaluate=2), "eval_on_start": True}


@pytest.mark.parametrize("method", METHODS)
def test_steps_do_not_depend_on_evaluations(tiny_dir, tmp_path, method):
    silent = train_causal(EfficientTrainer, tiny_dir, tmp_path / "a", method, max_steps=5)
    settings = {"max_steps": 5, "eval_rows": 5, "mixin": {"extra_evaluators": [sampled_answers]}, **EVALUATING}
    busy = causal_trainer(EfficientTrainer, tiny_dir, tmp_path / "b", method, **settings)
    busy.evaluate()
    busy.train()
    assert_same_run(busy, silent)
    answers = [entry["eval_answer_tokens"] for entry in busy.state.log_history if "eval_loss" in entry]
    assert answers == [1.0, 1.0, 1.0, 1.0]


TIMES = ("runtime", "per_second", "efficiency/")


@pytest.mark.slow
def test_sft_metrics_do_not_depend_on_evaluations(tiny_dir, tmp_path, tiny_tokenizer):
    logs = []
    for name, extra in (("a", {}), ("b", EVALUATING)):
        more = {"eval_dataset": Dataset.from_list([{"text": f"{i} is {i}"} for i in range(4)])}
        more["extra_evaluators"] = [sampled_answers] if extra else []
        settings = {"max_steps": 5, "logging_steps": 2, "max_length": 48, "more": more, **extra}
        model = build_model(tiny_dir, "lora")
        trainer = trl_trainer(EfficientSFTTrainer, model, tmp_path / name, tiny_tokenizer, **settings)
        trainer.train()
        entries = [entry for entry in trainer.state.log_history if "eval_loss" not in entry]
        logs.append([{k: v for k, v in entry.items() if not any(name in k for name in TIMES)} for entry in entries])
    silent, busy = logs
    assert busy[:-1] == silent[:-1]
    # An evaluation in the last step leaves the model in eval mode, in which SFTTrainer logs no metrics of training.
    assert busy[-1] == {key: silent[-1][key] for key in ("total_flos", "train_loss", "epoch", "step")}
    kept = "entropy epoch mean_token_accuracy num_tokens step total_flos train_loss"
    assert sorted(silent[-1]) == kept.split()


def test_plain_trainer_is_changed_by_evaluations(tiny_dir, tmp_path, plain_run):
    """The trap is real: without the mixin the same evaluations move the training."""
    busy = train_causal(Trainer, tiny_dir, tmp_path, max_steps=4, eval_rows=5, **EVALUATING)
    assert losses(busy)[0] != losses(plain_run(4))[0]


def test_extra_metrics_reach_callbacks_best_checkpoint_and_the_caller(tiny_dir, tmp_path):
    seen = []

    class Watch(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **kwargs):
            seen.append(metrics.get("eval_score"))

    scores = iter([0.25, 0.75, 0.5, 0.125, 1.0])
    trainer = train_causal(
        EfficientTrainer,
        tiny_dir,
        tmp_path,
        eval_rows=4,
        callbacks=[Watch()],
        mixin={"extra_evaluators": [lambda trainer: {"score": next(scores)}]},
        **every(evaluate=1, save=1),
        **{"load_best_model_at_end": True, "metric_for_best_model": "score", "greater_is_better": True},
    )
    assert seen == [0.25, 0.75, 0.5]
    assert trainer.state.best_global_step == 2
    assert trainer.evaluate()["eval_score"] == 0.125
    assert trainer.evaluate(metric_key_prefix="test")["test_score"] == 1.0
    assert seen == [0.25, 0.75, 0.5, 0.125, None]


def test_extra_evaluators_run_in_eval_mode_and_restore_every_generator(tiny_dir, tmp_path):
    seen = []

    def evaluator(trainer):
        seen.append((trainer.model.training, torch.is_grad_enabled()))
        return sampled_answers(trainer)

    def draw():
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    mixin = {"extra_evaluators": [evaluator, evaluator]}
    trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, eval_rows=4, mixin=mixin)
    drawn = []
    for evaluate in (lambda: None, trainer.evaluate):
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        evaluate()
        drawn.append(draw())
    assert drawn[0] == drawn[1]
    assert seen == [(False, False)] * 2
    assert "test_answer_tokens" not in trainer.predict(rows(4)).metrics


def test_a_loader_that_an_evaluator_left_half_read_is_forgotten(tiny_dir, tmp_path):
    """Otherwise accelerate takes it for the one that the training reads."""
    half_read, active = [], []

    def evaluator(trainer):
        half_read.append(iter(trainer.get_eval_dataloader()))
        next(half_read[-1])
        trainer.accelerator.gradient_state._set_sync_gradients(False)
        return {}

    class Evaluate(TrainerCallback):
        def on_step_begin(self, args, state, control, train_dataloader, **kwargs):
            trainer.evaluate()
            known = GradientState()
            active.append((known.active_dataloader is train_dataloader, known.sync_gradients))

    settings = {"eval_rows": 4, "callbacks": [Evaluate()], "mixin": {"extra_evaluators": [evaluator]}}
    trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, **settings)
    trainer.train()
    assert active == [(True, True)] * 3


@pytest.mark.slow
def test_mode_after_training_is_the_trainers_own(tiny_dir, tmp_path):
    """Evaluated last: eval mode. Trained last: training mode."""
    modes = []
    for kind in (Trainer, EfficientTrainer):
        for strategy in ("steps", "no"):
            trainer = train_causal(kind, tiny_dir, tmp_path, eval_rows=4, eval_strategy=strategy, eval_steps=2)
            modes.append(trainer.model.training)
    assert modes == [False, True, False, True]
