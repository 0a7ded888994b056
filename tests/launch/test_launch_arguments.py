from __future__ import annotations

import pytest
import torch

from hf_efficient.errors import RecipeError, SetupError
from hf_efficient.launch.arguments import training_arguments
from hf_efficient.recipe.schema import Recipe

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="checks what a CPU is given")


def recipe(method="sft", early_stopping=None, **train) -> Recipe:
    return Recipe(
        name="t",
        method=method,
        model={"id": "m"},
        data={"train": [{"path": "x"}]},
        train=train,
        evaluate={"early_stopping": early_stopping},
        output_dir="somewhere",
    )


def test_the_fields_are_trls_own():
    args = training_arguments(recipe(learning_rate=3e-4, max_length=77, optim="paged_adamw_8bit"))
    assert type(args).__name__ == "SFTConfig"
    assert (args.learning_rate, args.max_length, args.optim, args.output_dir) == (
        3e-4, 77, "paged_adamw_8bit", "somewhere",
    )  # fmt: skip
    assert args.use_cpu
    assert not args.dataloader_pin_memory
    assert type(training_arguments(recipe("dpo", beta=0.3))).__name__ == "DPOConfig"


def test_what_the_device_lacks_is_said():
    with pytest.raises(SetupError, match=r"train\.fp16: a CPU trains in float32 or bfloat16"):
        training_arguments(recipe(fp16=True, bf16=False))
    with pytest.raises(SetupError, match=r"train\.use_liger_kernel: .* need a GPU"):
        training_arguments(recipe(use_liger_kernel=True))
    with pytest.raises(SetupError, match=r"train\.tf32: "):
        training_arguments(recipe(tf32=True))


def test_bf16_on_a_gpu_without_it_is_refused(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    with pytest.raises(SetupError, match=r"train\.bf16: Tesla T4 has no bfloat16; write `train\.fp16: true`"):
        training_arguments(recipe(bf16=True))


def test_the_libraries_own_checks_become_recipe_errors():
    with pytest.raises(RecipeError, match=r"t: train: .*saving steps to be a round multiple"):
        training_arguments(
            recipe(
                load_best_model_at_end=True,
                eval_strategy="steps",
                eval_steps=4,
                save_strategy="steps",
                save_steps=6,
            )
        )


def test_early_stopping_watches_the_loss_unless_told_otherwise():
    assert training_arguments(recipe(early_stopping={"patience": 1})).metric_for_best_model == "loss"
    named = recipe(early_stopping={"patience": 1}, metric_for_best_model="perplexity")
    assert training_arguments(named).metric_for_best_model == "perplexity"


def test_the_lowest_perplexity_is_the_best():
    assert training_arguments(recipe(metric_for_best_model="eval_perplexity")).greater_is_better is False
    assert training_arguments(recipe(metric_for_best_model="token_accuracy")).greater_is_better is True


def test_flex_attention_needs_a_gpu():
    flexible = recipe().model_copy(
        update={"model": recipe().model.model_copy(update={"attn_implementation": "flex_attention"})}
    )
    with pytest.raises(SetupError, match=r"model\.attn_implementation: flex_attention has no backward on a CPU"):
        training_arguments(flexible)
