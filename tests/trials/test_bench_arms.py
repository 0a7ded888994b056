"""The arms: names, why one cannot run, the files of peers; and a planted peer, trained by its own `main`, that is found
out."""

import dataclasses
import json
import subprocess
import sys
from textwrap import dedent

import msgspec
import pytest
import yaml

from hf_efficient.errors import SetupError
from hf_efficient.recipe.load import change_recipe, load_recipe
from hf_efficient.records.bench import ArmRun, Work
from hf_efficient.trials import torchtune_arm
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
        ("trl=/bin/sh", "'trl' has no Python of its own here. It takes llamafactory, axolotl, torchtune"),
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
    assert why("unsloth", dataclasses.replace(CPU, device="cuda")) == "bench does not start Unsloth yet"
    assert "--peer-python torchtune=PYTHON" in why("torchtune")
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


@pytest.fixture
def llama(recipe, tmp_path):
    """A recipe on a Llama model's folder, with the fields that bench writes out."""
    model = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model |= {"vocab_size": 99, "num_hidden_layers": 2, "intermediate_size": 128, "rms_norm_eps": 1e-6}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({**model, "tie_word_embeddings": True}))
    (tmp_path / "model" / "model.safetensors").touch()
    said = {"optim": "adamw_torch_fused", "lr_scheduler_type": "linear", "warmup_steps": 0.3, "weight_decay": 0.0}
    said |= {"adam_beta1": 0.9, "adam_beta2": 0.99, "adam_epsilon": 1e-8, "max_grad_norm": 0.0, "seed": 7}
    changes = {"model.id": str(tmp_path / "model"), **{f"train.{name}": value for name, value in said.items()}}
    return change_recipe(recipe, changes)


def test_torchtunes_file_says_what_the_recipe_says(llama, tmp_path):
    found = yaml.safe_load(peer_settings("torchtune", llama, CPU, tmp_path))
    model = {"num_layers": 2, "embed_dim": 64, "rope_base": 10_000.0, "scale_factor": 1, "tie_word_embeddings": True}
    model |= {"lora_attn_modules": ["q_proj", "k_proj", "v_proj", "output_proj"], "apply_lora_to_mlp": True}
    model |= {"lora_rank": 4, "lora_dropout": 0.1, "quantize_base": False, "max_seq_len": 96}
    assert {key: found["model"][key] for key in model} == model
    assert found["checkpointer"]["checkpoint_files"] == ["model.safetensors"]
    rows = {"path": "/data/tokens.jsonl", "packed": True, "max_length": 96}
    assert found["dataset"] == {"_component_": "torchtune_arm.token_rows", **rows}
    assert found["lr_scheduler"] == {"_component_": "torchtune_arm.schedule", "name": "linear", "warm_up": 2}
    same = {"batch_size": 2, "gradient_accumulation_steps": 4, "max_steps_per_epoch": 6, "dtype": "fp32", "seed": 7}
    assert {key: found[key] for key in same} == same
    assert found["optimizer"]["betas"] == [0.9, 0.99]
    assert found["clip_grad_norm"] > 1e6  # so that a norm is logged, and nothing is clipped


@pytest.mark.parametrize(
    ("changes", "model", "told"),
    [
        ({}, {}, ""),
        ({"adapter.target_modules": ["q_proj", "up_proj"]}, {}, "a part of the MLP"),
        ({"adapter.target_modules": ["q_proj", "o_proj"]}, {}, ""),
        ({"adapter.target_modules": ".*_proj"}, {}, "names what its arm does not train"),
        ({"adapter.rslora": True}, {}, "no rsLoRA"),
        ({"train.optim": "adafactor"}, {}, "AdamW and the schedules"),
        ({"adapter.method": "qlora", "adapter.quantization": {"bits": 8}}, {}, "NF4 alone"),
        ({"adapter.method": "qlora", "adapter.quantization": {"bits": 4}}, {}, ""),
        ({"train.lr_scheduler_type": "polynomial"}, {}, "AdamW and the schedules"),
        ({"model.id": "org/name"}, {}, "download the model"),
        ({}, {"model_type": "qwen2"}, "Llama models alone"),
        ({}, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "Llama models alone"),
        (
            {},
            {
                "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
                | {"original_max_position_embeddings": 8192}
            },
            "",
        ),
    ],
)
def test_torchtune_trains_what_it_can_train_alike(llama, tmp_path, monkeypatch, changes, model, told):
    monkeypatch.setattr("hf_efficient.trials.arms._import_error", lambda python, package: "")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | model))
    found = obstacle(ARMS["torchtune"], CPU, change_recipe(llama, changes), {"torchtune": sys.executable})
    assert told in found
    assert bool(told) == bool(found)


PLANTED_TORCHTUNE = dedent("""
    import torch

    class LoRAFinetuneRecipeSingleDevice:
        def __init__(self, settings):
            self.weight = torch.nn.Parameter(torch.zeros(9, 9))

        def setup(self, settings):
            from torchtune_arm import schedule, token_rows
            self.rows = token_rows(None, settings["tokens"], False, 8)
            self.optimizer = torch.optim.SGD([self.weight], lr=0.5)
            self.schedule = schedule(self.optimizer, "linear", 2, 6)
            self.rates = []

        def _loss_step(self, batch):
            labels = batch.pop("labels")[:, 1:]
            return torch.nn.functional.cross_entropy(self.weight[batch["tokens"][:, :-1]].mT, labels)

        def train(self):
            for step in range(6):
                row = self.rows[step]
                tokens = torch.tensor([[*row["tokens"], 0]])
                labels = torch.tensor([[*row["labels"], -100]])
                loss = self._loss_step({"tokens": tokens, "labels": labels})
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_([self.weight], 1e9)
                self.rates.append(self.optimizer.param_groups[0]["lr"])
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
                self._metric_logger.log_dict({"loss": loss.item(), "grad_norm": norm}, step)
            print(self.rates)
""")


def test_torchtunes_recipe_is_measured(tmp_path):
    for name, text in (
        ("torchtune/__init__.py", ""),
        ("omegaconf.py", "import json\n\nclass OmegaConf:\n    load = lambda path: json.load(open(path))\n"),
        ("recipes/lora_finetune_single_device.py", PLANTED_TORCHTUNE),
        ("tokens.jsonl", '{"tokens": [5, 6, 7]}\n' * 6),
        ("config.json", json.dumps({"tokens": str(tmp_path / "tokens.jsonl")})),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, torchtune_arm.__file__, str(tmp_path / "config.json"), str(tmp_path / "result.json")]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0.0, 0.25, 0.5, 0.375, 0.25, 0.125]
    found = msgspec.convert(json.loads((tmp_path / "result.json").read_text())["result"], ArmRun)
    assert (found.non_padding, found.processed, len(found.seconds)) == ([3] * 6, [4] * 6, 6)
    assert why_not_learning(found) == ""


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
