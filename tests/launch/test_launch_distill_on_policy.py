"""On-policy distillation from its recipe: TRL's losses, prompts without their answers, the account, and bad inputs."""

import json
import subprocess

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from trl import DistillationConfig, DistillationTrainer

from hf_efficient.accounting.account import read_account
from hf_efficient.errors import DataError, ModelError, RecipeError
from hf_efficient.jobs.job import standalone_recipe
from hf_efficient.launch.command import accelerate_command, layout_of
from hf_efficient.launch.run import run_recipe
from tests.conftest import logged_values, own_environment
from tests.launch.test_launch_objectives import assert_resumed_alike

SIZES = {
    "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@pytest.fixture(scope="session")
def teacher_of(tmp_path_factory, tiny_tokenizer):
    """Random, with heads of a height; wider than the tiny student."""

    def saved(rows):
        folder = tmp_path_factory.mktemp("teacher")
        torch.manual_seed(1)
        LlamaForCausalLM(LlamaConfig(vocab_size=rows, hidden_size=48, **SIZES)).save_pretrained(folder)
        tiny_tokenizer.save_pretrained(folder)
        return folder

    return saved


@pytest.fixture(scope="session")
def teacher_dir(teacher_of, tiny_tokenizer):
    return teacher_of(len(tiny_tokenizer))


TRAIN = {
    "max_completion_length": 6,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "gradient_checkpointing": False,
    "temperature": 0.9,
    "beta": 0.5,
}
FULL = ("adapter.method=full", "adapter.dropout=0", "model.dtype=float32", "train.learning_rate=1e-3")


@pytest.fixture
def on_policy(tiny_recipe, teacher_dir, tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"{i} + {i}?", "completion": f" {2 * i}"} for i in range(24)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = ("objective=distill_on_policy", f"distill.teacher={teacher_dir}", f"data.train=[{{path: {path}}}]")
    own += ("data.eval_fraction=0.25", "evaluate.metrics=[]", "train.max_length=null")
    own += tuple(f"train.{name}={value}" for name, value in TRAIN.items())
    return lambda *overrides: tiny_recipe(*own, *overrides)


def test_it_trains_as_trl_does_by_hand(on_policy, teacher_dir, tiny_llama_dir, tiny_tokenizer, tmp_path):
    """The same losses and weights; the account has the phases, both models' weights, and the completions' tokens."""
    out = tmp_path / "out"
    run_recipe(on_policy(*FULL, "data.eval_fraction=null"))
    settings = {**TRAIN, "learning_rate": 1e-3, "max_steps": 4, "logging_steps": 1, "bf16": False, "use_cpu": True}
    trainer = DistillationTrainer(
        AutoModelForCausalLM.from_pretrained(tiny_llama_dir),
        AutoModelForCausalLM.from_pretrained(teacher_dir),
        DistillationConfig(str(tmp_path / "plain"), save_strategy="no", report_to=[], disable_tqdm=True, **settings),
        train_dataset=Dataset.from_list([{"prompt": f"{i} + {i}?"} for i in range(24)]),
        processing_class=tiny_tokenizer,
    )
    trainer.train()
    expected = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged_values(out) == expected
    assert len(set(expected)) == 4
    by_hand, trained = trainer.model.state_dict(), load_file(out / "model.safetensors")
    assert all(torch.equal(by_hand[name], value) for name, value in trained.items())
    account = read_account(out / "efficiency/run.json")
    (rank,) = account.ranks
    phases = ("generation", "teacher", "forward", "backward", "optimizer")
    assert min(rank.phase_seconds[name] for name in phases) > 0
    assert abs(account.time.unattributed_seconds) <= 0.02 * account.time.wall_seconds
    assert 0 < account.tokens.target <= 4 * 8 * 6
    weights = next(one for one in account.memory.categories if one.name == "weights")
    both = [*trainer.model.parameters(), *trainer.teacher_model.parameters()]
    assert weights.bytes >= sum(one.nbytes for one in both)
    card = (out / "README.md").read_text()
    assert "| objective | on-policy distillation |" in card
    assert "of completions of the model's own" in card


def test_chats_are_answered_anew_and_the_divergence_falls(on_policy, chats_jsonl, tmp_path):
    """Chats without their last answers; the evaluation is TRL's, before the first step and after the last."""
    own = (f"data.train=[{{path: {chats_jsonl}}}]", "train.eval_on_start=true", "train.max_steps=12")
    result = run_recipe(on_policy(*FULL, *own, "train.gradient_accumulation_steps=1", "train.learning_rate=1e-2"))
    assert 0 < result.after["loss"] < 0.8 * result.before["loss"]
    assert "completions/mean_length" in result.after


def test_an_adapter_is_trained(on_policy, tmp_path):
    run_recipe(on_policy())
    saved = load_file(tmp_path / "out/adapter_model.safetensors")
    assert any(weight.abs().max() > 0 for name, weight in saved.items() if "lora_B" in name)


@pytest.mark.slow
def test_a_teacher_in_four_bits(on_policy, teacher_dir, tmp_path, monkeypatch):
    # where a CPU multiplies in bfloat16, bitsandbytes 0.50 packs rows that have no whole number of blocks, and fails
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)
    run_recipe(on_policy(f"distill.teacher={{id: {teacher_dir}, quantization: {{}}}}"))
    assert len(set(logged_values(tmp_path / "out"))) == 4


