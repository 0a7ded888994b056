"""Files of TRL and Axolotl as recipes: every key is in the recipe or in the list, and the recipe validates."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_efficient.errors import RecipeError
from hf_efficient.recipe.conversion.convert import convert_file
from hf_efficient.recipe.load import check_text
from hf_efficient.recipe.train_fields import train_fields

TRL = """\
model_name_or_path: Qwen/Qwen2-0.5B
dataset_name: trl-lib/Capybara
learning_rate: 2e-4
packing: yes
max_seq_length: 1024
warmup_ratio: 0.03
per_device_train_batch_size: 2
eval_strategy: steps
use_peft: true
lora_r: 32
load_in_4bit: true
output_dir: out
"""
AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3-8B
model_type: AutoModelForCausalLM
load_in_4bit: true
adapter: qlora
datasets:
  - {path: a/chats, type: chat_template, field_messages: conversations}
  - {path: json, data_files: x.jsonl, type: {field_instruction: q, field_output: a, format: "{instruction}"}}
val_set_size: 0.05
sequence_len: 4096
sample_packing: true
lora_target_linear: true
micro_batch_size: 2
batch_size: 16
num_epochs: 2
optimizer: paged_adamw_32bit
lr_scheduler: rex
learning_rate: "0.0002"
evals_per_epoch: 4
saves_per_epoch: 1
bf16: auto
flash_attention: true
special_tokens: {pad_token: <|end_of_text|>, bos_token: <s>}
wandb_project:
wibble: 3
"""


@pytest.fixture
def convert(tmp_path):
    def converted(text: str, tool=None):
        path = tmp_path / "source.yaml"
        path.write_text(text, encoding="utf-8")
        text, notes = convert_file(path, tool, "r")
        return check_text(text, "r.yaml"), SimpleNamespace(text=text, notes=notes)

    return converted


def test_trl(convert):
    recipe, found = convert(TRL)
    assert (recipe.objective, recipe.name) == ("sft", "r")
    assert (recipe.model.id, recipe.model.dtype) == ("Qwen/Qwen2-0.5B", "float32")
    held = recipe.adapter
    assert (held.method, held.r, held.alpha, held.dropout) == ("qlora", 32, 32, 0.05)
    assert (held.quantization.double_quant, held.quantization.compute_dtype) == (False, "float32")
    assert [(one.path, one.split) for one in (*recipe.data.train, *recipe.data.eval)] == [
        ("trl-lib/Capybara", "train"),
        ("trl-lib/Capybara", "test"),
    ]
    train = {"learning_rate": 2e-4, "packing": True, "max_length": 1024, "warmup_steps": 0.03}
    train |= {"per_device_train_batch_size": 2, "eval_strategy": "steps", "assistant_only_loss": False}
    assert recipe.train == train
    assert [line.partition(":")[0] for line in found.notes] == ["otherwise"]


def test_trl_for_preferences_with_a_mixture(convert):
    recipe, found = convert(
        "model_name_or_path: m\nbeta: 0.2\ntest_split_size: 0.1\n"
        "fsdp: full_shard\nfsdp_config: {offload_params: true}\n"
        "datasets: [{path: json, data_files: a.jsonl, fraction: 0.5}, b/c]\nuse_peft: no\n"
    )
    assert (recipe.objective, recipe.adapter.method, recipe.train["beta"]) == ("dpo", "full", 0.2)
    assert [(one.path, one.weight) for one in recipe.data.train] == [("a.jsonl", 0.5), ("b/c", 1.0)]
    assert (recipe.data.eval_fraction, recipe.distributed.strategy) == (0.1, "fsdp2")
    assert recipe.distributed.offload.parameters
    assert found.notes == []


def test_axolotl(convert):
    recipe, found = convert(AXOLOTL)
    assert recipe.model.dtype == "bfloat16"
    assert recipe.model.attn_implementation == "flash_attention_2"
    assert (recipe.adapter.method, recipe.adapter.target_modules, recipe.adapter.r) == ("qlora", "all-linear", 8)
    sources = [(one.path, one.format, one.columns) for one in recipe.data.train]
    assert sources == [("a/chats", "sharegpt", {}), ("x.jsonl", "alpaca", {"instruction": "q", "output": "a"})]
    assert (recipe.data.eval_fraction, recipe.data.overlong) == (0.05, "drop")
    wanted = {
        "gradient_accumulation_steps": 8, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2,
        "num_train_epochs": 2, "learning_rate": 0.0002, "optim": "paged_adamw_32bit", "lr_scheduler_type": "cosine",
        "eval_strategy": "steps", "eval_steps": 0.125, "save_strategy": "epoch", "warmup_steps": 0.03,
        "packing": True, "pad_token": "<|end_of_text|>", "gradient_checkpointing": False,
    }  # fmt: skip
    assert wanted.items() <= recipe.train.items()
    assert recipe.data.targets == "assistant"
    assert [line.split(": ")[1] for line in found.notes if line.startswith("not mapped")] == [
        "datasets.1.type.format",
        "special_tokens.bos_token",
        "lr_scheduler",
        "wibble",
    ]
    assert "# Not needed: model_type." in found.text
    assert "wandb_project" not in found.text


