import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from hf_efficient.cli.app import main
from hf_efficient.errors import ModelError, OutputError
from hf_efficient.launch import merge as merge_module
from hf_efficient.launch.merge import merge_run, recipe_of_run, relative_difference, written_whole
from hf_efficient.launch.output import write_resolved_recipe
from hf_efficient.launch.trained import find_source
from hf_efficient.model.four_bit_experts import adapt_experts, experts_are_packed
from hf_efficient.recipe.schema import Recipe

IDS = torch.tensor([[5, 80, 33, 120, 7, 61, 200, 42]])


def load(folder, quantization=None):
    with experts_are_packed():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=quantization)
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits.float()


def write_recipe(run_dir, base, *, quantization=None, **adapter):
    model = {"id": str(base), "dtype": "float32", "attn_implementation": "flash_attention_2"}
    section = {"method": "qlora" if quantization else "lora", "quantization": quantization, **adapter}
    data = {"train": [{"path": "chats.jsonl"}]}
    recipe = Recipe(name="tiny", model=model, adapter=section, data=data, output_dir=str(run_dir))
    path = run_dir / "efficiency" / "recipe.resolved.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump({"recipe": recipe.resolved(), "provenance": {}, "environment": {}}))


def train(base, run_dir, quantization=None, recipe_quantization=None, recipe=True, **lora):
    """An adapter with weights that matter (three large steps), saved as a run saves it; its logits."""
    torch.manual_seed(0)
    lora = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", **lora}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(load(base, quantization=quantization), LoraConfig(task_type="CAUSAL_LM", **lora)).train()
        adapt_experts(model)
        optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=3.0)
        for _ in range(3):
            model(input_ids=IDS, labels=IDS).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.save_pretrained(run_dir)
    if recipe:
        write_recipe(run_dir, base, quantization=recipe_quantization)
    return logits(model)


def like(logits_of, trained):
    """Whether the model in a folder has the logits of the one that was trained."""
    return torch.allclose(logits(load(logits_of)), trained, rtol=1e-4, atol=1e-5)


NF4 = {"bits": 4, "type": "nf4", "double_quant": True, "compute_dtype": "float32"}
AS_NF4 = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.float32
)


@pytest.fixture
def qlora_run(tiny_llama_dir, tmp_path):
    return tmp_path / "run", train(tiny_llama_dir, tmp_path / "run", AS_NF4, NF4)


@pytest.fixture
def tied_base(tiny_llama_dir, tmp_path):
    """A model whose head is its embedding."""
    torch.manual_seed(1)
    config = LlamaConfig.from_pretrained(tiny_llama_dir, tie_word_embeddings=True)
    folder = tmp_path / "tied"
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_llama_dir).save_pretrained(folder)
    return folder


def saved(folder):
    return sorted(path.name for path in Path(folder).iterdir())


ADAPTERS = {
    "plain": {},
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True},
    "modules_to_save": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "bias": {"bias": "all"},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_plain_transformers_loads_the_model_that_was_trained(tiny_llama_dir, tied_base, tmp_path, kind):
    lora, base = ADAPTERS[kind], tiny_llama_dir if kind in ("dora", "bias") else tied_base
    trained = train(base, tmp_path / "run", **lora)
    assert relative_difference(logits(load(base)), trained) > 1e-2  # training did something
    report = merge_run(tmp_path / "run")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "merged", dtype="auto")
    assert torch.allclose(logits(merged), trained, rtol=1e-4, atol=1e-5)
    assert merged.dtype == torch.float32
    assert (report.output, report.base) == (tmp_path / "run" / "merged", "dense")
    assert (report.dtype, report.tolerance) == ("float32", 1e-4)
    assert report.relative_difference < 1e-5
    assert report.adapter_effect > 1e-2


