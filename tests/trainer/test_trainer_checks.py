"""The guard against repacked 4-bit weights, and the gradient check, inside real trainings."""

from __future__ import annotations

import pytest
import torch
from tiny_training import (
    EfficientDPOTrainer,
    arguments,
    assert_same_run,
    build_model,
    causal_trainer,
    train_causal,
    trained_weights,
    trl_trainer,
)
from transformers import Trainer

from hf_efficient.callbacks.checks import GradientCheck
from hf_efficient.errors import TrainingCheckError
from hf_efficient.trainer import EfficientTrainer

has_avx512bf16 = pytest.importorskip("bitsandbytes").functional.has_avx512bf16()
needs_repacking = pytest.mark.skipif(not has_avx512bf16, reason="this CPU has no AVX512-BF16: nothing is repacked")


def first_look(model):
    """What a user does before training: run the model once in eval mode."""
    model.eval()
    with torch.no_grad():
        return model(torch.tensor([[1, 40, 41, 42]])).logits


def disable_guard(monkeypatch):
    monkeypatch.setattr("hf_efficient.trainer.keep_four_bit_trainable", lambda model: 0)
    monkeypatch.setattr("hf_efficient.callbacks.checks.keep_four_bit_trainable", lambda model: 0)


@needs_repacking
def test_the_check_sees_repacked_weights(tiny_dir, tmp_path, monkeypatch):
    disable_guard(monkeypatch)
    trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, "qlora")
    before = trained_weights(trainer)
    first_look(trainer.model)
    with pytest.raises(TrainingCheckError) as caught:
        trainer.train()
    first = "base_model.model.model.layers.0.self_attn.o_proj.base_layer"
    assert str(caught.value).startswith("11 frozen layers pass no gradient on to the layers below: ")
    assert first in str(caught.value)
    assert "and 6 more. Their weights were repacked for inference (4-bit on a CPU: call " in str(caught.value)
    assert not any(module._forward_hooks for module in trainer.model.modules())
    for name, weight in trained_weights(trainer).items():
        assert torch.equal(weight, before[name])


@needs_repacking
def test_without_guard_and_check_the_gradient_is_lost_in_silence(tiny_dir, tmp_path, monkeypatch):
    disable_guard(monkeypatch)
    plain, looked = (
        causal_trainer(EfficientTrainer, tiny_dir, tmp_path, "qlora", mixin={"check_gradients": False})
        for _ in range(2)
    )
    first_look(looked.model)
    plain.train(), looked.train()
    weights = trained_weights(looked)
    assert any(not torch.equal(weight, weights[name]) for name, weight in trained_weights(plain).items())


def test_with_the_guard_a_first_look_changes_nothing(tiny_dir, tmp_path):
    plain = train_causal(EfficientTrainer, tiny_dir, tmp_path, "qlora")
    looked = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, "qlora")
    first_look(looked.model)
    looked.train()
    assert_same_run(looked, plain)


@needs_repacking
def test_weights_repacked_before_the_trainer_are_unpacked(tiny_dir, tmp_path, caplog):
    model = build_model(tiny_dir, "qlora")
    first_look(model)
    packed = model.base_model.model.model.layers[0].self_attn.q_proj.base_layer.weight
    assert packed.quant_state.packing_format_for_cpu
    trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, model=model, eval_rows=4)
    assert "14 4-bit layers had been repacked for inference" in caplog.text
    trainer.train()
    trainer.evaluate()
    assert not packed.quant_state.packing_format_for_cpu


@needs_repacking
def test_a_reference_precomputed_while_the_trainer_is_built_repacks_nothing(tiny_dir, tmp_path, tiny_tokenizer, caplog):
    model, settings = build_model(tiny_dir, "qlora"), {"precompute_ref_log_probs": True}
    trainer = trl_trainer(EfficientDPOTrainer, model, tmp_path, tiny_tokenizer, **settings)
    assert "repacked" not in caplog.text
    trainer.train()
    assert trainer.state.global_step == 3


