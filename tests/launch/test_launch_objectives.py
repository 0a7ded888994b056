"""A recipe of every objective of preferences, from its file to the card."""

import json
import math
import subprocess

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, TrainerCallback

from hf_efficient.accounting.account import read_account
from hf_efficient.jobs.job import standalone_recipe
from hf_efficient.launch import build as building
from hf_efficient.launch import run as running
from hf_efficient.launch.command import accelerate_command, layout_of
from hf_efficient.launch.run import run_recipe
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.train_fields import trl_class
from hf_efficient.recording.stop import RunStopped, StopRequest
from tests.conftest import logged_values, own_environment


@pytest.fixture
def preferences(tiny_recipe, tmp_path):
    """The recipe on twelve pairs."""
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"Say {i}.", "chosen": f" yes {i}", "rejected": f" no, never {i}"} for i in range(12)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = (f"data.train=[{{path: {pairs}}}]", "data.eval_fraction=0.25", "evaluate.metrics=[]", "adapter.dropout=0")
    return lambda *overrides: tiny_recipe(*own, "train.gradient_checkpointing=false", *overrides)


@pytest.mark.parametrize("objective", ["dpo", pytest.param("kto", marks=pytest.mark.slow)])
def test_the_reference_is_computed_once(objective, preferences, tmp_path, monkeypatch):
    trainer, computed = trl_class(OBJECTIVES[objective].trainer), []
    original = trainer.compute_ref_log_probs
    monkeypatch.setattr(trainer, "compute_ref_log_probs", lambda *args: computed.append(1) or original(*args))
    own = (f"objective={objective}", "train.precompute_ref_log_probs=true", f"data.cache_dir={tmp_path / 'cache'}")
    counts, losses = [], []
    for name, length in (("first", 96), ("again", 96), ("shorter", 13)):
        run_recipe(preferences(*own, f"train.max_length={length}", f"output_dir={tmp_path / name}"))
        counts.append(len(computed))
        losses.append(logged_values(tmp_path / name))
        computed.clear()
    assert counts[0] > 0
    assert (counts[1], losses[1]) == (0, losses[0])
    assert counts[2] > 0  # the answers are cut elsewhere


FIRST = {"kto": 0.5, "dpo": math.log(2)}
CARD = {
    "kto": "Kahneman-Tversky optimization",
    "reward": "reward model",
    "orpo": "odds ratio preference optimization",
    "cpo": "contrastive preference optimization",
}


@pytest.mark.parametrize("objective", ["kto", "reward", "orpo", "cpo"])
def test_an_objective_end_to_end(objective, preferences, tmp_path):
    out = tmp_path / "out"
    result = run_recipe(preferences(f"objective={objective}"))
    losses = logged_values(out)
    assert len(losses) == 4
    assert all(map(math.isfinite, losses))
    assert losses[0] == pytest.approx(FIRST.get(objective, losses[0]), abs=1e-4)
    assert "loss" in result.after
    account = read_account(out / "efficiency/run.json")
    assert account.steps.count == 4
    assert account.tokens.non_padding > 0
    assert account.sequences.samples > 0
    card = (out / "README.md").read_text()
    assert f"| objective | {CARD[objective]} |" in card
    saved = load_file(out / "adapter_model.safetensors")
    assert any(name.endswith("score.weight") for name in saved) == (objective == "reward")
    assert ("AutoModelForSequenceClassification" in card) == (objective == "reward")


@pytest.mark.slow
def test_a_reward_model_is_merged(preferences, tmp_path):
    run = run_recipe(preferences("objective=reward", "adapter.merge=true"))
    model = AutoModelForSequenceClassification.from_pretrained(run.merged_dir)
    head = load_file(tmp_path / "out/adapter_model.safetensors")
    (saved,) = (tensor for name, tensor in head.items() if name.endswith("score.weight"))
    assert torch.equal(model.score.weight, saved)