@pytest.mark.parametrize(("more", "tied"), [({}, True), ({"modules_to_save": ["lm_head"]}, False)])
def test_head_and_embedding_stay_tied_where_the_adapter_left_them_so(tied_base, tmp_path, more, tied):
    train(tied_base, tmp_path / "run", **more)
    folder = merge_run(tmp_path / "run").output
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert ("lm_head.weight" not in file.keys()) is tied  # noqa: SIM118 (it is no mapping)
    model = load(folder)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is tied


def test_adapter_on_a_tied_head_leaves_the_embedding_alone(tied_base, tmp_path):
    trained = train(tied_base, tmp_path / "run", target_modules=["lm_head"])
    merged = merge_run(tmp_path / "run").output
    assert like(merged, trained)
    assert torch.equal(load(merged).model.embed_tokens.weight, load(tied_base).model.embed_tokens.weight)


def test_qlora_is_merged_into_the_weights_it_was_trained_beside(qlora_run, tiny_llama_dir):
    run_dir, trained = qlora_run
    report = merge_run(run_dir)
    assert like(run_dir / "merged", trained)
    assert report.base == "dequantized"
    assert report.relative_difference < 1e-5
    assert "quantization_config" not in json.loads((run_dir / "merged" / "config.json").read_text())
    assert not [path for path in run_dir.rglob("*") if path.name.startswith(".merging")]
    assert merge_run(run_dir, run_dir / "dense", base="dense").base == "dense"  # which is another model
    assert like(run_dir / "dense", logits(PeftModel.from_pretrained(load(tiny_llama_dir), run_dir)))
    assert relative_difference(logits(load(run_dir / "dense")), trained) > 5e-3  # fifty times what the other way leaves


def test_experts_in_four_bits_are_merged(tiny_llama_dir, tmp_path):
    torch.manual_seed(2)
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 1}
    llama = LlamaConfig.from_pretrained(tiny_llama_dir).to_dict()
    base = tmp_path / "mixture"
    MixtralForCausalLM(MixtralConfig(**{**llama, "architectures": None, **sizes})).save_pretrained(base)
    AutoTokenizer.from_pretrained(tiny_llama_dir).save_pretrained(base)
    trained = train(base, tmp_path / "run", AS_NF4, NF4)
    report = merge_run(tmp_path / "run")
    assert like(report.output, trained)
    assert (report.base, report.relative_difference < 1e-5) == ("dequantized", True)
    assert relative_difference(logits(load(base, AS_NF4)), trained) > 1e-2  # training did something


def test_eight_bit(tiny_llama_dir, tmp_path):
    trained = train(tiny_llama_dir, tmp_path / "run", BitsAndBytesConfig(load_in_8bit=True), {"bits": 8})
    report = merge_run(tmp_path / "run")
    assert (report.base, report.tolerance) == ("dequantized", 1e-4)
    assert report.relative_difference < 1e-5
    assert "quantization_config" not in json.loads((report.output / "config.json").read_text())
    # Activations were rounded to 8 bits in training, and no longer are.
    assert relative_difference(logits(load(report.output)), trained) < 3e-2


def test_relative_difference():
    # ||(0.3, 0.4)|| / ||(3, 4)|| = 0.5 / 5
    assert relative_difference(torch.tensor([3.3, 4.4]), torch.tensor([3.0, 4.0])) == pytest.approx(0.1)


def test_adapter_without_a_recipe(tiny_llama_dir, tmp_path):
    trained = train(tiny_llama_dir, tmp_path / "run", recipe=False)
    merge_run(tmp_path / "run", tmp_path / "elsewhere" / "out")
    assert like(tmp_path / "elsewhere" / "out", trained)
    assert " ".join(saved(tmp_path / "elsewhere" / "out")) == (
        "chat_template.jinja config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json"
    )


def test_checkpoint_of_a_run(qlora_run):
    run_dir, trained = qlora_run
    checkpoint = run_dir / "checkpoint-3"
    checkpoint.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (run_dir / name).rename(checkpoint / name)
    with pytest.raises(ModelError) as error:
        merge_run(run_dir)
    assert str(error.value) == (
        f"{run_dir} holds no adapter, which a run saves at its end; its checkpoints do. "
        f"Write one that is whole: {checkpoint}."
    )
    assert merge_run(checkpoint).base == "dequantized"
    assert like(checkpoint / "merged", trained)


