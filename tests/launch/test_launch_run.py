"""A recipe from end to end on a tiny model: what is logged, saved, merged and said."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from hf_efficient.launch import run as run_module
from hf_efficient.launch.listener import RunListener, RunResult
from hf_efficient.launch.run import run_recipe
from hf_efficient.metrics.answers import Answer
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recording.stop import EndedBySignal


class Notes(RunListener):
    """Keeps what the run says."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, str]] = []
        self.shown: list[tuple[int, list[Answer]]] = []
        self.result: RunResult | None = None

    def stage(self, title: str, detail: str = "") -> None:
        self.stages.append((title, detail))

    def answers(self, step: int, answers: Sequence[Answer]) -> None:
        self.shown.append((step, list(answers)))

    def finished(self, result: RunResult) -> None:
        self.result = result


def recipe(folder: Path, source: Path, output: Path, *, train=None, **sections) -> Recipe:
    arguments = {
        "max_steps": 4,
        "max_length": 96,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 4,
        "learning_rate": 5e-3,
        "logging_steps": 1,
        "save_steps": 2,
        "bf16": False,
        "use_cpu": True,
    }
    return Recipe(
        **{
            "name": "tiny",
            "model": {"id": str(folder)},
            "adapter": {"r": 4},
            "data": {"train": [{"path": str(source)}], "eval_fraction": 0.2},
            "train": {**arguments, **(train or {})},
            "output_dir": str(output),
            **sections,
        }
    )


def logged(output: Path, key: str) -> list[float]:
    state = json.loads((output / "trainer_state.json").read_text(encoding="utf-8"))
    return [entry[key] for entry in state["log_history"] if key in entry]


def test_asked_to_end_in_the_last_step_it_saves_and_evaluates_nothing(
    tiny_llama_dir, chats_jsonl, tmp_path, monkeypatch
):
    monkeypatch.setattr(run_module, "stoppable", lambda trainer: nullcontext())
    monkeypatch.setattr(run_module, "stop_request", lambda: SimpleNamespace(asked=True))
    notes = Notes()
    with pytest.raises(EndedBySignal, match="SIGTERM"):
        run_recipe(recipe(tiny_llama_dir, chats_jsonl, tmp_path / "out"), notes)
    assert (tmp_path / "out/adapter_model.safetensors").exists()
    assert "Evaluation" not in [title for title, _ in notes.stages]


