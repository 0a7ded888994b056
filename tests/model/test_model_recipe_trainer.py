"""The fused head and the fields of SFTTrainer mean the same in a recipe."""

from __future__ import annotations

import json

import pytest
import torch
from flop_counting import counting
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_efficient.accounting.account import account_of
from hf_efficient.callbacks.checks import FusedHeadCheck
from hf_efficient.errors import ModelError, RecipeError
from hf_efficient.launch.build import RecipeTrainer
from hf_efficient.launch.run import run_recipe
from hf_efficient.metrics.for_trainer import make_compute_metrics
from hf_efficient.model.recipe_trainer import (
    CHUNKED_NLL,
    apply_sft_fields,
    dft_loss,
    fuse_head,
    objective,
    sft_arguments,
)
from hf_efficient.recipe.schema import Recipe
from hf_efficient.run_dir.reading import read_steps

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


FAMILIES = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "gemma": {"head_dim": 16},
    "mistral": {"sliding_window": 8},
    "gemma2": {"head_dim": 16, "final_logit_softcapping": 1.0},
    "granite": {"logits_scaling": 8.0},
    "cohere": {"logit_scale": 0.25, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "mixtral": {"num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 0.1},
}


FULL, LORA = "full", "lora"


NAMES = ("perplexity", "token_accuracy")


class Gradients(TrainerCallback):
    """What every optimizer step is given."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        parameters = kwargs["model"].named_parameters()
        self.seen.append({name: one.grad.detach().clone() for name, one in parameters if one.grad is not None})


def tiny_model(family, dtype=torch.float32, adapter=None):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SIZES, **FAMILIES[family]}), dtype=dtype)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)  # logits as far apart as a trained model's
    if adapter is None:
        return model
    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, **adapter))


def rows(count=24, *, packed=False):
    """Rows of differing lengths; the loss is taken on their later part alone."""
    generator = torch.Generator().manual_seed(2)
    found = []
    for index in range(count):
        ids = torch.randint(3, 96, (12 + index % 5,), generator=generator).tolist()
        found.append({"input_ids": ids, "labels": [-100] * (index % 4 + 2) + ids[index % 4 + 2 :]})
        if packed:
            found[-1]["seq_lengths"] = [5, len(ids) - 5]
    return found


def trained(model, loss_type, tmp_path, *, packed=False, metrics=(), callbacks=(), **train):
    """The trainer after four optimizer steps, and the gradients of each."""
    mixin = {name: train.pop(name) for name in ("record_steps", "check_gradients") if name in train}
    options = {
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "disable_tqdm": True,
        "packing": packed,
        "gradient_checkpointing": False,
        "prediction_loss_only": not metrics,
        **train,
    }
    args = sft_arguments(output_dir=str(tmp_path / loss_type), loss_type=loss_type, **options)
    args.remove_unused_columns = False
    apply_sft_fields(model, args)
    compute, preprocess = make_compute_metrics(metrics)
    gradients = Gradients()
    trainer = RecipeTrainer(
        model=model,
        args=args,
        data_collator=DataCollatorForLanguageModeling(pad_token_id=0, padding_free=packed),
        train_dataset=rows(packed=packed),
        eval_dataset=rows(6, packed=packed),
        compute_loss_func=objective(args),
        compute_metrics=compute,
        preprocess_logits_for_metrics=preprocess,
        callbacks=[gradients, *callbacks],
        **mixin,
    )
    trainer.train()
    return trainer, gradients.seen


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def furthest(first, second):
    """Largest distance of two gradients, in units of the first one's norm."""
    assert first.keys() == second.keys()
    return max(float((second[name] - one).norm() / one.norm().clamp(min=1e-6)) for name, one in first.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_gradients_are_those_of_the_whole_logits(family, tmp_path):
    whole, expected = trained(tiny_model(family), "nll", tmp_path)
    chunked, found = trained(tiny_model(family), CHUNKED_NLL, tmp_path, callbacks=[FusedHeadCheck()])
    assert chunked.chunked_loss
    assert not whole.chunked_loss
    assert len(losses(whole)) == 4
    assert losses(chunked) == pytest.approx(losses(whole), rel=1e-5)
    assert len(found) == len(expected) == 4
    for one, other in zip(expected, found, strict=True):
        assert furthest(one, other) < 1e-4


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma", "mistral"])
@pytest.mark.parametrize("way", ["weights", "autocast"])
def test_in_bfloat16_they_differ_by_its_rounding(family, way, tmp_path):
    def run(loss_type):
        dtype = torch.bfloat16 if way == "weights" else torch.float32
        return trained(tiny_model(family, dtype), loss_type, tmp_path, bf16=way == "autocast")

    (whole, expected), (chunked, found) = run("nll"), run(CHUNKED_NLL)
    assert losses(chunked) == pytest.approx(losses(whole), rel=5e-3)
    assert furthest(expected[0], found[0]) < 0.05


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_adapter_learns_the_same(packed, checkpointing, tmp_path):
    def run(loss_type):
        model = tiny_model("llama", adapter={"target_modules": "all-linear"})
        if checkpointing:
            model.enable_input_require_grads()
        return trained(model, loss_type, tmp_path, packed=packed, gradient_checkpointing=checkpointing)

    (whole, expected), (chunked, found) = run("nll"), run(CHUNKED_NLL)
    assert losses(chunked) == pytest.approx(losses(whole), rel=1e-5)
    assert all("lora_" in name for name in found[0])
    assert furthest(expected[-1], found[-1]) < 1e-4


def test_a_head_that_is_saved_with_the_adapter_is_trained(tmp_path):
    def run(loss_type):
        return trained(
            tiny_model("llama", adapter={"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
            loss_type,
            tmp_path,
        )

    (whole, expected), (chunked, found) = run("nll"), run(CHUNKED_NLL)
    assert losses(chunked) == pytest.approx(losses(whole), rel=1e-5)
    (name,) = [name for name in found[-1] if "lm_head" in name]
    assert found[-1][name].norm() > 0
    assert furthest(expected[-1], found[-1]) < 1e-4


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("metrics", [(), NAMES])
def test_an_evaluation_finds_the_same(packed, metrics, tmp_path):
    def evaluated(loss_type):
        trainer, _ = trained(tiny_model("llama"), loss_type, tmp_path, packed=packed, metrics=metrics)
        return {name: value for name, value in trainer.evaluate().items() if not name.endswith(("time", "second"))}

    found, expected = evaluated(CHUNKED_NLL), evaluated("nll")
    assert set(found) >= {"eval_loss", *(f"eval_{name}" for name in metrics)}
    assert found == pytest.approx(expected, rel=1e-5)


def test_an_evaluation_needs_no_logits(tmp_path):
    """Whoever measures memory relies on it: the metrics come from the fused head, not from a second forward."""
    trainer, _ = trained(tiny_model("llama"), CHUNKED_NLL, tmp_path, metrics=NAMES)
    shapes = []
    trainer.model.lm_head.register_forward_hook(lambda module, args, output: shapes.append(output.shape))
    trainer.evaluate()
    assert shapes == []
    trainer.model(input_ids=torch.tensor([[3, 4]]))
    assert shapes == [(1, 2, 96)]


def test_whoever_wants_logits_gets_them(tmp_path):
    trainer, _ = trained(tiny_model("llama"), CHUNKED_NLL, tmp_path)
    trainer.preprocess_logits_for_metrics = None
    trainer.args.prediction_loss_only = False
    assert trainer.predict(rows(6)).predictions.shape == (6, 16, 96)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("adapted", [False, True])
def test_its_flops_are_those_that_torch_counts(packed, adapted, tmp_path):
    class Counted(TrainerCallback):
        flops: list[int]

        def on_step_begin(self, args, state, control, **kwargs):
            self.mode = counting()
            self.mode.__enter__()

        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            self.mode.__exit__(None, None, None)
            self.flops.append(self.mode.get_total_flops())

    model = tiny_model("llama", adapter={"target_modules": "all-linear"} if adapted else None)
    getattr(model, "get_base_model", lambda: model)().set_attn_implementation("eager")
    counted = Counted()
    counted.flops = []
    trained(model, CHUNKED_NLL, tmp_path, packed=packed, callbacks=[counted])
    steps = read_steps(tmp_path / CHUNKED_NLL / "efficiency" / "steps.jsonl")
    assert [one.work.hardware_flops for one in steps] == counted.flops
    assert len(set(counted.flops)) > 1


def test_its_records_change_nothing_and_hold_no_logits(tmp_path):
    trained(tiny_model("llama"), "nll", tmp_path)
    (tmp_path / "on").mkdir()
    on, gradients = trained(tiny_model("llama"), CHUNKED_NLL, tmp_path / "on")
    off, expected = trained(tiny_model("llama"), CHUNKED_NLL, tmp_path, record_steps=False, check_gradients=False)
    assert losses(on) == losses(off)
    for one, other in zip(expected, gradients, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)

    def bytes_of(folder):
        return {one.name: one.bytes for one in account_of(folder / "efficiency").memory.categories}

    chunked, whole = bytes_of(tmp_path / "on" / CHUNKED_NLL), bytes_of(tmp_path / "nll")
    assert whole["logits"] > 2 * 4 * 96 * (2 * 12)  # of 2 rows of 12 tokens at least: the logits, and their log-softmax
    assert chunked["logits"] == 0
    assert chunked["activations"] < 1.02 * whole["activations"]


def test_generation_is_what_it_was(tmp_path):
    model = tiny_model("llama").eval()
    ids = torch.tensor([[3, 4, 5]])
    before = model.generate(ids, max_new_tokens=8, do_sample=False)
    fuse_head(model)
    assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False), before)


def test_an_adapter_on_the_head_is_refused(tmp_path):
    model = tiny_model("llama", adapter={"target_modules": ["q_proj", "lm_head"]})
    with pytest.raises(ModelError, match=r"train\.loss_type: chunked_nll reads the weight of lm_head"):
        trained(model, CHUNKED_NLL, tmp_path)


def test_a_quantized_head_is_refused():
    model = tiny_model("llama")
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(96, 32, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(ModelError, match="not quantized"):
        fuse_head(model)


def test_arguments_keep_the_word_without_a_warning(tmp_path, recwarn):
    args = sft_arguments(output_dir=str(tmp_path), loss_type=CHUNKED_NLL, use_cpu=True, bf16=False)
    assert args.loss_type == CHUNKED_NLL
    assert objective(args) is None
    assert not [one for one in recwarn if "chunked_nll" in str(one.message)]
    assert sft_arguments(output_dir=str(tmp_path), use_cpu=True, bf16=False).loss_type == "nll"


class Outputs:
    def __init__(self, logits):
        self.logits = logits


def test_dft_weighs_each_token_by_its_probability():
    # Two positions count: probabilities 1/2 and 1/4 over a vocabulary of 4, by hand.
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25], [1.0, 1, 1, 1]]]))
    labels = torch.tensor([[3, 0, 2]])
    expected = (0.5 * 0.693147 + 0.25 * 1.386294) / 2
    assert dft_loss(Outputs(logits), labels).item() == pytest.approx(expected, rel=1e-5)
    assert dft_loss(Outputs(logits), labels, num_items_in_batch=4).item() == pytest.approx(expected / 2, rel=1e-5)
    masked = torch.tensor([[3, 0, -100]])
    assert dft_loss(Outputs(logits), masked).item() == pytest.approx(0.5 * 0.693147, rel=1e-5)