@pytest.mark.slow
@pytest.mark.skipif(torch.accelerator.is_available(), reason="two processes want two accelerators")
def test_two_processes(on_policy, tmp_path):
    recipe = on_policy("train.gradient_accumulation_steps=1", "distributed.processes=2")
    path = tmp_path / "standalone.yaml"
    path.write_text(standalone_recipe(recipe), encoding="utf-8")
    command = accelerate_command(recipe, str(path), [], layout_of(recipe, device_count=0, cores=2))
    done = subprocess.run(command, env=own_environment(tmp_path), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    account = read_account(tmp_path / "out/efficiency/run.json")
    assert (account.steps.count, len(account.ranks), account.sequences.rows) == (4, 2, 4 * 8)
    assert all(rank.phase_seconds["teacher"] > 0 for rank in account.ranks)


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_for_bit(on_policy, tmp_path, monkeypatch):
    """In its first epoch: TRL's sampler begins again with the first order."""
    assert_resumed_alike(lambda *own: on_policy("train.per_device_train_batch_size=1", *own), tmp_path, monkeypatch)


def test_teachers_and_data_that_do_not_fit(on_policy, teacher_of):
    with pytest.raises(ModelError, match=r"has 320 rows and the student's 259, and TRL's DistillationTrainer compares"):
        run_recipe(on_policy(f"distill.teacher={teacher_of(320)}"))
    with pytest.raises(DataError, match=r"there are 18 prompts, and 24 are answered together\. Add prompts"):
        run_recipe(on_policy("train.gradient_accumulation_steps=6"))


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (("distill.top_k=8",), r"distill\.top_k: is set, but `objective: distill_on_policy` learns by TRL's loss"),
        (("distill.hidden_states=1",), r"distill\.hidden_states: is set, .* which compares them"),
        (("distill.alpha=1",), r"distill\.alpha: is set, .* to learn the tokens of the data too"),
        (("distill.temperature=2",), r"distill\.temperature: is set, .*Write `train\.temperature`"),
        (("train.packing=true",), r"train\.packing: is no field of trl\.DistillationConfig"),
        (("train.max_completion_length=null",), "a completion might never end"),
        (("train.teacher_model_name_or_path=x",), r"is set elsewhere in a recipe\. Write `distill\.teacher`"),
        (("distill=null",), "distill: is missing, and with it the teacher"),
        (("rewards=number_match",), "rewards no completions"),
        (("distributed.strategy=zero3",), "each process holds the whole teacher"),
        (("efficiency.preflight=true",), "no longest batch of completions"),
        (("evaluate.metrics=[perplexity]",), "TRL's own metrics only"),
        (("adapter.target_modules=[lm_head]",), "whose adapter `objective: distill_on_policy` would leave out"),
        (("model.prune.layers=1", *FULL), "blocks are measured on examples"),
        (("data.train=[{path: x, format: text}]",), r"data\.train\.0\.format: "),
    ],
)
def test_contradictions(own, words, on_policy):
    with pytest.raises(RecipeError, match=words):
        on_policy(*own)