class Detaching(torch.nn.Module):
    """A frozen layer between two trained ones that cuts the chain."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x):
        return (x * self.weight).detach()


class Passing(Detaching):
    def forward(self, x):
        return x * self.weight


class Chain(torch.nn.Module):
    def __init__(self, middle, unused=False):
        super().__init__()
        self.below = torch.nn.Linear(4, 4)
        self.middle = middle
        self.above = torch.nn.Linear(4, 1)
        if unused:
            self.unused = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(4))

    def forward(self, x, labels=None):
        loss = self.above(self.middle(self.below(x))).mean()
        return {"loss": loss}


def chain_trainer(kind, tmp_path, model, mixin=None, **changes):
    data = [{"x": torch.full((4,), float(i)), "labels": 0} for i in range(12)]
    return kind(model=model, args=arguments(tmp_path, **changes), train_dataset=data, **(mixin or {}))


SWITCH = "switch the check off: check_gradients=False, in a recipe efficiency.check_gradients: false."


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            Chain(Detaching()),
            "1 frozen layers pass no gradient on to the layers below: middle. Their weights were repacked for "
            "inference (4-bit on a CPU: call hf_efficient.callbacks.keep_four_bit_trainable(model) before the "
            "first evaluation or generation), or their forward detaches its input. If this is intended, ",
        ),
        (
            Chain(Passing(), unused=True),
            "8 trainable parameters got no gradient in the first step: unused.0.weight, unused.0.bias, "
            "unused.1.weight, unused.1.bias, unused.2.weight and 3 more. The loss does not depend on them: "
            "freeze them (requires_grad_(False)), or mend the forward that leaves them out. If this is intended, ",
        ),
    ],
    ids=["detaching", "unused"],
)
def test_what_gets_no_gradient_is_named_before_the_first_update(tmp_path, model, said):
    trainer = chain_trainer(EfficientTrainer, tmp_path, model)
    before = trained_weights(trainer)
    with pytest.raises(TrainingCheckError) as caught:
        trainer.train()
    assert str(caught.value) == said + SWITCH
    assert not any(module._forward_hooks for module in trainer.model.modules())
    assert all(torch.equal(weight, before[name]) for name, weight in trained_weights(trainer).items())
    off = chain_trainer(EfficientTrainer, tmp_path, model, {"check_gradients": False})
    off.train()
    assert off.state.global_step == 3


def test_the_check_alone_in_a_plain_trainer(tmp_path):
    check = {"callbacks": [GradientCheck()]}
    chain_trainer(Trainer, tmp_path, Chain(Passing()), check).train()
    with pytest.raises(TrainingCheckError, match=r"unused\.0\.weight"):
        chain_trainer(Trainer, tmp_path, Chain(Passing(), unused=True), {"callbacks": [GradientCheck()]}).train()


def test_every_train_call_is_checked_again(tmp_path):
    model = Chain(Passing())
    trainer = chain_trainer(EfficientTrainer, tmp_path, model)
    trainer.train()
    assert not any(module._forward_hooks for module in model.modules())
    model.middle.__class__ = Detaching
    with pytest.raises(TrainingCheckError, match="middle"):
        trainer.train()


def test_frozen_layers_in_reentrant_checkpointing_and_no_grad_are_not_blamed(tmp_path):
    class Checkpointed(Passing):
        def __init__(self):
            super().__init__()
            self.inner = Passing()

        def forward(self, x):
            with torch.no_grad():
                self.inner(x)
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=True)

    trainer = chain_trainer(EfficientTrainer, tmp_path, Chain(Checkpointed()))
    trainer.train()
    assert trainer.state.global_step == 3


def test_a_layer_broken_only_in_recomputation_is_named(tmp_path):
    """Reentrant checkpointing: the break shows in the backward, after the model's own forward."""

    class Checkpointed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.broken, self.whole = Detaching(), Passing()

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(lambda y: self.broken(y) + self.whole(y), x, use_reentrant=True)

    trainer = chain_trainer(EfficientTrainer, tmp_path, Chain(Checkpointed()), gradient_accumulation_steps=2)
    with pytest.raises(TrainingCheckError, match=r"1 frozen layers .* below: middle\.broken\."):
        trainer.train()