def test_mismatch_is_an_error_and_leaves_nothing(qlora_run, monkeypatch):
    run_dir, _ = qlora_run
    original = merge_module.merge_into

    def broken(base, source):
        model = original(base, source)
        with torch.no_grad():
            model.model.norm.weight[0] *= 1.5
        return model

    monkeypatch.setattr(merge_module, "merge_into", broken)
    with pytest.raises(ModelError, match=r"the merged model's logits differ from the unmerged model's by \d\.\de-0\d "):
        merge_run(run_dir)
    assert saved(run_dir) == ["README.md", "adapter_config.json", "adapter_model.safetensors", "efficiency"]


DAMAGED = "It was damaged, or copied in part: copy the folder again, or write one of the run's checkpoints."


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-100])


def without_kind(path):
    config = json.loads(path.read_text())
    del config["peft_type"]
    path.write_text(json.dumps(config))


WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def test_a_damaged_adapter_is_named_before_the_base_is_loaded(tiny_llama_dir, tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    train(tiny_llama_dir, run_dir)
    monkeypatch.setattr(merge_module, "load_unmerged", None)
    for file, damage, message in (
        (WEIGHTS, cut_off, "{path} cannot be read: Error while deserializing header: "),
        (WEIGHTS, Path.unlink, "{folder} holds adapter_config.json but no adapter_model.safetensors"),
        (CONFIG, without_kind, "{path} cannot be read: "),
        (CONFIG, cut_off, "{path} cannot be read: "),
    ):
        damage(run_dir / file)
        with pytest.raises(ModelError) as error:
            merge_run(run_dir)
        assert str(error.value).startswith(message.format(path=run_dir / file, folder=run_dir))
        assert str(error.value).endswith(DAMAGED)


def test_what_is_no_adapter_of_a_run(qlora_run, tiny_llama_dir, tmp_path):
    run_dir, _ = qlora_run
    whole = "holds no adapter but a whole model (a full fine-tune, or an earlier merge): there is nothing"
    none = "holds no adapter (no adapter_config.json). Write the output directory of a LoRA or QLoRA run."
    absent = "nowhere does not exist. Write the output directory of a run."
    for folder, told in ((tiny_llama_dir, whole), (tmp_path / "nowhere", absent), (tmp_path, none)):
        with pytest.raises(ModelError, match=re.escape(told)):
            merge_run(folder)
    with pytest.raises(ModelError, match="--dtype: 'bf16' is not one of float32, float16, bfloat16"):
        merge_run(run_dir, dtype="bf16")
    recipe = run_dir / "efficiency" / "recipe.resolved.yaml"
    other = tmp_path / "other"
    LlamaForCausalLM(LlamaConfig.from_pretrained(tiny_llama_dir, hidden_size=64)).save_pretrained(other)
    AutoTokenizer.from_pretrained(tiny_llama_dir).save_pretrained(other)
    recipe.write_text(recipe.read_text().replace(str(tiny_llama_dir), str(other)))
    with pytest.raises(ModelError, match=f"the adapter in {run_dir} does not fit its base {other}: "):
        merge_run(run_dir)
    recipe.write_text("recipe: {name: x}")
    with pytest.raises(ModelError, match="is not a resolved recipe of this version of hf_efficient: "):
        merge_run(run_dir)
    recipe.unlink()
    with pytest.raises(ModelError, match=r"was saved without the recipe of its run\. Write --base dense\."):
        merge_run(run_dir, base="dequantized")
    config = run_dir / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "/no/such/model"}))
    with pytest.raises(ModelError, match="/no/such/model does not exist"):
        merge_run(run_dir)


