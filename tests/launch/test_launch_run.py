"""A recipe from end to end on a tiny model: what is logged, saved, merged and said."""

import functools
import json
import math
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_efficient import load_run
from hf_efficient.errors import SetupError
from hf_efficient.launch import build as building
from hf_efficient.launch import run as running
from hf_efficient.launch.run import run_recipe
from hf_efficient.recording.stop import EndedBySignal
from tests.conftest import logged_values as logged
from tests.launch.notes import Notes

IN_STEPS = ("train.eval_strategy=steps", "train.eval_steps=2")
# The loss falls on every machine, and a fall counts as worse here.
GETS_WORSE = (*IN_STEPS, "train.max_steps=12", "train.learning_rate=0.5", "train.load_best_model_at_end=true")
GETS_WORSE += ("evaluate.early_stopping.patience=1", "train.greater_is_better=true")


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "adapter_model.safetensors")


def only_until(output: Path, step: int) -> None:
    """Remove the checkpoints after a step."""
    for checkpoint in output.glob("checkpoint-*"):
        if int(checkpoint.name.split("-")[1]) > step:
            shutil.rmtree(checkpoint)


def test_asked_to_end_in_the_last_step_it_saves_and_evaluates_nothing(tiny_recipe, out, monkeypatch):
    monkeypatch.setattr(running, "stoppable", lambda trainer: nullcontext())
    monkeypatch.setattr(running, "stop_request", lambda: SimpleNamespace(asked=True, number=signal.SIGTERM))
    notes = Notes()
    with pytest.raises(EndedBySignal, match="SIGTERM"):
        run_recipe(tiny_recipe(), notes)
    assert (out / "adapter_model.safetensors").exists()
    assert "Evaluation" not in dict(notes.stages)


def test_metrics_answers_and_the_two_ends(tiny_recipe, out):
    notes = Notes()
    metrics = "evaluate.metrics=[perplexity, token_accuracy, exact_match]"
    generate = "evaluate.generate={examples: 3, max_new_tokens: 4, show: 2}"
    result = run_recipe(tiny_recipe(*IN_STEPS, "train.eval_on_start=true", metrics, generate), notes)
    assert set(result.before) == set(result.after) == {"loss", "perplexity", "token_accuracy", "exact_match"}
    assert result.after["loss"] < result.before["loss"]
    assert [(step, len(answers)) for step, answers in notes.shown] == [(0, 2), (2, 2), (4, 2)]
    assert notes.shown[0][1][0].question.startswith("How much is")
    assert logged(out, "eval_perplexity")[-1] == result.after["perplexity"]
    assert notes.result is result
    assert f"{result.after['loss']:.4g}" in (out / "README.md").read_text(encoding="utf-8")
    assert json.loads((out / "all_results.json").read_text())["eval_loss"] == result.after["loss"]
    assert [title for title, _ in notes.stages if title] == ["Tokenizer", "Data", "Model", "Training"]


def test_fused_layers_and_attention_by_documents_train_the_same(tiny_recipe, out):
    packed = ("train.packing=true", "train.max_length=256", "train.bf16=false", "train.logging_steps=1")
    run_recipe(tiny_recipe(*packed))
    plain = logged(out, "loss")
    fast = ("adapter.fused=true", "model.attn_implementation=documents", "existing_output=overwrite")
    run_recipe(tiny_recipe(*packed, *fast))
    assert len(plain) == 4
    assert logged(out, "loss") == pytest.approx(plain, rel=1e-5)


def test_answers_only_at_the_ends_where_nothing_is_matched(tiny_recipe):
    notes = Notes()
    shown = "evaluate.generate={max_new_tokens: 3, show: 1}"
    result = run_recipe(tiny_recipe(*IN_STEPS, "train.eval_on_start=true", "evaluate.metrics=[]", shown), notes)
    assert [step for step, _ in notes.shown] == [0, 4]
    assert set(result.after) == {"loss"}


