"""FLOPs in the records of real trainings: what torch counts around the very same steps."""

import pytest
import torch
from datasets import Dataset
from flop_counting import Counted
from tiny_training import (
    VOCABULARY,
    arguments,
    assert_same_run,
    build_model,
    causal_trainer,
    preference_rows,
    records,
    reward_model,
    rows,
    tiny_config,
    train_causal,
    trl_trainer,
)
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, MistralConfig, Trainer

from hf_efficient import EfficientDPOTrainer, EfficientRewardTrainer, EfficientSFTTrainer
from hf_efficient.accounting.account import account_of
from hf_efficient.profilers.calibration import MatmulPeak
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.train_fields import trl_class
from hf_efficient.trainer import EfficientTrainer, EfficientTrainerMixin


def eager(model):
    """Computes its attention by plain products, which torch can count."""
    getattr(model, "get_base_model", lambda: model)().set_attn_implementation("eager")
    return model


def trained(trainer, output):
    """The FLOPs computed by torch's count and by the records, step by step, and the account."""
    counted = Counted()
    trainer.add_callback(counted)
    trainer.train()
    found = [record.work for record in records(output)]
    assert all(work.model_flops <= work.hardware_flops for work in found)
    return counted.flops, [work.hardware_flops for work in found], account_of(output / "efficiency")


STORED, CHECKPOINTED = None, {"use_reentrant": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "packed"),
    [
        *(("full", STORED, False), ("full", CHECKPOINTED, True), ("lora", STORED, True), ("lora", CHECKPOINTED, False)),
        *(("qlora", STORED, False), ("qlora", CHECKPOINTED, True), ("lora", {"use_reentrant": True}, True)),
        ("lora", {"use_reentrant": False, "every_n_layers": 2}, False),
    ],
)
def test_the_records_hold_what_torch_counts(tiny_dir, tmp_path, method, options, packed):
    settings = {"gradient_accumulation_steps": 2, "gradient_checkpointing_kwargs": options}
    checkpointing = options is not STORED
    trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, method, packed, checkpointing, **settings)
    eager(trainer.model)
    counted, recorded, found = trained(trainer, tmp_path)
    assert len(set(counted)) > 1
    assert recorded == counted
    assert found.work.hardware_flops == sum(counted)
    assert found.work.reason is None


def test_sdpa_with_dropout_on_a_cpu(tiny_dir, tmp_path):
    """Which torch counts, since it is made of plain products there."""
    trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, "full", packed=True)
    assert trainer.model.config._attn_implementation == "sdpa"
    counted, recorded, _ = trained(trainer, tmp_path)
    assert recorded == counted


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True], ids=["stored", "checkpointed"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_fused_head_of_sft_trainer(tiny_dir, tmp_path, tiny_tokenizer, method, checkpointing):
    model, settings = eager(build_model(tiny_dir, method, checkpointing)), {"gradient_checkpointing": checkpointing}
    trainer = trl_trainer(EfficientSFTTrainer, model, tmp_path, tiny_tokenizer, max_length=48, **settings)
    counted, recorded, _ = trained(trainer, tmp_path)
    assert recorded == counted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("full", {}),
        ("lora", {}),
        ("lora", {"gradient_checkpointing": True}),
        ("lora", {"precompute_ref_log_probs": True}),
    ],
)
def test_preference_training_with_its_reference(tiny_dir, tmp_path, tiny_tokenizer, method, settings):
    model = eager(build_model(tiny_dir, method, settings.get("gradient_checkpointing", False)))
    more = {"ref_model": eager(build_model(tiny_dir, "full"))} if method == "full" else {}
    trainer = trl_trainer(EfficientDPOTrainer, model, tmp_path, tiny_tokenizer, more, **settings)
    counted, recorded, found = trained(trainer, tmp_path)
    assert recorded == counted
    assert (found.sequences.rows, found.sequences.samples) == (12, 12)  # 3 steps of 2 pairs: chosen and rejected


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["orpo", "cpo"])
def test_the_experimental_trainers(tiny_dir, tmp_path, tiny_tokenizer, objective):
    library, config = (trl_class(getattr(OBJECTIVES[objective], name)) for name in ("trainer", "config"))
    trainer = type("Ours", (EfficientTrainerMixin, library), {})(
        model=eager(build_model(tiny_dir, "lora")),
        args=arguments(tmp_path, config),
        train_dataset=Dataset.from_list(preference_rows()),
        processing_class=tiny_tokenizer,
    )
    counted, recorded, _ = trained(trainer, tmp_path)
    assert recorded == counted


