"""The arms: names, why one cannot run, the files of peers; and a planted peer, trained by its own `main`, that is found
out."""

import dataclasses
import json
import sys
from textwrap import dedent

import msgspec
import pytest
import yaml

from hf_efficient.errors import SetupError
from hf_efficient.recipe.load import load_recipe
from hf_efficient.records.bench import ArmRun, Work
from hf_efficient.trials.arms import ARMS, named_arms, obstacle, peer_pythons, peer_settings
from hf_efficient.trials.bench import why_not_learning

CPU = Work("r.json", "/data/rows.jsonl", "messages", 3, 2, 4, 96, 67.0, "cpu", "CPU", "tiny")


@pytest.fixture
def recipe(tiny_recipe_file):
    return load_recipe(
        tiny_recipe_file, ["train.packing=true", "train.max_steps=6", "train.gradient_checkpointing=false"]
    )


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["trl", "axolot"], "'axolot' is no arm. Did you mean axolotl? The arms are trl, trl_packed, bare"),
        (["loop"], "'loop' is no arm. The arms are trl, trl_packed, bare"),
        (["trl", "trl"], "trl is named twice"),
    ],
)
def test_wrong_names_are_refused(names, told):
    with pytest.raises(SetupError, match=f"--against: {told}".replace("?", r"\?")):
        named_arms(names, "--against")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("llamafactory", "names no Python"),
        ("trl=/bin/sh", "'trl' has no Python of its own here. It takes llamafactory and axolotl"),
        ("unsloth=/bin/sh", "has no Python of its own"),
        ("axolotl=/no/such/python", "/no/such/python is no file"),
    ],
)
def test_wrong_pythons_are_refused(given, told):
    with pytest.raises(SetupError, match=told):
        peer_pythons([given])


def test_a_peer_that_cannot_run_says_why(recipe):
    def why(name, work=CPU, recipe=recipe, **pythons):
        return obstacle(ARMS[name], work, recipe, pythons)

    assert why("trl") == ""
    assert "--peer-python axolotl=PYTHON" in why("axolotl")
    assert why("unsloth") == "needs a GPU, and this machine has none"
    assert why("torchtune", dataclasses.replace(CPU, device="cuda")) == "bench does not start torchtune yet"
    assert "cannot import llamafactory" in why("llamafactory", llamafactory=sys.executable)


def test_the_files_of_peers_say_what_the_recipe_says(recipe, tmp_path):
    found = yaml.safe_load(peer_settings("llamafactory", recipe, CPU, tmp_path))
    same = {"lora_rank": 4, "lora_dropout": 0.1, "lora_target": "all", "learning_rate": 0.01, "max_steps": 6}
    same |= {"packing": True, "neat_packing": True, "cutoff_len": 96, "per_device_train_batch_size": 2, "bf16": False}
    same |= {"gradient_accumulation_steps": 4, "disable_gradient_checkpointing": True, "train_on_prompt": True}
    assert {key: found[key] for key in same} == same
    (rows,) = json.loads((tmp_path / found["dataset"]).with_name("dataset_info.json").read_text()).values()
    assert rows["file_name"] == CPU.rows
    found = yaml.safe_load(peer_settings("axolotl", recipe, CPU, tmp_path))
    same = {"adapter": "lora", "lora_r": 4, "lora_target_linear": True, "sequence_len": 96, "micro_batch_size": 2}
    same |= {"sample_packing": True, "train_on_inputs": True, "float32": True, "gradient_accumulation_steps": 4}
    same |= {"attn_implementation": "sdpa", "lora_qkv_kernel": False}
    assert {key: found[key] for key in same} == same
    assert "load_in_4bit" not in found


PLANTED = dedent("""
    import sys
    import yaml

    def main():
        import torch
        from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

        settings = yaml.safe_load(open(sys.argv[-1]))
        model = AutoModelForCausalLM.from_pretrained(settings["model_name_or_path"])
        rows = [{"input_ids": torch.tensor([5, 6, 7, 0]), "attention_mask": torch.tensor([1, 1, 1, 0])}] * 40

        class Fast(Trainer):
            def compute_loss(self, model, inputs, **kwargs):
                return FACTOR * model(**inputs, labels=inputs["input_ids"]).loss

        args = TrainingArguments(
            settings["output_dir"], max_steps=6, logging_steps=1, report_to=[], save_strategy="no", use_cpu=True,
            per_device_train_batch_size=2, gradient_accumulation_steps=2, disable_tqdm=True, learning_rate=1e-3,
        )
        Fast(model, args, train_dataset=rows).train()
""")


@pytest.mark.parametrize(("factor", "told"), [("1.0", ""), ("0.0", "does not learn: the gradient norm of step 1 is 0")])
def test_a_peer_without_gradients_is_found_out(recipe, tmp_path, monkeypatch, factor, told):
    from transformers import Trainer, trainer

    from hf_efficient.trials import meter

    package = tmp_path / "llamafactory"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cli.py").write_text(PLANTED.replace("FACTOR", factor))
    config, figures = tmp_path / "peer.yaml", tmp_path / "figures.json"
    config.write_text(peer_settings("llamafactory", recipe, CPU, tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("llamafactory", "llamafactory.cli"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(Trainer, "training_step", Trainer.training_step)  # and back, after the test
    monkeypatch.setattr(trainer, "DEFAULT_CALLBACKS", list(trainer.DEFAULT_CALLBACKS))
    monkeypatch.setattr(sys, "argv", ["meter.py", "llamafactory", str(config), str(figures)])
    meter.main()
    found = msgspec.convert(json.loads(figures.read_text())["result"], ArmRun)
    assert (found.non_padding, found.processed) == ([12] * 6, [16] * 6)  # 2 x 2 rows of 3 tokens and one of padding
    assert len(found.seconds) == 6
    assert why_not_learning(found) == told