def test_early_stopping_and_the_best_checkpoint_by_our_metric(tiny_recipe, out):
    best_by = ("train.metric_for_best_model=perplexity", "evaluate.generate={max_new_tokens: 2, show: 1}")
    notes = Notes()
    result = run_recipe(tiny_recipe(*GETS_WORSE, *best_by), notes)
    perplexities = logged(out, "eval_perplexity")
    state = json.loads((out / "trainer_state.json").read_text(encoding="utf-8"))
    best = max(range(len(perplexities) - 1), key=perplexities.__getitem__)
    assert result.steps < 12
    assert state["best_metric"] == perplexities[best]
    assert state["best_model_checkpoint"].endswith(f"checkpoint-{2 * (best + 1)}")
    assert result.after["perplexity"] == perplexities[best]  # the best is what is evaluated, and what is saved
    kept = weights(Path(state["best_model_checkpoint"]))
    assert all(torch.equal(weights(out)[name], kept[name]) for name in kept)
    assert [step for step, _ in notes.shown] == [result.steps]  # an early stop is an end too


@pytest.mark.parametrize("method", [pytest.param("lora", marks=pytest.mark.slow), "qlora"])
def test_merge_true_gives_a_model_for_plain_transformers(method, tiny_recipe, tiny_llama_dir, out):
    result = run_recipe(tiny_recipe(f"adapter.method={method}", "adapter.merge=true"))
    assert result.merged_dir == out / "merged"
    assert "quantization_config" not in json.loads((result.merged_dir / "config.json").read_text())
    inputs = AutoTokenizer.from_pretrained(result.merged_dir)("How much is 1 + 1?", return_tensors="pt")
    model, base = (AutoModelForCausalLM.from_pretrained(one) for one in (result.merged_dir, tiny_llama_dir))
    with torch.no_grad():
        assert (model(**inputs).logits - base(**inputs).logits).abs().max() > 1e-3  # it carries what was learned


@pytest.fixture
def preferences(tiny_recipe, tmp_path):
    """The recipe on preference pairs."""
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"Say {i}.", "chosen": f" yes {i}", "rejected": f" no, never {i}"} for i in range(12)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = ("objective=dpo", f"data.train=[{{path: {pairs}}}]", "data.eval_fraction=null", "evaluate.metrics=[]")
    return lambda *overrides: tiny_recipe(*own, "train.gradient_checkpointing=false", *overrides)


@pytest.mark.parametrize("method", ["lora", pytest.param("qlora", marks=pytest.mark.slow)])
def test_dpo_starts_at_ln_2_and_learns_the_preference(method, preferences, out):
    run_recipe(preferences(f"adapter.method={method}", "train.max_steps=6", "adapter.dropout=0"))
    losses = logged(out, "loss")
    assert losses[0] == pytest.approx(math.log(2), abs=1e-4)
    assert losses[-1] < 0.6
    assert logged(out, "rewards/accuracies")[-1] == 1.0
    assert {tensor.dtype for tensor in weights(out).values()} == {torch.float32}
    assert len((out / "efficiency/steps.jsonl").read_text().splitlines()) == 6


def test_full_dpo_compares_with_the_model_of_the_recipe(preferences, out, monkeypatch):
    loaded = []
    original = building.load_base
    monkeypatch.setattr(building, "load_base", lambda given: loaded.append(given.model) or original(given))
    given = preferences("adapter={method: full}", "train.max_steps=1", "train.per_device_train_batch_size=1")
    run_recipe(given)
    assert loaded == [given.model] * 2
    assert logged(out, "loss")[0] == pytest.approx(math.log(2), abs=1e-4)


def test_full_fine_tuning_saves_a_whole_model(tiny_recipe, tiny_llama_dir, out):
    run_recipe(tiny_recipe("adapter={method: full}"))
    saved, base = (AutoModelForCausalLM.from_pretrained(one).parameters() for one in (out, tiny_llama_dir))
    assert not any(torch.equal(one, other) for one, other in zip(saved, base, strict=True))


