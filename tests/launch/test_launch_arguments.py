"""A recipe's ``train`` section as TRL's arguments, and what is left to the machine: bfloat16, products, devices."""

import os
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainingArguments

from hf_efficient.errors import RecipeError, SetupError
from hf_efficient.facts import environment
from hf_efficient.launch import arguments
from hf_efficient.launch.arguments import (
    float32_remark,
    leave_bf16_off,
    one_device_remark,
    settle_compute_dtype,
    training_arguments,
)
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe
from tests.conftest import small_recipe

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="checks what a CPU is given")

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def recipe(objective="sft", early_stopping=None, **train) -> Recipe:
    evaluate = {"early_stopping": early_stopping}
    return small_recipe(objective=objective, evaluate=evaluate, output_dir="somewhere", train=train)


def test_the_fields_are_trls_own():
    args = training_arguments(recipe(learning_rate=3e-4, max_length=77, optim="paged_adamw_8bit"))
    assert type(args).__name__ == "SFTConfig"
    assert (args.learning_rate, args.max_length, args.optim) == (3e-4, 77, "paged_adamw_8bit")
    assert (args.output_dir, args.use_cpu, args.dataloader_pin_memory) == ("somewhere", True, False)
    assert type(training_arguments(recipe("dpo", beta=0.3))).__name__ == "DPOConfig"


def test_what_the_device_lacks_is_said():
    with pytest.raises(SetupError, match=r"train\.fp16: a CPU trains in float32 or bfloat16"):
        training_arguments(recipe(fp16=True, bf16=False))
    with pytest.raises(SetupError, match=r"train\.use_liger_kernel: .* need a GPU"):
        training_arguments(recipe(use_liger_kernel=True))
    flex = recipe().model.model_copy(update={"attn_implementation": "flex_attention"})
    with pytest.raises(SetupError, match=r"model\.attn_implementation: flex_attention has no backward on a CPU"):
        training_arguments(recipe().model_copy(update={"model": flex}))


def test_bf16_on_a_gpu_without_it_is_refused(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    with pytest.raises(SetupError, match=r"train\.bf16: Tesla T4 has no bfloat16; write `train\.fp16: true`"):
        training_arguments(recipe(bf16=True))


def test_on_a_gpu_the_host_does_not_wait_for_the_copy_of_a_batch(monkeypatch):
    def settled(**train):
        args = training_arguments(recipe(bf16=False, **train))
        return args.dataloader_pin_memory, args.accelerator_config.non_blocking

    assert settled() == (False, False)  # a CPU copies nothing
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert settled(use_cpu=False) == (True, True)
    assert settled(use_cpu=False, accelerator_config={"split_batches": False}) == (True, True)
    assert settled(use_cpu=False, accelerator_config={"non_blocking": False}) == (True, False)
    assert settled(use_cpu=False, dataloader_pin_memory=False) == (False, False)


def test_the_libraries_own_checks_become_recipe_errors():
    steps = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 6}
    with pytest.raises(RecipeError, match=r"t: train: .*saving steps to be a round multiple"):
        training_arguments(recipe(load_best_model_at_end=True, **steps))


def test_the_metric_of_the_best_model():
    stopping = {"patience": 1}
    assert training_arguments(recipe(early_stopping=stopping)).metric_for_best_model == "loss"
    named = training_arguments(recipe(early_stopping=stopping, metric_for_best_model="perplexity"))
    assert (named.metric_for_best_model, named.greater_is_better) == ("perplexity", False)
    assert training_arguments(recipe(metric_for_best_model="eval_perplexity")).greater_is_better is False
    assert training_arguments(recipe(metric_for_best_model="token_accuracy")).greater_is_better is True


@pytest.mark.parametrize("found", [0, 1, 8])
def test_a_step_takes_the_rows_that_the_recipe_says(monkeypatch, found):
    """Whatever number of GPUs one process sees; none is here, so what transformers finds is put in its place."""

    def devices(args):
        args._n_gpu = found
        return CPU

    monkeypatch.setattr(TrainingArguments, "_setup_devices", property(devices))
    args = training_arguments(recipe(per_device_train_batch_size=3))
    assert args.train_batch_size == 3
    assert args.n_gpu == min(found, 1)