def test_a_model_with_a_sliding_window(tmp_path):
    """The model's FLOPs count the window's pairs alone; eager attention computes every pair and masks."""
    config = MistralConfig(**{**tiny_config().to_dict(), "sliding_window": 6, "attention_dropout": 0.0})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    settings = {"model": model, "max_steps": 1, "per_device_train_batch_size": 24}
    trainer = causal_trainer(EfficientTrainer, tmp_path, tmp_path, **settings)
    counted, recorded, found = trained(trainer, tmp_path)
    assert recorded == counted
    lengths = [len(row["input_ids"]) for row in rows()]
    pairs = sum(min(position, 6) for length in lengths for position in range(1, length + 1))
    # Six FLOPs per weight that multiplies and token, twelve per feature, layer and pair.
    products = 2 * (4 * 64 * 64 + 3 * 64 * 64) + 64 * 259
    assert found.work.model_flops == 6 * products * sum(lengths) + 2 * 12 * 64 * pairs


@pytest.mark.slow
def test_a_model_that_is_not_known(tmp_path, warned):
    """A GPT-2."""
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=128, n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2
    )

    def train(kind, output):
        torch.manual_seed(0)
        return train_causal(kind, tmp_path, output, model=GPT2LMHeadModel(config))

    trainer = train(EfficientTrainer, tmp_path / "on")
    assert warned() == []
    assert [record.work for record in records(tmp_path / "on")] == [None] * 3
    found = account_of(tmp_path / "on/efficiency")
    assert (found.work.model_flops, found.work.mfu, found.work.peak_flops_per_second) == (None, None, None)
    assert found.work.reason.startswith("model_type 'gpt2': its parameters and FLOPs are not known here.")
    assert [gap.why for gap in found.not_measured if gap.what == "FLOPs, MFU and HFU"] == [found.work.reason]
    assert found.sequences.samples == 6  # which need no model
    assert_same_run(trainer, train(Trainer, tmp_path / "off"))


class RunsTwice(EfficientTrainer):
    def compute_loss(self, *args, **kwargs):
        super().compute_loss(*args, **kwargs)
        return super().compute_loss(*args, **kwargs)


class RunsOnce(EfficientTrainer):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


def test_an_evaluation_runs_the_model_for_no_micro_batch(tiny_dir, tmp_path):
    found = []
    for kind, evaluated in ((EfficientTrainer, 0), (RunsOnce, 4)):
        often = {"eval_strategy": "steps", "eval_steps": 1} if evaluated else {}
        train_causal(kind, tiny_dir, tmp_path / kind.__name__, eval_rows=evaluated, **often)
        found.append(account_of(tmp_path / kind.__name__ / "efficiency").work)
    assert found[0].model_flops == found[1].model_flops > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", [RunsTwice, EfficientTrainer])
def test_of_two_calls_the_one_that_does_not_know_tells_why(tiny_dir, tmp_path, first):
    second = EfficientTrainer if first is RunsTwice else RunsTwice
    for kind in (first, second):
        train_causal(kind, tiny_dir, tmp_path)
    work = account_of(tmp_path / "efficiency").work
    assert work.model_flops is None
    assert work.reason.startswith("RunsTwice.compute_loss: it runs the model 2 times for a micro-batch")


def test_another_objective_is_not_guessed_at(tmp_path, tiny_tokenizer):
    trl_trainer(EfficientRewardTrainer, reward_model(), tmp_path, tiny_tokenizer).train()
    found = account_of(tmp_path / "efficiency")
    assert found.work.model_flops is None
    assert found.work.reason.startswith("RewardTrainer.compute_loss: how often it runs the model")
    assert found.sequences.samples == 12


@pytest.mark.slow
def test_the_peak_of_a_cpu_is_a_matmul_in_the_dtype_of_the_weights(tiny_dir, tmp_path, monkeypatch):
    """2 GFLOP/s by a peak that is put there: MFU is the model's FLOPs over the time at that rate."""
    asked = []

    def peak(dtype):
        asked.append(dtype)
        return MatmulPeak(2e9, 512, 1, "2026-01-02")

    monkeypatch.setattr("hf_efficient.model.work.cpu_matmul_peak", peak)
    train_causal(EfficientTrainer, tiny_dir, tmp_path, "qlora")
    found = account_of(tmp_path / "efficiency")
    work = found.work
    assert asked == [torch.bfloat16]  # the compute dtype of the 4-bit layers
    assert (work.dtype, work.peak_estimated, work.accelerators, work.reason) == ("bf16", True, 1, None)
    assert work.peak_source == "a matmul measured here: 512 x 512, 1 thread, 2026-01-02"
    assert work.mfu == work.model_flops / (found.time.training_seconds * 2e9)
    assert work.hfu == work.hardware_flops / (found.time.training_seconds * 2e9)
    assert found.time.phase_seconds["trainer_setup"] > 0