def losses_of_recipe(model, chats, output, **train):
    recipe = Recipe(
        name="t",
        model={"id": str(model)},
        adapter={"method": "full"},
        data={"train": [{"path": str(chats)}]},
        train={**TRAIN, **train},
        output_dir=str(output),
    )
    run_recipe(recipe)
    state = json.loads((output / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


TRAIN = {
    "max_steps": 3,
    "max_length": 64,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "bf16": False,
    "use_cpu": True,
    "save_strategy": "no",
}


@pytest.mark.parametrize(
    "train", [{"loss_type": "dft"}, {"gradient_checkpointing_kwargs": {"selective": True}}, {"packing": True}]
)
def test_the_losses_are_sft_trainers(train, tiny_llama_dir, chats_jsonl, tmp_path):
    from datasets import Dataset

    got = losses_of_recipe(tiny_llama_dir, chats_jsonl, tmp_path / "ours", **train)
    args = SFTConfig(str(tmp_path / "theirs"), report_to="none", **{**TRAIN, **train})
    rows = [json.loads(line) for line in chats_jsonl.read_text().splitlines()]
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny_llama_dir),
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(tiny_llama_dir),
    )
    trainer.train()
    theirs = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(got) == 3
    assert got == pytest.approx(theirs, rel=1e-5)