def test_no_key_of_trl_is_lost(convert):
    """Every field of its configuration, with its default where YAML can write it, is a value or a note."""
    for name, field in train_fields("sft").items():
        if field.default is None or name == "output_dir":
            continue
        recipe, found = convert(f"model_name_or_path: m\ndataset_name: d/e\n{name}: {field.default!r}\n", "trl")
        elsewhere = name == "trust_remote_code" or name.startswith("fsdp") or name == "deepspeed"
        assert name in recipe.train or elsewhere or any(name in line for line in found.notes), name


OTHER_KEYS = """\
revision_of_model: main | tokenizer_config: other/model | trust_remote_code: true | load_in_8bit: true | lora_alpha: 7
lora_dropout: 0.3 | lora_modules_to_save: [embed_tokens] | lora_model_dir: x | loraplus_lr_ratio: 4
peft_use_dora: true | peft_use_rslora: true | peft_init_lora_weights: pissa | dataset_prepared_path: p
dataset_processes: 3 | test_datasets: [{path: e/f}] | val_set_size: 0.2 | train_on_inputs: true
chat_template: chatml | chat_template_jinja: my.jinja | default_system_message: s | excess_length_strategy: truncate
sequence_len: 1024 | sample_packing: true | pad_to_sequence_len: true | gradient_accumulation_steps: 3
eval_batch_size: 5 | num_epochs: 3 | max_steps: 9 | optimizer: lion_8bit | lr_scheduler: linear
cosine_min_lr_ratio: 0.1 | warmup_steps: 3 | warmup_ratio: 0.5 | weight_decay: 0.1 | max_grad_norm: 2.0
adam_beta2: 0.9 | group_by_length: true | bf16: false | fp16: true | bfloat16: true | tf32: true
gradient_checkpointing: unsloth | flash_attention: true | sdp_attention: true | xformers_attention: true
neftune_noise_alpha: 5 | evals_per_epoch: 2 | saves_per_epoch: 3 | save_steps: 10 | save_total_limit: 1
logging_steps: 4 | early_stopping_patience: 2 | load_best_model_at_end: true | auto_resume_from_checkpoints: true
resume_from_checkpoint: c | deepspeed: ds/zero2.json | fsdp: [full_shard]
fsdp_config: {state_dict_type: SHARDED_STATE_DICT} | seed: 3 | special_tokens: {unk_token: u} | tokens: [t]
wandb_project: w | hub_model_id: h | use_tensorboard: true | plugins: [axolotl.integrations.liger.LigerPlugin]
lora_qkv_kernel: true | local_rank: 0 | output_dir: o | pretraining_dataset: [{path: g/h, text_column: body}]
never_heard_of: 1
"""


@pytest.mark.parametrize("line", OTHER_KEYS.strip().replace("\n", " | ").split(" | "))
def test_a_key_of_axolotl_changes_the_recipe_or_is_in_the_list(convert, line):
    base = "base_model: m\nmicro_batch_size: 2\nadapter: lora\ndatasets: [{path: d/e, type: alpaca}]\n"
    _, without = convert(base)
    _, found = convert(f"{base}{line}\n")
    assert found.text != without.text


def test_what_is_not_mapped_says_why(convert):
    for line, told in (
        ("learning_rate: fast", "not mapped: learning_rate: as train.learning_rate, is the text 'fast', but must be"),
        ("lerning_rate: 3", "not mapped: lerning_rate: is no argument of the installed TRL's `trl sft`. Did you mean"),
        ("lora_r: 3", "not mapped: lora_r: has no effect in TRL without use_peft: true."),
        ("deepspeed: zero.json", "not mapped: deepspeed: its stage is not in the name. Write distributed.strategy:"),
        ("env: {A: b}", "not mapped: env: a recipe sets no environment variables. Export them in the shell."),
    ):
        _, found = convert(f"model_name_or_path: m\ndataset_name: d/e\n{line}\n")
        assert found.notes[0].startswith(told)
        assert "# Not mapped:\n# - " in found.text


def test_zero3_and_offload_by_the_name_of_the_file(convert):
    recipe, found = convert(
        "base_model: m\nadapter: lora\ndatasets: [{path: d/e, type: alpaca}]\n"
        "deepspeed: ds/zero3_bf16_cpuoffload.json\n"
    )
    assert (recipe.distributed.strategy, recipe.distributed.processes) == ("zero3", "auto")
    assert any("distributed.offload.optimizer: true" in line for line in found.notes)


def test_what_cannot_be_converted(convert):
    for text, told in (
        ("", "is empty; a configuration is a mapping"),
        ("[a, b]", "holds a list; a configuration is a mapping"),
        ("learning_rate: 1", "are not clearly TRL's or Axolotl's. Write --from trl or axolotl."),
        ("finetuning_type: lora\nmodel_name_or_path: m", "looks like a file of LLaMA-Factory"),
        ("extends: bases/lora\nmodel: {id: m}", "looks like a recipe already."),
        ("base_model: m\nadapter: lora", "datasets: is missing. Add it: a recipe needs `data.train`."),
        ("dataset_name: d\nuse_peft: true", "model_name_or_path: is missing. Add it"),
        ("base_model: m\nrl: grpo", "rl: grpo has no counterpart."),
        ("base_model: m\ndatasets: 3", "datasets: holds the number 3, but must be a list of mappings."),
        ("base_model: m\nbatch_size: 8\nmicro_batch_size: auto", "micro_batch_size: is the text 'auto', but must be"),
    ):
        with pytest.raises(RecipeError) as caught:
            convert(text)
        assert told in str(caught.value)
        assert len(caught.value.problems) == 1
        assert Path(caught.value.problems[0].where).name == "source.yaml"
