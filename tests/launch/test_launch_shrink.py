"""A pruned and distilled run, from its recipe to a folder that plain transformers loads."""

import json
import math
import re

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hf_efficient.accounting.account import read_account
from hf_efficient.cli.app import main
from hf_efficient.errors import ModelError, RecipeError
from hf_efficient.launch import teacher as teaching
from hf_efficient.launch.run import run_recipe
from hf_efficient.model.prune import RECORD
from hf_efficient.recipe.load import load_recipe
from tests.conftest import logged_values
from tests.launch.test_launch_objectives import assert_resumed_alike


def exit_code(command):
    with pytest.raises(SystemExit) as left:
        main(command)
    return left.value.code or 0


FULL = ("adapter.method=full", "adapter.dropout=0", "train.gradient_checkpointing=false", "model.dtype=float32")


@pytest.fixture(scope="session")
def teacher_dir(tmp_path_factory, tiny_tokenizer):
    """Four random layers, wider logits than the tiny student's."""
    folder = tmp_path_factory.mktemp("teacher")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tiny_tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def distilled(tiny_recipe, teacher_dir):
    own = ("objective=distill", f"distill.teacher={teacher_dir}", *FULL)
    return lambda *overrides: tiny_recipe(*own, *overrides)


def model_flops(output):
    lines = (output / "efficiency/steps.jsonl").read_text().splitlines()
    return sum(json.loads(line)["work"]["model_flops"] for line in lines)


def test_pruned_then_distilled_end_to_end(distilled, teacher_dir, tmp_path):
    """The student is the teacher without two of its blocks."""
    out = tmp_path / "out"
    prune = (f"model.id={teacher_dir}", "model.prune.layers=2", "distill.hidden_states=0.5", "distill.temperature=2")
    result = run_recipe(distilled(*prune, "train.packing=true", "model.attn_implementation=auto"))
    assert len(logged_values(out)) == 4
    assert all(map(math.isfinite, logged_values(out)))
    account = read_account(out / "efficiency/run.json")
    (rank,) = account.ranks
    assert min(rank.phase_seconds[name] for name in ("teacher", "forward", "backward")) > 0
    assert account.steps.count == 4
    facts = json.loads((out / "config.json").read_text())
    assert facts["num_hidden_layers"] == 2
    assert (facts[RECORD]["blocks"], len(facts[RECORD]["removed"])) == (4, 2)
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert loaded.num_parameters() < AutoModelForCausalLM.from_pretrained(teacher_dir).num_parameters()
    assert "perplexity" in result.after  # the evaluation is that of a run without a teacher
    assert "| objective | distillation |" in (out / "README.md").read_text()


def test_the_likeliest_tokens_of_all_are_the_teacher_itself(distilled, tmp_path, monkeypatch):
    """With as many as the vocabulary has, a cached teacher gives the losses of one that runs; it is asked once."""
    monkeypatch.setattr(teaching, "_VALUES", torch.float32)
    live, cached = tmp_path / "live", tmp_path / "cached"
    run_recipe(distilled(f"output_dir={live}"))
    own = ("distill.top_k=300", f"data.cache_dir={tmp_path / 'cache'}")
    run_recipe(distilled(*own, f"output_dir={cached}"))
    assert logged_values(cached) == pytest.approx(logged_values(live), rel=1e-4)
    # Three passes through two layers, and one through the teacher's four where it runs.
    assert model_flops(live) / model_flops(cached) == pytest.approx((3 * 2 + 4) / (3 * 2), rel=0.05)
    (file,) = (tmp_path / "cache/teachers").iterdir()
    assert load_file(file)["tokens"].shape[1] == 259
    asked = []
    monkeypatch.setattr(teaching, "load_teacher", lambda recipe: asked.append(recipe))
    again = tmp_path / "again"
    run_recipe(distilled(*own, f"output_dir={again}", "train.dataloader_num_workers=1"))
    assert asked == []
    assert logged_values(again) == logged_values(cached)


def test_a_cache_follows_rows_whatever_their_batch(distilled, tmp_path):
    """Packed without padding, two rows at a time, and padded: each target keeps its teacher's tokens."""
    losses = {}
    for name, own in (
        ("packed", ("train.packing=true", "model.attn_implementation=auto")),
        ("padded", ("train.max_length=64",)),
    ):
        for kind, top_k in (("live", ()), ("cached", ("distill.top_k=259", f"data.cache_dir={tmp_path / name}"))):
            out = tmp_path / f"{name}-{kind}"
            run_recipe(distilled(*own, *top_k, f"output_dir={out}"))
            losses[name, kind] = logged_values(out)
        assert losses[name, "cached"] == pytest.approx(losses[name, "live"], rel=5e-3)  # kept in 16 bits