def test_code_of_a_run_s_model_runs_only_where_the_command_line_says_so(tmp_path):
    """The run may be somebody else's; for merge, eval, chat, generate and export."""
    model = {"id": "m", "trust_remote_code": True}
    held = Recipe(name="t", model=model, data={"train": [{"path": "x"}]}, output_dir=str(tmp_path))
    write_resolved_recipe(tmp_path, held, {})
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "m"}')
    save_file({"w": np.zeros(1, np.float32)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "full" / "efficiency").mkdir(parents=True)
    shutil.copy(tmp_path / "efficiency/recipe.resolved.yaml", tmp_path / "full/efficiency")
    for refused in (
        lambda: merge_run(tmp_path),
        lambda: find_source(str(tmp_path)),
        lambda: recipe_of_run(tmp_path / "full"),
    ):
        with pytest.raises(
            ModelError, match=r"trust_remote_code: true, by which loading m runs .*--trust-remote-code\."
        ):
            refused()
    assert find_source(str(tmp_path), trust_remote_code=True).model.trust_remote_code


def test_output_that_is_occupied(qlora_run, tmp_path):
    run_dir, _ = qlora_run
    mine = tmp_path / "out" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    for output, told in (
        (mine.parent, f"--output: {mine.parent} is not empty. Write another folder, or empty it first."),
        (mine, "is a file. Write a folder"),
        (mine / "merged", "cannot be written"),
    ):
        with pytest.raises(OutputError, match=re.escape(told)):
            merge_run(run_dir, output)
    assert mine.read_text() == "mine"


def test_a_disk_that_refuses_is_named_and_nothing_is_left(tmp_path):
    with pytest.raises(OutputError) as error, written_whole(tmp_path / "merged"):
        raise OSError(30, "Read-only file system")
    assert str(error.value) == f"--output: {tmp_path / 'merged'} cannot be written: Read-only file system."
    assert saved(tmp_path) == []


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        Exception("No space left on device (os error 28)"),
        OSError("13369344 requested and 12134400 written"),
    ],
)
def test_a_full_disk_has_one_sentence_whatever_a_library_says(error, tmp_path):
    """As safetensors, tokenizers and NumPy have it."""

    def fail_half_way(error):
        with written_whole(tmp_path / "exports" / "merged") as folder:
            (folder / "half").write_text("half")
            raise error

    with pytest.raises(OutputError, match="no space is left there") as told:
        fail_half_way(error)
    assert told.value.__cause__ is error
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Exception, match="another kind"):
        fail_half_way(Exception("another kind"))


def test_sigterm_leaves_nothing_half_written(tmp_path):
    def write():
        with written_whole(tmp_path / "merged") as folder:
            (folder / "half").write_text("half")
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a run in this process may have left its own
    try:
        with pytest.raises(SystemExit) as ended:
            write()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_after_an_hour(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    pids = {"left": ended.pid, "young": ended.pid, "alive": os.getppid()}
    found = {name: tmp_path / f".out@{socket.gethostname()}@{pid}@{name}" for name, pid in pids.items()}
    for name, one in found.items():
        (one / "out").mkdir(parents=True)
        os.utime(one, times=None if name == "young" else (0, 0))
    with written_whole(tmp_path / "out") as folder:
        assert [name for name, one in found.items() if one.exists()] == ["young", "alive"]
        (folder / "model").write_text("whole")
    assert sorted(tmp_path.iterdir()) == sorted([found["alive"], found["young"], tmp_path / "out"])
    assert (tmp_path / "out" / "model").read_text() == "whole"


def test_command_prints_json(qlora_run, tmp_path, capsys):
    run_dir, _ = qlora_run
    flags = ["--output", str(tmp_path / "out"), "--base", "dense", "--dtype", "bfloat16", "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["merge", str(run_dir), *flags])
    report = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert 0 < report.pop("relative_difference") < 0.1
    assert report.pop("adapter_effect") > 0.01
    parameters = sum(parameter.numel() for parameter in load(tmp_path / "out").parameters())
    told = {"output": str(tmp_path / "out"), "base": "dense", "dtype": "bfloat16", "tolerance": 0.1}
    assert report == {**told, "parameters": parameters}
