"""A recipe from end to end on a tiny model: what is logged, saved, merged and said."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hf_efficient.launch.listener import RunResult, SilentListener
from hf_efficient.launch.run import run_recipe
from hf_efficient.metrics.answers import Answer
from hf_efficient.recipe.schema import Recipe


class Notes(SilentListener):
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


def recipe(model: Path, data: Path, output: Path, *, train=None, **sections) -> Recipe:
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
            "model": {"id": str(model)},
            "adapter": {"r": 4},
            "data": {"train": [{"path": str(data)}], "eval_fraction": 0.2},
            "train": {**arguments, **(train or {})},
            "output_dir": str(output),
            **sections,
        }
    )


def logged(output: Path, key: str) -> list[float]:
    state = json.loads((output / "trainer_state.json").read_text(encoding="utf-8"))
    return [entry[key] for entry in state["log_history"] if key in entry]


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
    assert [title for title, _ in notes.stages if title] == ["Tokenizer", "Data", "Model", "Training"]


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


def test_dpo_starts_at_ln_2_and_learns_the_preference(tiny_llama_dir, tmp_path):
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
            train={"max_steps": 6, "learning_rate": 1e-2, "gradient_checkpointing": False},
        )
    )
    losses = logged(output, "loss")
    assert losses[0] == pytest.approx(math.log(2), abs=1e-4)
    assert losses[-1] < 0.6
    assert logged(output, "rewards/accuracies")[-1] == 1.0
    assert (output / "adapter_model.safetensors").is_file()
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