def test_layers_that_are_compiled_one_by_one_train_alike(tiny_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(nn.Module, "compile", functools.partialmethod(nn.Module.compile, backend="eager"))
    for name in ("plain", "compiled"):
        blocks = f"model.compile_blocks={str(name == 'compiled').lower()}"
        said = ("train.gradient_checkpointing=true", "adapter.dropout=0", f"output_dir={tmp_path / name}")
        run_recipe(tiny_recipe(blocks, *said))
    plain, compiled = tmp_path / "plain", tmp_path / "compiled"
    assert logged(compiled, "loss") == pytest.approx(logged(plain, "loss"), rel=1e-4)
    assert weights(compiled).keys() == weights(plain).keys()
    phases = [load_run(one).time.phase_seconds for one in (plain, compiled)]
    assert ["compilation" in one for one in phases] == [False, True]


def test_a_process_stays_on_the_cores_beside_its_gpu(tiny_recipe, monkeypatch):
    asked = []
    monkeypatch.setattr(building, "override_numa_affinity", asked.append)
    run_recipe(tiny_recipe("train.max_steps=1"))
    run_recipe(tiny_recipe("train.max_steps=1", "distributed.cpu_affinity=true", "existing_output=overwrite"))
    assert asked == [0]


WAY = {"optim": "adafactor", "packing": True, "packing_strategy": "wrapped", "neftune_noise_alpha": 0.01}
REENTRANT = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
SLOW = [
    {"bf16": True, "optim": "paged_adamw_8bit", **REENTRANT},
    {"torch_compile": True, "torch_compile_backend": "eager"},
]


@pytest.mark.parametrize("train", [WAY, *(pytest.param(way, marks=pytest.mark.slow) for way in SLOW)], ids="-".join)
def test_training_arguments_are_honoured_and_train(train, tiny_recipe, out):
    run_recipe(tiny_recipe(*(f"train.{key}={json.dumps(value)}" for key, value in train.items()), "adapter.dropout=0"))
    losses = logged(out, "loss")
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    stored = torch.load(out / "training_args.bin", weights_only=False)
    assert {key: getattr(stored, key) for key in train} == train


def test_the_last_evaluation_is_of_the_last_step(tiny_recipe, out):
    """In half precision, which does not reach the saved weights; no logits are gathered for it."""
    notes = Notes()
    said = ("train.eval_on_start=true", "train.bf16_full_eval=true", "evaluate.metrics=[]")  # and none in between
    result = run_recipe(tiny_recipe(*said), notes)
    losses = logged(out, "eval_loss")
    assert len(losses) == 2
    assert result.after["loss"] == losses[1] != losses[0]
    assert ("Evaluation", "after the last step") in notes.stages
    assert torch.load(out / "training_args.bin", weights_only=False).prediction_loss_only
    assert {tensor.dtype for tensor in weights(out).values()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize("stop", [4, 6])
def test_grouped_by_length_resumes_exactly_in_any_epoch(stop, tiny_recipe, tmp_path):
    said = ("train.train_sampling_strategy=group_by_length", "train.max_steps=8")
    said += ("train.per_device_train_batch_size=6",)  # 20 examples: four steps an epoch
    for name in ("whole", "parts"):
        run_recipe(tiny_recipe(*said, f"output_dir={tmp_path / name}"))
    only_until(tmp_path / "parts", stop)
    run_recipe(tiny_recipe(*said, f"output_dir={tmp_path / 'parts'}", "existing_output=resume"))
    assert logged(tmp_path / "parts", "loss") == logged(tmp_path / "whole", "loss")
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_resuming_a_finished_run_trains_no_further(tiny_recipe, out):
    constant = "train.lr_scheduler_type=constant"
    done = run_recipe(tiny_recipe(constant))
    before = weights(out)
    again = run_recipe(tiny_recipe(constant, "existing_output=resume"))
    assert (done.steps, again.steps) == (4, 4)
    assert again.after == done.after
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(out).items())
    card = (out / "README.md").read_text()
    with pytest.raises(SetupError, match=r"train\.max_steps: is 2, and checkpoint-4 is beyond it\. Write 4 or more"):
        run_recipe(tiny_recipe(constant, "existing_output=resume", "train.max_steps=2"))
    assert (out / "README.md").read_text() == card


@pytest.mark.slow
def test_resuming_keeps_the_patience_of_early_stopping(tiny_recipe, tmp_path):
    said = (*GETS_WORSE, "train.eval_steps=1", "train.save_steps=1", "evaluate.early_stopping.patience=3")
    stopped_at = run_recipe(tiny_recipe(*said, f"output_dir={tmp_path / 'whole'}")).steps
    assert 3 < stopped_at < 12
    parts = f"output_dir={tmp_path / 'parts'}"
    run_recipe(tiny_recipe(*said, parts))
    only_until(tmp_path / "parts", 2)
    assert run_recipe(tiny_recipe(*said, parts, "existing_output=resume")).steps == stopped_at