class AsksInStepThree(TrainerCallback):
    def __init__(self, request):
        self.request = request

    def on_step_begin(self, args, state, control, **kwargs):
        self.request.asked = self.request.asked or state.global_step == 2


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["dpo", "kto", "reward", "orpo", "cpo"])
def test_a_stopped_run_resumes_bit_for_bit(objective, preferences, tmp_path, monkeypatch):
    """In its first epoch, with dropout and an evaluation before the stop."""
    assert_resumed_alike(lambda *own: preferences(f"objective={objective}", *own), tmp_path, monkeypatch)


def assert_resumed_alike(recipe_of, folder, monkeypatch, weights="adapter_model.safetensors"):
    own = ("adapter.dropout=0.1", "train.max_steps=6", "train.eval_strategy=steps")
    own += ("train.eval_steps=2", "train.save_steps=6")
    whole, parts = folder / "whole", folder / "parts"
    run_recipe(recipe_of(*own, f"output_dir={whole}"))
    request = StopRequest()
    with monkeypatch.context() as patched:
        patched.setattr(running, "stop_request", lambda: request)
        patched.setattr(building, "_callbacks", lambda recipe: [AsksInStepThree(request)])
        with pytest.raises(RunStopped, match="after step 3 of 6"):
            run_recipe(recipe_of(*own, f"output_dir={parts}"))
    torch.rand(7)  # another process would have another state
    run_recipe(recipe_of(*own, f"output_dir={parts}", "existing_output=resume"))
    for key in ("loss", "grad_norm", "eval_loss"):
        assert logged_values(parts, key) == logged_values(whole, key)
    assert len(set(logged_values(parts, "grad_norm"))) == 6
    one, other = (load_file(out / weights) for out in (whole, parts))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_share_of_pairs_that_the_model_itself_ranks_rightly(preferences, tmp_path, tiny_llama_dir, tiny_tokenizer):
    """Counted before the first step too, where every reward against the reference is 0. The last batch is smaller."""
    words = ["red", "green", "blue", "brown", "black", "white", "grey"]
    rows = [{"prompt": f"{i}?", "chosen": f" {words[i]}", "rejected": f" {words[-1 - i]}s"} for i in range(7)]
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = ("objective=dpo", "data.eval_fraction=null", f"data.eval={held_out}", "train.per_device_eval_batch_size=4")
    run = run_recipe(preferences(*own, "train.eval_on_start=true", "train.max_steps=1"))
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)

    def likelihood(prompt, answer):
        question, ids = (tiny_tokenizer(text)["input_ids"] for text in (prompt, prompt + answer))
        ids.append(tiny_tokenizer.eos_token_id)
        with torch.no_grad():
            found = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return sum(float(found[place - 1, ids[place]]) for place in range(len(question), len(ids)))

    right = sum(likelihood(row["prompt"], row["chosen"]) > likelihood(row["prompt"], row["rejected"]) for row in rows)
    assert 0 < right < len(rows)
    assert run.before["ranking_accuracy"] == pytest.approx(right / len(rows))
    assert run.before["rewards/accuracies"] == 0.0


