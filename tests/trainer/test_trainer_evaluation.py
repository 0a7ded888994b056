"""Evaluating, before and during training, changes nothing in the training."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from accelerate.state import GradientState
from datasets import Dataset
from tiny_training import arguments, assert_same_run, build_model, causal_trainer, every, losses, rows, train_causal
from transformers import Trainer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from hf_efficient.trainer import EfficientTrainer, EfficientTrainerMixin


class EfficientSFTTrainer(EfficientTrainerMixin, SFTTrainer):
    pass


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


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_steps_do_not_depend_on_evaluations(tiny_dir, tmp_path, method):
    silent = train_causal(EfficientTrainer, tiny_dir, tmp_path / "a", method, max_steps=5)
    busy = causal_trainer(
        EfficientTrainer,
        tiny_dir,
        tmp_path / "b",
        method,
        max_steps=5,
        eval_rows=5,
        mixin={"extra_evaluators": [sampled_answers]},
        **EVALUATING,
    )
    busy.evaluate()
    busy.train()
    assert_same_run(busy, silent)
    answers = [entry["eval_answer_tokens"] for entry in busy.state.log_history if "eval_loss" in entry]
    assert answers == [1.0, 1.0, 1.0, 1.0]


TIMES = ("runtime", "per_second", "efficiency/")


@pytest.mark.slow
def test_sft_metrics_do_not_depend_on_evaluations(tiny_dir, tmp_path, tiny_tokenizer):
    logs = []
    texts = Dataset.from_list([{"text": f"{i} times {i} is {i * i}"} for i in range(24)])
    for name, extra in (("a", {}), ("b", EVALUATING)):
        args = arguments(tmp_path / name, SFTConfig, max_steps=5, logging_steps=2, max_length=48, **extra)
        trainer = EfficientSFTTrainer(
            model=build_model(tiny_dir, "lora"),
            args=args,
            train_dataset=texts,
            eval_dataset=texts.select(range(4)),
            processing_class=tiny_tokenizer,
            extra_evaluators=[sampled_answers] if extra else [],
        )
        trainer.train()
        logs.append([entry for entry in trainer.state.log_history if "eval_loss" not in entry])
    silent, busy = (
        [{k: v for k, v in entry.items() if not any(name in k for name in TIMES)} for entry in log] for log in logs
    )
    assert busy == silent
    assert sorted(silent[-1]) == sorted(
        ["entropy", "epoch", "mean_token_accuracy", "num_tokens", "step", "total_flos", "train_loss"]
    )


def test_plain_trainer_is_changed_by_evaluations(tiny_dir, tmp_path):
    """The trap is real: without the mixin the same evaluations move the training."""
    silent = train_causal(Trainer, tiny_dir, tmp_path / "a", "lora", max_steps=4)
    busy = train_causal(Trainer, tiny_dir, tmp_path / "b", "lora", max_steps=4, eval_rows=5, **EVALUATING)
    assert losses(busy)[0] != losses(silent)[0]


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
        max_steps=3,
        eval_rows=4,
        callbacks=[Watch()],
        mixin={"extra_evaluators": [lambda trainer: {"score": next(scores)}]},
        **every(evaluate=1, save=1),
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=True,
    )
    assert seen == [0.25, 0.75, 0.5]
    assert trainer.state.best_global_step == 2
    assert trainer.evaluate()["eval_score"] == 0.125
    assert trainer.evaluate(metric_key_prefix="test")["test_score"] == 1.0
    assert seen == [0.25, 0.75, 0.5, 0.125, None]


def test_extra_evaluators_do_not_run_in_predict(tiny_dir, tmp_path):
    trainer = causal_trainer(
        EfficientTrainer, tiny_dir, tmp_path, mixin={"extra_evaluators": [lambda trainer: {"score": 1.0}]}
    )
    assert "test_score" not in trainer.predict(rows(4)).metrics


def test_extra_evaluators_run_in_eval_mode_without_gradients(tiny_dir, tmp_path):
    seen = []

    def evaluator(trainer):
        seen.append((trainer.model.training, torch.is_grad_enabled()))
        trainer.model.train()
        return {}

    trainer = causal_trainer(
        EfficientTrainer, tiny_dir, tmp_path, eval_rows=4, mixin={"extra_evaluators": [evaluator, evaluator]}
    )
    trainer.evaluate()
    assert seen == [(False, False), (False, False)]


def test_evaluation_restores_every_generator_and_the_loaders(tiny_dir, tmp_path):
    trainer = causal_trainer(
        EfficientTrainer, tiny_dir, tmp_path, eval_rows=4, mixin={"extra_evaluators": [sampled_answers]}
    )

    def draw():
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = draw()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    trainer.evaluate()
    assert draw() == expected


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

    trainer = causal_trainer(
        EfficientTrainer,
        tiny_dir,
        tmp_path,
        eval_rows=4,
        callbacks=[Evaluate()],
        mixin={"extra_evaluators": [evaluator]},
    )
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