@pytest.mark.slow
@pytest.mark.parametrize("own", [("adapter.method=lora",), ("model.prune.layers=1", "distill.top_k=8")])
def test_a_stopped_run_resumes_bit_for_bit(own, distilled, tmp_path, monkeypatch):
    name = "adapter_model" if "adapter.method=lora" in own else "model"
    own = (*own, f"data.cache_dir={tmp_path / 'cache'}")
    drop = () if name == "adapter_model" else ("adapter.dropout=0",)
    assert_resumed_alike(lambda *more: distilled(*own, *more, *drop), tmp_path, monkeypatch, f"{name}.safetensors")


def test_a_teacher_of_another_vocabulary_is_refused_before_the_models(distilled, teacher_dir, tmp_path, tiny_tokenizer):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text((teacher_dir / "config.json").read_text())
    (other / "tokenizer_config.json").write_text((teacher_dir / "tokenizer_config.json").read_text())
    text = (teacher_dir / "tokenizer.json").read_text()
    swapped = json.loads(text)
    words = swapped["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    (other / "tokenizer.json").write_text(json.dumps(swapped))
    with pytest.raises(ModelError, match="has another vocabulary: the student's token"):
        run_recipe(distilled(f"distill.teacher={other}"))
    with pytest.raises(ModelError, match=r"distill\.teacher\.id: .*nowhere does not exist"):
        run_recipe(distilled(f"distill.teacher={tmp_path / 'nowhere'}"))


def test_too_many_blocks_are_refused(tiny_recipe):
    with pytest.raises(ModelError, match=r"model\.prune\.layers \(--layers\): takes out 2 blocks, .* has 2\. Write 1"):
        run_recipe(tiny_recipe(*FULL, "model.prune.layers=2"))


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (("objective=distill",), "distill: is missing"),
        (("distill.teacher=x",), "learns from no teacher"),
        (("objective=distill", "distill.teacher=x", "distill.alpha=0"), "nothing of the teacher is learned"),
        (("objective=distill", "distill.teacher=x", "distill.top_k=4", "distill.hidden_states=1"), "are not there"),
        (("objective=distill", "distill.teacher=x", "train.loss_type=dft"), "no part for a teacher"),
        (("objective=distill", "distill.teacher=x", "distributed.strategy=fsdp2"), "holds the whole teacher"),
        (("objective=distill", "distill.teacher=x", "train.label_smoothing_factor=0.1"), "smooths the labels"),
        (("model.prune.layers=1",), "saves an adapter without the model under it"),
        (("model.prune.layers=1", "adapter.method=qlora"), "hf-efficient prune RECIPE"),
        (("model.prune.layers=0", *FULL), "nothing is pruned"),
        (("model.prune.layers=1", *FULL, "objective=dpo", "evaluate.metrics=[]"), "measured on examples"),
    ],
)
def test_contradictions(own, words, tiny_recipe):
    with pytest.raises(RecipeError, match=words):
        tiny_recipe(*own)


def test_a_model_is_pruned_alone_and_then_trained_with_an_adapter(tiny_recipe_file, teacher_dir, tmp_path, capsys):
    output = tmp_path / "smaller"
    command = ["prune", str(tiny_recipe_file), f"model.id={teacher_dir}", "--layers", "0.5", "--output", str(output)]
    assert exit_code([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (len(told["removed"]), len(told["importance"])) == (2, 4)
    assert AutoModelForCausalLM.from_pretrained(output).config.num_hidden_layers == 2
    recipe = load_recipe(tiny_recipe_file, [f"model.id={output}", "train.max_steps=1", "adapter.merge=true"])
    run_recipe(recipe)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out/merged").config.num_hidden_layers == 2
    assert exit_code(command) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layers", "told"),
    [("0", "0 of 4 blocks is none. Write 1"), ("1.5", "1.5 is neither .* Write 2, or 0.2"), ("4", "Write 3 or fewer")],
)
def test_a_number_of_blocks_that_leaves_all_or_none(layers, told, tiny_recipe_file, teacher_dir, tmp_path, capsys):
    command = ["prune", str(tiny_recipe_file), f"model.id={teacher_dir}", "--layers", layers]
    assert exit_code([*command, "--output", str(tmp_path / "smaller")]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(rf"--layers\)?: .*{told}", error)
    assert not (tmp_path / "smaller").exists()
