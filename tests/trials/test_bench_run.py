"""What is prepared for the arms, and real trainings: the loop by hand in this process, all arms in their own."""

import json
import math
from pathlib import Path

import msgspec
import pytest
import yaml

from hf_efficient.errors import SetupError
from hf_efficient.recipe.load import load_recipe
from hf_efficient.records.bench import ArmRun, Work
from hf_efficient.trials.arms import named_arms
from hf_efficient.trials.bench import compare, why_not_learning
from tests.trials.conftest import worked
from tests.trials.machine import Heard

STEPS = 6
NOT_DPO = [f"{key}=null" for key in ("train.packing", "train.loss_type", "data.targets", "evaluate.metrics")]


@pytest.fixture
def recipe_file(tmp_path, tiny_llama_dir, chats_jsonl):
    """Packed rows of 128 tokens, two at a time and four to a step, which a machine of two processes would train."""
    values = {
        "name": "tiny",
        "model": {"id": str(tiny_llama_dir), "attn_implementation": "auto"},
        "adapter": {"method": "lora", "r": 4, "fused": "auto"},
        "data": {"train": [{"path": str(chats_jsonl)}], "eval_fraction": 0.1, "targets": "assistant"},
        "train": {
            "max_length": 128, "packing": True, "per_device_train_batch_size": 2, "learning_rate": 2e-2,
            "loss_type": "auto", "bf16": False, "gradient_checkpointing": False, "eval_strategy": "epoch",
        },
        "distributed": {"processes": 2, "global_batch_size": 4},
        "evaluate": {"metrics": ["perplexity"]},
        "output_dir": str(tmp_path / "out"),
    }  # fmt: skip
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def prepared(recipe_file, folder, random_weights=False, overrides=()):
    options = {"steps": STEPS, "random_weights": random_weights, "padded_rows": None}
    found = worked(folder, "prepare", recipe_file, *overrides, **options)
    return msgspec.convert(found["result"], Work) if "result" in found else found


def test_all_arms_get_the_same_work_from_the_recipe(recipe_file, tmp_path):
    work = prepared(recipe_file, tmp_path / "bench")
    # the effective batch of 4 packs, in one process
    assert (work.packed_rows, work.accumulation, work.kind, work.device) == (2, 2, "messages", "cpu")
    assert work.padded_rows == round(2 * 128 / work.mean_tokens)
    recipe = load_recipe(work.recipe)
    assert (recipe.data.targets, recipe.data.eval_fraction, recipe.train["max_steps"]) == ("all", None, STEPS)
    assert (recipe.train["logging_steps"], recipe.train["learning_rate"]) == (1, 2e-2)
    rows = [json.loads(line) for line in Path(work.rows).read_text().splitlines()]
    assert len(rows) == 22  # of 24, less the tenth that the recipe holds out
    assert all(set(row) == {"messages"} for row in rows)


def test_the_loop_by_hand_learns_on_the_batches_of_the_recipe(recipe_file, tmp_path):
    work = prepared(recipe_file, tmp_path / "bench")
    done = worked(tmp_path / "bare", "arm", work.recipe, arm="bare", work=msgspec.to_builtins(work))
    found = msgspec.convert(done["result"], ArmRun)
    assert len(found.seconds) == len(found.losses) == STEPS
    assert why_not_learning(found) == ""
    assert found.non_padding == found.processed
    assert max(found.processed) <= 4 * 128
    assert abs(found.losses[0] - math.log(259)) < 0.2  # the mean over the tokens of both micro-batches


def test_random_weights_have_the_shape_and_a_tokenizer_that_fits(recipe_file, tmp_path, tiny_llama_dir):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    work = prepared(recipe_file, tmp_path / "bench", random_weights=True)
    folder = load_recipe(work.recipe).model.id
    made, own = (AutoModelForCausalLM.from_pretrained(one) for one in (folder, tiny_llama_dir))
    assert {name: one.shape for name, one in made.named_parameters()} == {
        name: one.shape for name, one in own.named_parameters()
    }
    assert not torch.equal(made.lm_head.weight, own.lm_head.weight)
    assert len(AutoTokenizer.from_pretrained(folder)) <= made.config.vocab_size
    assert work.model.startswith("random weights")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["objective=dpo", *NOT_DPO], "objective: is dpo, and bench compares supervised fine-tuning"),
        (["distributed.strategy=fsdp2"], "distributed.strategy: is fsdp2, and bench trains in one process"),
        (["train.max_length=null", "train.packing=false"], "train.max_length: is null"),
        (["train.loss_type=dft"], "train.loss_type: is dft, which not every arm has"),
        (["train.neftune_noise_alpha=5"], "Write train.neftune_noise_alpha=null"),
    ],
)
def test_recipes_that_cannot_be_compared_are_refused(recipe_file, tmp_path, overrides, told):
    found = prepared(recipe_file, tmp_path / "bench", overrides=overrides)
    assert found["kind"] == "input"
    assert told in found["failure"]


@pytest.mark.parametrize(
    ("options", "told"), [({"steps": 5}, "--steps: 5 are too few"), ({"rounds": 0}, "--rounds: 0")]
)
def test_too_short_comparisons_are_refused(recipe_file, options, told):
    with pytest.raises(SetupError, match=told):
        compare(str(recipe_file), [], [], Heard(), **{"steps": 6, "rounds": 1, **options})


@pytest.mark.slow
def test_a_recipe_beside_trl_and_the_loop_for_real(recipe_file, tmp_path):
    arms = named_arms(["trl", "bare", "axolotl", "recipe"], "--against")
    found = compare(str(recipe_file), [], arms, Heard(), rounds=1, steps=STEPS)
    assert [one.name for one in found.arms] == ["trl", "bare", "axolotl", "recipe"]
    trl, bare, axolotl, recipe = found.arms
    assert "not installed in this environment" in axolotl.reason
    for one in (trl, bare, recipe):
        assert one.reason == ""
        assert one.tokens_per_second > 0
        assert one.peak_host_bytes > 2**27
        assert len(one.runs[0].seconds) == STEPS
        assert one.first_loss == pytest.approx(math.log(259), abs=0.2)  # the same model, on all tokens
        assert one.last_loss < one.first_loss
    assert found.base == "trl"
    assert 0 < trl.padding_share < 0.6
    assert bare.padding_share == recipe.padding_share == 0
    assert bare.runs[0].non_padding == recipe.runs[0].non_padding
    assert bare.runs[0].losses == pytest.approx(recipe.runs[0].losses, rel=1e-5)
    assert bare.mfu is None or bare.mfu / recipe.mfu == pytest.approx(bare.tokens_per_second / recipe.tokens_per_second)
    assert not (tmp_path / "out").exists()
