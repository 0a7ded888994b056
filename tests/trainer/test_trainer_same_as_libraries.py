"""The trainer trains bit for bit as the class below it."""

import pytest
import torch
from datasets import Dataset
from tiny_training import (
    METHODS,
    arguments,
    assert_same_run,
    build_model,
    every,
    reward_model,
    tiny_config,
    train_causal,
    trl_trainer,
)
from transformers import (
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Trainer,
)
from trl import DPOTrainer, RewardTrainer, SFTTrainer

from hf_efficient import EfficientDPOTrainer, EfficientRewardTrainer, EfficientSFTTrainer, load_run
from hf_efficient.trainer import EfficientTrainer

pytestmark = pytest.mark.slow
# Every pair of two settings is among them.
PAIRWISE = [
    ("full", 1, False, True), ("full", 3, True, False), ("lora", 1, True, True), ("lora", 3, False, False),
    ("qlora", 1, True, False), ("qlora", 3, False, True),
]  # fmt: skip
SETTINGS = pytest.mark.parametrize(("method", "accumulation", "checkpointing", "packed"), PAIRWISE)


@SETTINGS
def test_efficient_trainer_trains_as_trainer(tiny_dir, tmp_path, method, accumulation, checkpointing, packed):
    settings = (method, packed, checkpointing)
    plain, ours = (
        train_causal(kind, tiny_dir, tmp_path / kind.__name__, *settings, gradient_accumulation_steps=accumulation)
        for kind in (Trainer, EfficientTrainer)
    )
    assert_same_run(ours, plain)
    assert len(plain.state.log_history) == len(ours.state.log_history) == 4
    assert plain.state.total_flos == ours.state.total_flos > 0


def both(kinds, build, tmp_path, tokenizer, **changes):
    found = []
    for kind in kinds:
        found.append(trl_trainer(kind, build(), tmp_path / kind.__name__, tokenizer, **changes))
        found[-1].train()
    plain, ours = found
    assert_same_run(ours, plain)
    return plain, ours


def timeless(trainer):
    timed = ("runtime", "per_second", "efficiency/")
    return [{k: v for k, v in entry.items() if not any(t in k for t in timed)} for entry in trainer.state.log_history]


@SETTINGS
def test_mixin_trains_as_sft_trainer(tiny_dir, tmp_path, tiny_tokenizer, method, accumulation, checkpointing, packed):
    plain, ours = both(
        (SFTTrainer, EfficientSFTTrainer),
        lambda: build_model(tiny_dir, method, checkpointing),
        tmp_path,
        tiny_tokenizer,
        gradient_accumulation_steps=accumulation,
        gradient_checkpointing=checkpointing,
        packing=packed,
        max_length=48,
    )
    assert timeless(ours) == timeless(plain)


@pytest.mark.parametrize("method", METHODS)
def test_mixin_trains_as_dpo_trainer(tiny_dir, tmp_path, tiny_tokenizer, method):
    kinds, settings = (DPOTrainer, EfficientDPOTrainer), {"gradient_accumulation_steps": 2}
    both(kinds, lambda: build_model(tiny_dir, method), tmp_path, tiny_tokenizer, **settings)


def test_mixin_trains_as_reward_trainer(tmp_path, tiny_tokenizer):
    kinds, settings = (RewardTrainer, EfficientRewardTrainer), {"gradient_accumulation_steps": 2}
    both(kinds, reward_model, tmp_path, tiny_tokenizer, **settings)


@pytest.mark.parametrize("logged", ["steps", "epoch"])
def test_where_the_last_step_evaluates_the_logs_are_those_of_the_class_below(
    tiny_dir, tmp_path, tiny_tokenizer, logged
):
    more = {"eval_dataset": Dataset.from_list([{"text": f"{i} is {i}"} for i in range(4)])}
    settings = {"more": more, **every(evaluate=4), "max_steps": 4, "logging_strategy": logged, "logging_steps": 3}
    kinds = (SFTTrainer, EfficientSFTTrainer)
    plain, ours = both(kinds, lambda: build_model(tiny_dir, "lora"), tmp_path, tiny_tokenizer, **settings)
    assert timeless(ours) == timeless(plain)
    assert "mean_token_accuracy" not in ours.state.log_history[-1]


def tiny_llava():
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = tiny_config(num_hidden_layers=1, attention_dropout=0.0)
    config = LlavaConfig(vision_config=CLIPVisionConfig(**vision, image_size=4, patch_size=2), text_config=text)
    config.image_token_index = config.image_token_id = 5
    torch.manual_seed(1)
    return LlavaForConditionalGeneration(config)


def test_a_vision_language_model_trains_though_its_last_vision_layer_gets_no_gradient(tmp_path, warned):
    """LLaVA reads the layer before the last one of its vision tower."""
    ids = torch.tensor([5] * 4 + [30, 31, 32])
    data = [{"input_ids": ids, "labels": ids, "pixel_values": torch.full((3, 4, 4), 0.1 * i)} for i in range(8)]
    plain, ours = (
        kind(model=tiny_llava(), args=arguments(tmp_path / kind.__name__), train_dataset=data)
        for kind in (Trainer, EfficientTrainer)
    )
    plain.train(), ours.train()
    assert_same_run(ours, plain)
    (said,) = (one for one in warned() if "in the first step" in one)
    assert "vision_tower.encoder.layers.1." in said


def tiny_qwen2_vl():
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 1, "patch_size": 2}
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    text = {name: getattr(tiny_config(), name) for name in names} | {"num_hidden_layers": 1}
    positions = {"rope_type": "default", "mrope_section": [4, 6, 6]}
    torch.manual_seed(1)
    config = Qwen2VLConfig(vision_config=vision, text_config={**text, "rope_parameters": positions}, image_token_id=5)
    return Qwen2VLForConditionalGeneration(config)


def image_and_text(brightness, words):
    """A picture of 4 x 4 patches, which are four tokens, and so many words."""
    ids = torch.tensor([[5] * 4 + list(range(30, 30 + words))])
    return {
        "input_ids": ids,
        "labels": ids,
        "mm_token_type_ids": (ids == 5).int(),
        "pixel_values": torch.full((16, 24), brightness),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }


def test_a_vision_language_model_whose_pictures_are_patches_in_one_row_trains_as_without_the_mixin(tmp_path):
    """Qwen2-VL: positions of three dimensions, and ``pixel_values`` with a row for each patch of the batch."""
    data = [image_and_text(0.1 * i, words=3) for i in range(8)]
    plain, ours = (
        kind(
            model=tiny_qwen2_vl(),
            args=arguments(tmp_path / kind.__name__),
            train_dataset=data,
            data_collator=lambda rows: {name: torch.cat([one[name] for one in rows]) for name in rows[0]},
        )
        for kind in (Trainer, EfficientTrainer)
    )
    plain.train(), ours.train()
    assert_same_run(ours, plain)
    assert load_run(tmp_path / "EfficientTrainer").tokens.processed == 3 * 2 * 7