def test_a_router_loss_needs_experts(tiny_llama_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    args = SFTConfig("x", router_aux_loss_coef=0.1, use_cpu=True, bf16=False)
    with pytest.raises(RecipeError, match="the model has no experts"):
        apply_sft_fields(model, args)
    apply_sft_fields(model, SFTConfig("x", use_cpu=True, bf16=False))


@pytest.mark.parametrize(("coefficient", "enabled", "kept"), [(0.5, True, 0.5), (0.0, False, 0.0), (None, True, 0.001)])
def test_the_router_loss_is_the_models_own(coefficient, enabled, kept):
    config = AutoConfig.for_model(
        "mixtral",
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=2,
        router_aux_loss_coef=0.001,
    )
    model = AutoModelForCausalLM.from_config(config)
    apply_sft_fields(model, SFTConfig("x", router_aux_loss_coef=coefficient, use_cpu=True, bf16=False))
    assert model.config.output_router_logits is enabled
    assert model.config.router_aux_loss_coef == kept


def test_selective_checkpointing_needs_checkpointing(tiny_llama_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    args = SFTConfig(
        "x",
        gradient_checkpointing=False,
        gradient_checkpointing_kwargs={"selective": True},
        use_cpu=True,
        bf16=False,
    )
    with pytest.raises(RecipeError, match=r"selective: needs `train\.gradient_checkpointing: true`"):
        apply_sft_fields(model, args)
