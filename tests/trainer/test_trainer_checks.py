"""The guard against repacked 4-bit weights, and the gradient check, inside real trainings."""

import pytest
import torch
from tiny_training import (
    arguments,
    assert_same_run,
    build_model,
    causal_trainer,
    train_causal,
    trained_weights,
    trl_trainer,
)
from transformers import Trainer

from hf_efficient import EfficientDPOTrainer
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
    assert str(caught.value).startswith("11 frozen 4-bit layers pass no gradient on to the layers below: ")
    assert first in str(caught.value)
    assert "and 6 more. Their weights were repacked for inference. Call hf_efficient.callbacks." in str(caught.value)
    assert not any(module._forward_hooks for module in trainer.model.modules())
    for name, weight in trained_weights(trainer).items():
        assert torch.equal(weight, before[name])


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


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Chain(Detaching()), "2 trainable parameters got no gradient in the first step: below.weight, below.bias. "),
        (
            Chain(Passing(), unused=True),
            "8 trainable parameters got no gradient in the first step: unused.0.weight, unused.0.bias, "
            "unused.1.weight, unused.1.bias, unused.2.weight and 3 more. ",
        ),
    ],
    ids=["detaching", "unused"],
)
def test_single_parameters_without_gradient_are_one_warning(tmp_path, model, said, warned):
    trainer = chain_trainer(EfficientTrainer, tmp_path, model)
    trainer.train()
    after = "The loss of that step does not depend on them. If it never does, freeze them: requires_grad_(False) "
    assert warned()[0] == said + after + "saves memory and time."
    said_before = len(warned())
    assert not any(module._forward_hooks for module in trainer.model.modules())
    model.zero_grad(set_to_none=True)
    chain_trainer(EfficientTrainer, tmp_path, model, {"check_gradients": False}).train()
    assert not any("in the first step" in one for one in warned()[said_before:])


class Pair(torch.nn.Module):
    """Two PEFT adapters by their names; the loss depends on those that are used."""

    def __init__(self, *used):
        super().__init__()
        self.peft_config = {"default": None, "other": None}
        self.lora_A = torch.nn.ModuleDict({name: torch.nn.Linear(4, 1) for name in self.peft_config})
        self.used = used

    def forward(self, x, labels=None):
        outputs = [self.lora_A[name](x).mean() for name in self.used]
        return {"loss": sum(outputs) if outputs else x.mean().requires_grad_()}


@pytest.mark.parametrize(("used", "whole"), [((), "this model"), (("default",), "adapter 'other'")])
def test_a_model_or_adapter_without_any_gradient_stops_the_training(tmp_path, used, whole):
    trainer = chain_trainer(EfficientTrainer, tmp_path, Pair(*used))
    before = trained_weights(trainer)
    with pytest.raises(TrainingCheckError) as caught:
        trainer.train()
    assert str(caught.value).startswith(f"No trainable parameter of {whole} got a gradient in the first step (lora_A.")
    assert str(caught.value).endswith(
        "switch the check off: check_gradients=False, in a recipe efficiency.check_gradients: false."
    )
    assert all(torch.equal(weight, before[name]) for name, weight in trained_weights(trainer).items())
    chain_trainer(EfficientTrainer, tmp_path, Pair(*used), {"check_gradients": False}).train()
    chain_trainer(EfficientTrainer, tmp_path, Pair("default", "other")).train()


def test_the_check_alone_in_a_plain_trainer(tmp_path, warned):
    chain_trainer(Trainer, tmp_path, Chain(Passing()), {"callbacks": [GradientCheck()]}).train()
    assert warned() == []
    with pytest.raises(TrainingCheckError, match=r"adapter 'other'"):
        chain_trainer(Trainer, tmp_path, Pair("default"), {"callbacks": [GradientCheck()]}).train()


def test_every_train_call_is_checked_again(tmp_path, warned):
    model = Chain(Passing())
    trainer = chain_trainer(EfficientTrainer, tmp_path, model)
    trainer.train()
    assert not any(module._forward_hooks for module in model.modules())
    assert warned() == []
    model.middle.__class__ = Detaching
    model.zero_grad(set_to_none=True)
    trainer.train()
    assert "below.weight, below.bias." in warned()[0]


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


def test_a_four_bit_layer_broken_only_in_recomputation_is_named(tmp_path):
    """Reentrant checkpointing: the break shows in the backward, after the model's own forward."""

    class FourBit(torch.nn.Parameter):
        quant_state = None

    class Checkpointed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.broken, self.whole = Detaching(), Passing()
            self.broken.weight = FourBit(torch.ones(4), requires_grad=False)

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(lambda y: self.broken(y) + self.whole(y), x, use_reentrant=True)

    trainer = chain_trainer(EfficientTrainer, tmp_path, Chain(Checkpointed()), gradient_accumulation_steps=2)
    with pytest.raises(TrainingCheckError, match=r"1 frozen 4-bit layers .* below: middle\.broken\."):
        trainer.train()