@pytest.fixture
def prompts(tiny_recipe, tmp_path):
    """The recipe on twelve questions, four completions each; a tiny random model gives tokens at random."""
    path = tmp_path / "prompts.jsonl"
    rows = [{"question": f"{i} + {i}?", "answer": str(2 * i)} for i in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = ("objective=grpo", f"data.train=[{{path: {path}}}]", "data.eval_fraction=0.25", "evaluate.metrics=[]")
    own += ("train.num_generations=4", "train.max_completion_length=6", "train.per_device_train_batch_size=4")
    own += ("train.per_device_eval_batch_size=4", "adapter.dropout=0", "train.gradient_checkpointing=false")
    own += ("train.max_length=null",)
    return lambda *overrides: tiny_recipe(*own, *overrides)


OWN_REWARD = """\
def evens(completion_ids, **_):
    return [sum(one % 2 == 0 for one in ids) for ids in completion_ids]
"""


@pytest.fixture
def evens(tmp_path, monkeypatch):
    """A reward of the user's own, which differs from completion to completion."""
    (tmp_path / "evens_of_a_test.py").write_text(OWN_REWARD)
    monkeypatch.syspath_prepend(tmp_path)
    return "{function: 'evens_of_a_test:evens', run_code: true, weight: 0.5}"


def test_completions_are_rewarded_and_the_account_closes(prompts, evens, tmp_path):
    out = tmp_path / "out"
    result = run_recipe(prompts(f"rewards=[{evens}, {{name: length, tokens: 3}}]", "train.eval_on_start=true"))
    assert len(logged_values(out)) == 4
    assert {"reward", "rewards/evens/mean", "rewards/length/mean"} <= result.after.keys()
    means = [result.after[f"rewards/{name}/mean"] for name in ("evens", "length")]
    assert result.after["reward"] == pytest.approx(0.5 * means[0] + means[1], abs=1e-6)
    account = read_account(out / "efficiency/run.json")
    phases = account.time.phase_seconds
    assert min(phases[name] for name in ("generation", "reward", "forward", "backward", "optimizer")) > 0
    assert abs(account.time.unattributed_seconds) <= 0.02 * account.time.wall_seconds
    assert 0 < account.tokens.target <= 4 * account.sequences.rows * 6
    assert "| objective | group relative policy optimization |" in (out / "README.md").read_text()
    saved = load_file(out / "adapter_model.safetensors")
    assert any(weight.abs().max() > 0 for name, weight in saved.items() if "lora_B" in name)


def test_equal_rewards_move_nothing(prompts, tmp_path):
    """No completion of six tokens has ten thousand: all have the reward 1."""
    run_recipe(prompts("rewards={name: length, tokens: 10000}"))
    assert logged_values(tmp_path / "out") == [0.0] * 4
    assert logged_values(tmp_path / "out", "grad_norm") == [0.0] * 4
    saved = load_file(tmp_path / "out/adapter_model.safetensors")
    assert all(weight.abs().max() == 0 for name, weight in saved.items() if "lora_B" in name)


@pytest.mark.slow
def test_a_stopped_run_of_completions_resumes_bit_for_bit(prompts, evens, tmp_path, monkeypatch):
    """The same prompts are answered with the same tokens; evaluations between generate answers too."""
    own = (f"rewards={evens}", "train.gradient_accumulation_steps=2", "train.beta=0.1")
    assert_resumed_alike(lambda *more: prompts(*own, *more), tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.skipif(torch.accelerator.is_available(), reason="two processes want two accelerators")
def test_completions_in_two_processes(prompts, evens, tmp_path):
    """A prompt has two of its four completions on each."""
    recipe = prompts(f"rewards={evens}", "train.per_device_train_batch_size=2", "distributed.processes=2")
    path = tmp_path / "standalone.yaml"
    path.write_text(standalone_recipe(recipe), encoding="utf-8")
    command = accelerate_command(recipe, str(path), [], layout_of(recipe, device_count=0, cores=2))
    done = subprocess.run(command, env=own_environment(tmp_path), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    out = tmp_path / "out"
    account = read_account(out / "efficiency/run.json")
    assert (account.steps.count, len(account.ranks)) == (4, 2)
    time = account.time
    closed = math.fsum(time.phase_seconds.values()) + time.unattributed_seconds
    assert closed == pytest.approx(time.wall_seconds)
    assert abs(time.unattributed_seconds) <= 0.02 * time.wall_seconds
    for rank in account.ranks:
        assert min(rank.phase_seconds[name] for name in ("generation", "reward", "forward", "backward")) > 0
    assert account.sequences.rows == 4 * 2 * 2
    assert 0 < account.tokens.target <= 4 * 2 * 2 * 6
    assert all(map(math.isfinite, logged_values(out)))
    saved = load_file(out / "adapter_model.safetensors")
    assert any(weight.abs().max() > 0 for name, weight in saved.items() if "lora_B" in name)
