"""``loss_type: chunked_nll`` trains and evaluates as ``nll`` does; the fields of SFTTrainer mean the same."""

import json

import pytest
import torch
from datasets import Dataset
from flop_counting import Counted
from live_models import DIMENSIONS
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
from tests.conftest import read_steps, small_recipe

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
NAMES = ("perplexity", "token_accuracy")
ALL_LINEAR = {"target_modules": "all-linear"}
WITH_HEAD = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}


class Gradients(TrainerCallback):
    """What every optimizer step is given."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        parameters = kwargs["model"].named_parameters()
        self.seen.append({name: one.grad.detach().clone() for name, one in parameters if one.grad is not None})


def tiny_model(family, dtype=torch.float32, adapter=None):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**DIMENSIONS, **FAMILIES[family]})
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
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
    own = {"max_steps": 4, "report_to": [], "disable_tqdm": True, "packing": packed, "gradient_checkpointing": False}
    options = {**TRAIN, **own, "prediction_loss_only": not metrics, **train}
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


def slow_but(fast, every):
    return [one if one in fast else pytest.param(one, marks=pytest.mark.slow) for one in every]


@pytest.mark.parametrize("family", slow_but(("llama", "gemma2"), FAMILIES))
def test_losses_and_gradients_are_those_of_the_whole_logits(family, tmp_path):
    whole, expected = trained(tiny_model(family), "nll", tmp_path)
    chunked, found = trained(tiny_model(family), CHUNKED_NLL, tmp_path, callbacks=[FusedHeadCheck()])
    assert (chunked.chunked_loss, whole.chunked_loss) == (True, False)
    assert len(losses(whole)) == 4
    assert losses(chunked) == pytest.approx(losses(whole), rel=1e-5)
    assert len(found) == len(expected) == 4
    assert max(furthest(one, other) for one, other in zip(expected, found, strict=True)) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "way"), [("llama", "weights"), ("qwen2", "autocast"), ("gemma", "weights"), ("mistral", "autocast")]
)
def test_in_bfloat16_they_differ_by_its_rounding(family, way, tmp_path):
    def run(loss_type):
        dtype = torch.bfloat16 if way == "weights" else torch.float32
        return trained(tiny_model(family, dtype), loss_type, tmp_path, bf16=way == "autocast")

    (whole, expected), (chunked, found) = run("nll"), run(CHUNKED_NLL)
    assert losses(chunked) == pytest.approx(losses(whole), rel=5e-3)
    assert furthest(expected[0], found[0]) < 0.05


@pytest.mark.parametrize(
    ("adapter", "packed", "checkpointing"),
    [(ALL_LINEAR, True, True), (ALL_LINEAR, False, False), (WITH_HEAD, False, True)],
)
def test_an_adapter_learns_the_same(adapter, packed, checkpointing, tmp_path):
    def run(loss_type):
        model = tiny_model("llama", adapter=adapter)
        if checkpointing:
            model.enable_input_require_grads()
        return trained(model, loss_type, tmp_path, packed=packed, gradient_checkpointing=checkpointing)

    (whole, expected), (chunked, found) = run("nll"), run(CHUNKED_NLL)
    assert losses(chunked) == pytest.approx(losses(whole), rel=1e-5)
    assert all("lora_" in name or "lm_head" in name for name in found[0])
    assert all(gradient.norm() > 0 for name, gradient in found[-1].items() if "lm_head" in name)
    assert furthest(expected[-1], found[-1]) < 1e-4


@pytest.mark.parametrize(("packed", "metrics"), [(False, NAMES), (True, NAMES), (True, ())])
def test_an_evaluation_finds_the_same_without_logits(packed, metrics, tmp_path):
    shapes = []

    def evaluated(loss_type):
        trainer, _ = trained(tiny_model("llama"), loss_type, tmp_path, packed=packed, metrics=metrics)
        hook = trainer.model.lm_head.register_forward_hook(lambda module, args, output: shapes.append(output.shape))
        found = trainer.evaluate()
        hook.remove()
        return {name: value for name, value in found.items() if not name.endswith(("time", "second"))}

    found = evaluated(CHUNKED_NLL)
    assert shapes == []  # the metrics come from the fused head, not from a second forward
    expected = evaluated("nll")
    assert shapes
    assert set(found) >= {"eval_loss", *(f"eval_{name}" for name in metrics)}
    assert found == pytest.approx(expected, rel=1e-5)


def test_whoever_wants_logits_gets_them(tmp_path):
    trainer, _ = trained(tiny_model("llama"), CHUNKED_NLL, tmp_path)
    trainer.preprocess_logits_for_metrics = None
    trainer.args.prediction_loss_only = False
    assert trainer.predict(rows(6)).predictions.shape == (6, 16, 96)


@pytest.mark.parametrize(("packed", "adapter"), [(False, ALL_LINEAR), (True, None)])
def test_its_flops_are_those_that_torch_counts(packed, adapter, tmp_path):
    model = tiny_model("llama", adapter=adapter)
    getattr(model, "get_base_model", lambda: model)().set_attn_implementation("eager")
    counted = Counted()
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


def test_generation_is_what_it_was():
    model = tiny_model("llama").eval()
    ids = torch.tensor([[3, 4, 5]])
    before = model.generate(ids, max_new_tokens=8, do_sample=False)
    fuse_head(model)
    assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False), before)


def test_a_head_that_cannot_be_fused_is_refused(tmp_path):
    model = tiny_model("llama", adapter={"target_modules": ["q_proj", "lm_head"]})
    with pytest.raises(ModelError, match=r"train\.loss_type: chunked_nll reads the weight of lm_head"):
        trained(model, CHUNKED_NLL, tmp_path)
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


def test_dft_weighs_each_token_by_its_probability():
    # Two positions count: probabilities 1/2 and 1/4 over a vocabulary of 4, by hand.
    class Outputs:
        logits = torch.log(torch.tensor([[[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25], [1.0, 1, 1, 1]]]))

    labels, masked = torch.tensor([[3, 0, 2]]), torch.tensor([[3, 0, -100]])
    expected = (0.5 * 0.693147 + 0.25 * 1.386294) / 2
    assert dft_loss(Outputs(), labels).item() == pytest.approx(expected, rel=1e-5)
    assert dft_loss(Outputs(), labels, num_items_in_batch=4).item() == pytest.approx(expected / 2, rel=1e-5)
    assert dft_loss(Outputs(), masked).item() == pytest.approx(0.5 * 0.693147, rel=1e-5)


TRAIN = {
    "max_steps": 3, "max_length": 64, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
    "learning_rate": 1e-3, "logging_steps": 1, "bf16": False, "use_cpu": True, "save_strategy": "no",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "train", [{"loss_type": "dft"}, {"gradient_checkpointing_kwargs": {"selective": True}}, {"packing": True}]
)
def test_the_losses_are_sft_trainers(train, tiny_llama_dir, chats_jsonl, tmp_path):
    sections = {"model": {"id": str(tiny_llama_dir)}, "adapter": {"method": "full"}, "train": {**TRAIN, **train}}
    data = {"train": [{"path": str(chats_jsonl)}], "targets": "all"}
    run_recipe(small_recipe(**sections, data=data, output_dir=str(tmp_path / "ours")))
    state = json.loads((tmp_path / "ours" / "trainer_state.json").read_text())
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny_llama_dir),
        args=SFTConfig(str(tmp_path / "theirs"), report_to="none", **{**TRAIN, **train}),
        train_dataset=Dataset.from_list([json.loads(line) for line in chats_jsonl.read_text().splitlines()]),
        processing_class=AutoTokenizer.from_pretrained(tiny_llama_dir),
    )
    trainer.train()
    assert len(losses(trainer)) == 3
    ours = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert ours == pytest.approx(losses(trainer), rel=1e-5)


@pytest.mark.parametrize(("coefficient", "enabled", "kept"), [(0.5, True, 0.5), (0, False, 0.0), (None, True, 0.001)])
def test_the_router_loss_is_the_models_own(coefficient, enabled, kept):
    sizes = {**DIMENSIONS, "num_local_experts": 2, "router_aux_loss_coef": 0.001}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("mixtral", **sizes))
    apply_sft_fields(model, SFTConfig("x", router_aux_loss_coef=coefficient, use_cpu=True, bf16=False))
    assert model.config.output_router_logits is enabled
    assert model.config.router_aux_loss_coef == kept


def test_a_field_that_does_not_fit_is_named():
    for train, said in (
        ({"router_aux_loss_coef": 0.1}, "the model has no experts"),
        (
            {"gradient_checkpointing": False, "gradient_checkpointing_kwargs": {"selective": True}},
            r"selective: needs `train\.gradient_checkpointing: true`",
        ),
    ):
        with pytest.raises(RecipeError, match=said):
            apply_sft_fields(tiny_model("llama"), SFTConfig("x", use_cpu=True, bf16=False, **train))