def test_metrics_answers_and_the_two_ends(tiny_llama_dir, chats_jsonl, tmp_path):
    notes = Notes()
    result = run_recipe(
        recipe(
            tiny_llama_dir,
            chats_jsonl,
            tmp_path / "out",
            train={"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True},
            evaluate={
                "metrics": ["perplexity", "token_accuracy", "exact_match"],
                "generate": {"examples": 3, "max_new_tokens": 4, "show": 2},
            },
        ),
        notes,
    )
    assert set(result.before) == set(result.after) == {"loss", "perplexity", "token_accuracy", "exact_match"}
    assert result.after["loss"] < result.before["loss"]
    assert [step for step, _ in notes.shown] == [0, 2, 4]
    assert all(len(answers) == 2 for _, answers in notes.shown)
    assert notes.shown[0][1][0].question.startswith("How much is")
    assert logged(tmp_path / "out", "eval_perplexity")[-1] == result.after["perplexity"]
    assert notes.result is result
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert f"{result.after['loss']:.4g}" in card
    assert json.loads((tmp_path / "out/all_results.json").read_text())["eval_loss"] == result.after["loss"]
    assert [title for title, _ in notes.stages if title] == ["Tokenizer", "Data", "Preflight", "Model", "Training"]


def test_answers_only_at_the_ends_where_nothing_is_matched(tiny_llama_dir, chats_jsonl, tmp_path):
    notes = Notes()
    result = run_recipe(
        recipe(
            tiny_llama_dir,
            chats_jsonl,
            tmp_path / "out",
            train={"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True},
            evaluate={"generate": {"max_new_tokens": 3, "show": 1}},
        ),
        notes,
    )
    assert [step for step, _ in notes.shown] == [0, 4]
    assert set(result.after) == {"loss"}


def test_early_stopping_and_the_best_checkpoint_by_our_metric(tiny_llama_dir, chats_jsonl, tmp_path):
    output = tmp_path / "out"
    result = run_recipe(
        recipe(
            tiny_llama_dir,
            chats_jsonl,
            output,
            train={
                "max_steps": 12,
                "learning_rate": 3.0,  # gets worse from the first step on
                "eval_strategy": "steps",
                "eval_steps": 2,
                "load_best_model_at_end": True,
                "metric_for_best_model": "perplexity",
                "greater_is_better": False,
            },
            evaluate={"metrics": ["perplexity"], "early_stopping": {"patience": 1}},
        )
    )
    perplexities = logged(output, "eval_perplexity")
    state = json.loads((output / "trainer_state.json").read_text(encoding="utf-8"))
    best = min(range(len(perplexities) - 1), key=perplexities.__getitem__)
    assert result.steps < 12
    assert state["best_metric"] == perplexities[best]
    assert state["best_model_checkpoint"].endswith(f"checkpoint-{2 * (best + 1)}")
    assert result.after["perplexity"] == perplexities[best]  # the best is what is evaluated, and what is saved
    saved = load_file(output / "adapter_model.safetensors")
    kept = load_file(Path(state["best_model_checkpoint"]) / "adapter_model.safetensors")
    assert all(torch.equal(saved[name], kept[name]) for name in kept)


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_merge_true_gives_a_model_for_plain_transformers(method, tiny_llama_dir, chats_jsonl, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    result = run_recipe(
        recipe(tiny_llama_dir, chats_jsonl, tmp_path / "out", adapter={"method": method, "r": 4, "merge": True})
    )
    assert result.merged_dir == tmp_path / "out/merged"
    config = json.loads((result.merged_dir / "config.json").read_text())
    assert "quantization_config" not in config
    model = AutoModelForCausalLM.from_pretrained(result.merged_dir)
    tokenizer = AutoTokenizer.from_pretrained(result.merged_dir)
    inputs = tokenizer("How much is 1 + 1?", return_tensors="pt")
    base = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    with torch.no_grad():
        assert (model(**inputs).logits - base(**inputs).logits).abs().max() > 1e-3  # it carries what was learned


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_dpo_starts_at_ln_2_and_learns_the_preference(method, tiny_llama_dir, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"Say {i}.", "chosen": f" yes {i}", "rejected": f" no, never {i}"} for i in range(12)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    output = tmp_path / "out"
    run_recipe(
        recipe(
            tiny_llama_dir,
            pairs,
            output,
            method="dpo",
            adapter={"method": method, "r": 4},
            train={"max_steps": 6, "learning_rate": 1e-2, "gradient_checkpointing": False},
        )
    )
    losses = logged(output, "loss")
    assert losses[0] == pytest.approx(math.log(2), abs=1e-4)
    assert losses[-1] < 0.6
    assert logged(output, "rewards/accuracies")[-1] == 1.0
    assert {tensor.dtype for tensor in load_file(output / "adapter_model.safetensors").values()} == {torch.float32}
    records = (output / "efficiency/steps.jsonl").read_text().splitlines()
    assert len(records) == 6


def test_full_fine_tuning_saves_a_whole_model(tiny_llama_dir, chats_jsonl, tmp_path):
    from transformers import AutoModelForCausalLM

    run_recipe(recipe(tiny_llama_dir, chats_jsonl, tmp_path / "out", adapter={"method": "full"}))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    changed = [
        name
        for (name, one), other in zip(model.named_parameters(), base.parameters(), strict=True)
        if not torch.equal(one, other)
    ]
    assert len(changed) == len(list(base.parameters()))


@pytest.mark.parametrize(
    "train",
    [
        {"optim": "adamw_8bit"},
        {"optim": "paged_adamw_8bit"},
        {"optim": "adafactor"},
        {"bf16": True},
        {"packing": True, "packing_strategy": "wrapped"},
        {"torch_compile": True, "torch_compile_backend": "eager"},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"neftune_noise_alpha": 0.01},
    ],
    ids=lambda train: "-".join(f"{key}={value}" for key, value in train.items())[:50],
)
def test_a_training_argument_is_honoured_and_trains(train, tiny_llama_dir, chats_jsonl, tmp_path):
    run_recipe(recipe(tiny_llama_dir, chats_jsonl, tmp_path / "out", train=train))
    losses = logged(tmp_path / "out", "loss")
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    stored = torch.load(tmp_path / "out/training_args.bin", weights_only=False)
    assert {key: getattr(stored, key) for key in train} == train


def test_the_last_evaluation_is_of_the_last_step(tiny_llama_dir, chats_jsonl, tmp_path):
    notes = Notes()
    train = {"eval_on_start": True}  # and none in between
    result = run_recipe(recipe(tiny_llama_dir, chats_jsonl, tmp_path / "out", train=train), notes)
    losses = logged(tmp_path / "out", "eval_loss")
    assert len(losses) == 2
    assert result.after["loss"] == losses[1] != losses[0]
    assert ("Evaluation", "after the last step") in notes.stages


def test_answers_are_shown_after_an_early_stop_too(tiny_llama_dir, chats_jsonl, tmp_path):
    notes = Notes()
    result = run_recipe(
        recipe(
            tiny_llama_dir,
            chats_jsonl,
            tmp_path / "out",
            train={
                "max_steps": 12,
                "learning_rate": 3.0,
                "eval_strategy": "steps",
                "eval_steps": 2,
                "load_best_model_at_end": True,
            },
            evaluate={"early_stopping": {"patience": 1}, "generate": {"max_new_tokens": 2, "show": 1}},
        ),
        notes,
    )
    assert result.steps < 12
    assert [step for step, _ in notes.shown] == [result.steps]


def test_what_is_matched_need_not_be_shown(tiny_llama_dir, chats_jsonl, tmp_path):
    notes = Notes()
    result = run_recipe(
        recipe(
            tiny_llama_dir,
            chats_jsonl,
            tmp_path / "out",
            evaluate={"metrics": ["exact_match"], "generate": {"examples": 2, "max_new_tokens": 2, "show": 0}},
        ),
        notes,
    )
    assert result.after["exact_match"] == 0.0
    assert notes.shown == []


def test_the_best_perplexity_is_the_lowest(tiny_llama_dir, chats_jsonl, tmp_path):
    output = tmp_path / "out"
    train = {
        "max_steps": 6,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "perplexity",
    }
    evaluate = {"metrics": ["perplexity"], "early_stopping": {"patience": 1}}
    result = run_recipe(recipe(tiny_llama_dir, chats_jsonl, output, train=train, evaluate=evaluate))
    perplexities = logged(output, "eval_perplexity")
    assert result.steps == 6  # it kept improving, so it was not stopped
    state = json.loads((output / "trainer_state.json").read_text(encoding="utf-8"))
    assert state["best_metric"] == min(perplexities) == perplexities[2]


def test_packed_examples_are_checked_to_be_apart(tiny_llama_dir, chats_jsonl, tmp_path):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    from hf_efficient.errors import TrainingCheckError

    def attend(module, query, key, value, attention_mask, **kwargs):
        key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for x in (key, value))
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return output.transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register("mixes", attend)
    try:
        mixing = {"id": str(tiny_llama_dir), "attn_implementation": "mixes"}
        with pytest.raises(TrainingCheckError, match="'mixes' packed examples read each other"):
            run_recipe(recipe(tiny_llama_dir, chats_jsonl, tmp_path / "a", model=mixing, train={"packing": True}))
        run_recipe(recipe(tiny_llama_dir, chats_jsonl, tmp_path / "b", model=mixing))
    finally:
        del AttentionInterface._global_mapping["mixes"]


def test_the_instruments_can_be_switched_off(tiny_llama_dir, chats_jsonl, tmp_path, monkeypatch):
    from hf_efficient.callbacks.checks import GradientCheck

    started = []
    monkeypatch.setattr(GradientCheck, "on_train_begin", lambda self, *arguments, **named: started.append(self))
    off = {"record_steps": False, "check_gradients": False}
    run_recipe(recipe(tiny_llama_dir, chats_jsonl, tmp_path / "off", efficiency=off))
    assert not (tmp_path / "off/efficiency/steps.jsonl").exists()
    assert started == []
    run_recipe(recipe(tiny_llama_dir, chats_jsonl, tmp_path / "on"))
    assert len((tmp_path / "on/efficiency/steps.jsonl").read_text().splitlines()) == 4
    assert len(started) == 1


def test_no_logits_are_gathered_without_a_metric_that_reads_them(tiny_llama_dir, chats_jsonl, tmp_path):
    run_recipe(recipe(tiny_llama_dir, chats_jsonl, tmp_path / "out"))
    assert torch.load(tmp_path / "out/training_args.bin", weights_only=False).prediction_loss_only


def test_a_half_precision_evaluation_does_not_reach_the_saved_weights(tiny_llama_dir, chats_jsonl, tmp_path):
    run_recipe(recipe(tiny_llama_dir, chats_jsonl, tmp_path / "out", train={"bf16_full_eval": True}))
    saved = load_file(tmp_path / "out/adapter_model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "adapter_model.safetensors")


@pytest.mark.parametrize("stop", [4, 6, 8])
def test_grouped_by_length_resumes_exactly_in_any_epoch(stop, tiny_llama_dir, chats_jsonl, tmp_path):
    train = {
        "train_sampling_strategy": "group_by_length",
        "max_steps": 8,
        "per_device_train_batch_size": 6,
        "save_steps": 2,
    }  # 20 examples: four steps an epoch
    whole, parts = (
        recipe(tiny_llama_dir, chats_jsonl, tmp_path / name, train=train, adapter={"r": 4, "dropout": 0.1})
        for name in ("whole", "parts")
    )
    run_recipe(whole)
    run_recipe(parts)
    for checkpoint in (tmp_path / "parts").glob("checkpoint-*"):
        if int(checkpoint.name.split("-")[1]) > stop:
            shutil.rmtree(checkpoint)
    run_recipe(parts.model_copy(update={"existing_output": "resume"}))
    assert logged(tmp_path / "parts", "loss") == logged(tmp_path / "whole", "loss")
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_resuming_a_finished_run_trains_no_further(tiny_llama_dir, chats_jsonl, tmp_path):
    train = {"lr_scheduler_type": "constant"}
    first = recipe(tiny_llama_dir, chats_jsonl, tmp_path / "out", train=train)
    done = run_recipe(first)
    before = weights(tmp_path / "out")
    again = run_recipe(first.model_copy(update={"existing_output": "resume"}))
    assert (done.steps, again.steps) == (4, 4)
    assert again.after == done.after
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(tmp_path / "out").items())


def test_resuming_keeps_the_patience_of_early_stopping(tiny_llama_dir, chats_jsonl, tmp_path):
    train = {
        "max_steps": 12,
        "learning_rate": 3.0,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_steps": 1,
        "load_best_model_at_end": True,
    }
    whole, parts = (
        recipe(tiny_llama_dir, chats_jsonl, tmp_path / name, train=train, evaluate={"early_stopping": {"patience": 3}})
        for name in ("whole", "parts")
    )
    stopped_at = run_recipe(whole).steps
    assert 3 < stopped_at < 12
    run_recipe(parts)
    for checkpoint in (tmp_path / "parts").glob("checkpoint-*"):
        if int(checkpoint.name.split("-")[1]) > 2:
            shutil.rmtree(checkpoint)
    assert run_recipe(parts.model_copy(update={"existing_output": "resume"})).steps == stopped_at


def test_full_dpo_compares_with_the_model_of_the_recipe(tiny_llama_dir, tmp_path, monkeypatch):
    from hf_efficient.launch import build as trainers

    loaded = []
    original = trainers.load_base
    monkeypatch.setattr(trainers, "load_base", lambda given: loaded.append(given.model) or original(given))
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"prompt": "Say.", "chosen": " yes", "rejected": " no"}) + "\n", encoding="utf-8")
    given = recipe(
        tiny_llama_dir,
        pairs,
        tmp_path / "out",
        method="dpo",
        adapter={"method": "full"},
        data={"train": [{"path": str(pairs)}]},
        train={"max_steps": 1, "per_device_train_batch_size": 1, "gradient_checkpointing": False},
    )
    run_recipe(given)
    assert loaded == [given.model] * 2
    assert logged(tmp_path / "out", "loss")[0] == pytest.approx(math.log(2), abs=1e-4)