def test_gpus_that_are_left_idle_are_named():
    alone = SimpleNamespace(world_size=1, device=GPU)
    assert one_device_remark(alone, 8).startswith("one process trains on the first of 8 GPUs; `hf-efficient train`")
    for processes, device, count in ((1, GPU, 1), (8, GPU, 8), (1, CPU, 8)):
        assert one_device_remark(SimpleNamespace(world_size=processes, device=device), count) is None


@pytest.fixture
def qlora(tmp_path):
    path = tmp_path / "recipe.yaml"
    text = "{name: a, model: {id: m}, adapter: {method: qlora}, data: {train: [{path: a.jsonl}]}, output_dir: out}"
    path.write_text(text)
    return lambda *overrides: load_recipe(path, list(overrides))


@pytest.fixture
def machine(monkeypatch):
    return lambda *, in_float32: monkeypatch.setattr(arguments, "cpu_is_faster_in_float32", lambda: in_float32)


def settled(given, device=CPU):
    return settle_compute_dtype(given, device).adapter.quantization.compute_dtype


def test_auto_is_what_the_device_multiplies_in(qlora, machine, monkeypatch):
    machine(in_float32=True)
    assert settled(qlora()) == "float32"
    for key in ("quantization.compute_dtype=bfloat16", "quantization.bits=8", "method=lora"):
        said = qlora(f"adapter.{key}")
        assert settle_compute_dtype(said, CPU) is said
    machine(in_float32=False)
    assert settled(qlora()) == "bfloat16"
    for has_bf16 in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, has=has_bf16: has)
        assert settled(qlora(), GPU) == ("bfloat16" if has_bf16 else "float16")


@pytest.mark.parametrize(
    ("in_float32", "said", "bf16"),
    [
        (True, [], False),
        (True, ["train.bf16=true"], True),
        (True, ["train.bf16=false"], False),
        (True, ["train.bf16=null"], False),
        (False, [], True),
    ],
)
def test_a_cpu_that_is_faster_in_float32_trains_without_bfloat16_where_the_recipe_is_silent(
    qlora, machine, monkeypatch, in_float32, said, bf16
):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no" if said else "bf16")  # the launcher's
    machine(in_float32=in_float32)
    args = training_arguments(qlora(*said))
    assert args.bf16 is bf16
    assert said or args.mixed_precision == ("bf16" if bf16 else "no")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    options = {"fp16": True}
    leave_bf16_off(options)  # float16 is left alone
    assert (options, os.environ["ACCELERATE_MIXED_PRECISION"]) == ({"fp16": True}, "fp16")


def test_the_remark_on_bfloat16_that_is_slower(qlora, machine):
    machine(in_float32=True)
    asked = qlora("train.bf16=true", "model.dtype=bfloat16", "adapter.quantization.compute_dtype=bfloat16")
    assert float32_remark(asked, CPU) == (
        "this CPU multiplies float32 faster than bfloat16: write train.bf16: false, model.dtype: float32, "
        "adapter.quantization.compute_dtype: auto"
    )
    assert float32_remark(settle_compute_dtype(qlora(), CPU), CPU) == ""
    assert float32_remark(asked, GPU) == ""
    machine(in_float32=False)
    assert float32_remark(asked, CPU) == ""


def test_emulation_is_read_off_the_machine(monkeypatch):
    plain = {"machine": "x86_64", "avx512": False, "amx": False}
    found = dict(plain)
    monkeypatch.setattr(environment.platform, "machine", lambda: found["machine"])
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: found["avx512"])
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: found["amx"])
    assert environment.cpu_emulates_bf16()
    for change in ({"avx512": True}, {"amx": True}, {"machine": "aarch64"}):  # torch knows nothing of ARM's
        found.update({**plain, **change})
        assert not environment.cpu_emulates_bf16()
