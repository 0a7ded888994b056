"""A recipe loaded, changed, written down and read again: its values, who set them, and all that is wrong with it."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from hf_efficient.errors import OutputError, RecipeError
from hf_efficient.recipe.load import (
    ResolvedRecipe,
    ResolvedValue,
    change_recipe,
    differing_keys,
    load_recipe,
    read_resolved,
)
from hf_efficient.recipe.schema import Origin, is_set, mixed_precision, told_where
from tests.conftest import small_recipe

TRL = version("trl")
HEAD = "name: t\nmodel: {id: m}\ndata: {train: [{path: a}]}\noutput_dir: o\n"


def test_provenance_of_every_leaf(write):
    write("adapter: {r: 4}\ntrain: {seed: 1, gradient_checkpointing_kwargs: {use_reentrant: false}}\n", "base.yaml")
    path = write("extends: base.yaml\n" + HEAD)
    recipe = load_recipe(path, ["train.seed=2", "model={dtype: float32}"])
    assert recipe.provenance["name"] == Origin("r.yaml", 2)
    assert recipe.provenance["model.id"] == Origin("r.yaml", 3)
    assert recipe.provenance["model.dtype"] == Origin("command line", None, "model={dtype: float32}")
    assert recipe.provenance["data.train.0.path"] == Origin("r.yaml", 4)
    assert recipe.provenance["data.train.0.weight"] == Origin("default")
    assert recipe.provenance["adapter.r"] == Origin("base.yaml", 1)
    assert recipe.provenance["train.gradient_checkpointing_kwargs.use_reentrant"] == Origin("base.yaml", 2)
    assert str(recipe.provenance["train.seed"]) == "command line: train.seed=2"
    assert "extends" not in recipe.provenance


def test_all_problems_at_once_in_the_order_of_the_file(problems):
    text = """\
nmae: t
model: {id: m, dtyp: bf16, attn_implementation: mine}
data:
  train: [{path: a, weight: "2"}]
  path: b
learning_rate: 3
adapter: {r: 0, alpha: "3", dropout: 5 percent, target_modules: [1], dora: yes, method: qlra, quantization: {bits: 5}}
distributed: {processes: some}
train:
  lerning_rate: 1
  max_length: "2048"
  max_steps: 1e2
  optim: adamw_tourch
  output_dir: x
  packing: true
  eval_strategy: steps
"""
    assert problems(text, "train.seed=x", "oops") == [
        "r.yaml:1: nmae: is no key of a recipe. Did you mean `name`?",
        "r.yaml:2: model.dtyp: is no key of a recipe. Did you mean `dtype`?",
        "r.yaml:2: model.attn_implementation: is mine, which is not known to keep packed examples apart. Write one of "
        "auto, documents, sdpa, eager, flex_attention, flash_attention_2, flash_attention_3, flash_attention_4, "
        "or `train.packing: false`.",
        "r.yaml:4: data.train.0.weight: is the text '2', but must be a number. Write 2 without quotes.",
        "r.yaml:5: data.path: is no key of a recipe. Did you mean `data.train.0.path`?",
        "r.yaml:6: learning_rate: is no key of a recipe. Did you mean `train.learning_rate`?",
        "r.yaml:7: adapter.method: is the text 'qlra', but must be full, lora or qlora. Did you mean qlora?",
        "r.yaml:7: adapter.r: is the number 0, but must be greater than 0.",
        "r.yaml:7: adapter.alpha: is the text '3', but must be a whole number. Write 3 without quotes.",
        "r.yaml:7: adapter.dropout: is the text '5 percent', but must be a number. "
        "Write the number alone, without a unit.",
        "r.yaml:7: adapter.dora: is the text 'yes', but must be true or false. Write true or false, without quotes.",
        "r.yaml:7: adapter.target_modules.0: is the number 1, but must be text.",
        "r.yaml:7: adapter.quantization.bits: is the number 5, but must be 4 or 8.",
        "r.yaml:8: distributed.processes: is the text 'some', but must be a whole number or auto.",
        f"r.yaml:10: train.lerning_rate: is no field of trl.SFTConfig (trl {TRL}). Did you mean `learning_rate`?",
        "r.yaml:11: train.max_length: is the text '2048', but must be a whole number. Write 2048 without quotes.",
        "r.yaml:12: train.max_steps: is the number 100.0, but must be a whole number. Write 100.",
        "r.yaml:13: train.optim: is the text 'adamw_tourch', but must be one of its choices. Did you mean adamw_torch?",
        "r.yaml:14: train.output_dir: is set elsewhere in a recipe. Write `output_dir` at the top of the recipe.",
        "r.yaml:16: train.eval_strategy: is steps, but there is no evaluation data. Add `data.eval`, or"
        " `data.eval_fraction: 0.05`.",
        "command line: train.seed=x: train.seed: is the text 'x', but must be a whole number.",
        "command line: oops: is no override. Write key=value, for instance train.learning_rate=1e-4 or"
        " data.train.0.path=chats.jsonl.",
    ]


def test_one_wrong_value(problems):
    for flag, problem in (
        ("adapter.r=true", "adapter.r: is true, but must be a whole number."),
        ("adapter.dropout=1", "adapter.dropout: is the number 1, but must be less than 1."),
        ("adapter.dropout=-0.1", "adapter.dropout: is the number -0.1, but must be at least 0."),
        ("adapter.alpha=.inf", "adapter.alpha: is the number inf, but must be a finite number."),
        ("train.learning_rate=.nan", "train.learning_rate: is the number nan, but must be a finite number."),
        ("data.train=[null]", "data.train.0: is nothing (null), but must be a mapping."),
        ("train.packng=null", "train.packng: is no field of"),
        ("adapter=[]", "adapter: is an empty list, but must be a mapping."),
        ("data.train=[]", "data.train: is an empty list, but must be a list of at least 1."),
        ("name=''", "name: is empty text, but must be at least 1 character long."),
        ("adapter.target_modules={}", "adapter.target_modules: is an empty mapping, but must be text or a list."),
        ("distributed.processes=0", "distributed.processes: is the number 0, but must be greater than 0 or auto."),
        ("evaluate.metrics=[f1]", "evaluate.metrics.0: is the text 'f1', but must be perplexity, token_accuracy or"),
        ("adapter={alpha: 3, lora_alpha: 3}", "adapter.lora_alpha: is no key of a recipe. Did you mean `alpha`?"),
        ("load_in_4bit=true", "load_in_4bit: is no key of a recipe. Did you mean `adapter.quantization.bits`?"),
        ("distributed.xyzzy=1", "distributed.xyzzy: is no key of a recipe. Valid here: processes, nodes,"),
    ):
        (found,) = problems(HEAD, flag)
        assert found.startswith(f"command line: {flag}: {problem}")


def test_a_wrong_key_does_not_make_rules_complain_about_its_default(problems):
    # Without the evaluation data that the misspelt key names, a rule would say that there is none.
    text = HEAD.replace("train: [", "evall: [{path: e}], train: [") + "train: {eval_strategy: epoch}\n"
    assert problems(text) == ["r.yaml:3: data.evall: is no key of a recipe. Did you mean `eval`?"]


@pytest.mark.parametrize("tag", ["object/apply:os.system ['touch trace']", "name:os.system", "module:antigravity"])
def test_no_tag_runs_code(write, tag):
    field = f"run_name: !!python/{tag}"
    with pytest.raises(RecipeError, match="a recipe is plain data and builds no objects"):
        load_recipe(write(f"{HEAD}train: {{{field} }}\n"))
    with pytest.raises(RecipeError, match="a recipe is plain data and builds no objects"):
        load_recipe(write(HEAD), [f"train.{field.replace(': ', '=', 1)}"])
    assert not Path("trace").exists()


def test_loading_a_second_time_imports_no_torch(write):
    path = write()
    load_recipe(path)
    code = (
        "import sys; from hf_efficient.recipe.load import load_recipe; load_recipe(sys.argv[1]);"
        "print([name for name in ('torch', 'transformers', 'trl') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_file_flag_and_nobody(write):
    recipe = load_recipe(write(), ["distributed.processes=2", "distributed.global_batch_size=16"])
    assert told_where(recipe, "model.id").endswith("r.yaml:2: ")
    assert told_where(recipe, "distributed.processes") == "command line: distributed.processes=2: "
    assert told_where(recipe, "distributed.nodes") == ""  # a default
    assert told_where(recipe, "train.gradient_accumulation_steps") == ""  # derived
    assert told_where(small_recipe(), "name") == ""


def test_set_or_not(write):
    recipe = load_recipe(write(), ["distributed.processes=2"])
    for one in (recipe, change_recipe(recipe, {"model.id": "n"})):  # which gives every key
        assert (is_set(one, "distributed.processes"), is_set(one, "distributed.nodes")) == (True, False)
    built = small_recipe(distributed={"nodes": 1})
    assert (is_set(built, "distributed.processes"), is_set(built, "distributed.nodes")) == (False, True)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [([], "bf16"), (["train.bf16=false"], "no"), (["train.bf16=false", "train.fp16=true"], "fp16")],
)
def test_what_accelerate_calls_it(overrides, expected):
    assert mixed_precision(load_recipe("llama3.2-1b/lora", overrides)) == expected


TEXT = """\
recipe:
  name: tiny
  train: {learning_rate: 0.0002, bf16: false, note: '1e-4'}
  data: {train: [{path: a.jsonl}], eval: []}
provenance:
  train.learning_rate: 'command line: train.learning_rate=2e-4'
  data.train.0.path: /r/tiny.yaml:5
environment: {python: 3.11.7, gpus: []}
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "recipe.resolved.yaml"
    file.write_text(TEXT, encoding="utf-8")
    return file


def test_every_value_with_who_set_it(path):
    found = read_resolved(path)
    assert found.values == [
        ResolvedValue("name", "tiny", None),
        ResolvedValue("train.learning_rate", "0.0002", "command line: train.learning_rate=2e-4"),
        ResolvedValue("train.bf16", "false", None),
        ResolvedValue("train.note", "'1e-4'", None),
        ResolvedValue("data.train.0.path", "a.jsonl", "/r/tiny.yaml:5"),
        ResolvedValue("data.eval", "[]", None),
    ]
    assert found.environment == {"python": "3.11.7", "gpus": []}


def test_what_a_run_writes_is_read(tmp_path, write):
    from hf_efficient.launch.output import write_resolved_recipe

    loaded = load_recipe(write(), ["train.max_steps=3"])
    found = read_resolved(write_resolved_recipe(tmp_path / "out", loaded, {"python": "3"}))
    assert ResolvedValue("train.max_steps", "3", "command line: train.max_steps=3") in found.values
    assert ResolvedValue("name", loaded.name, str(loaded.provenance["name"])) in found.values


def test_what_is_no_resolved_recipe(path):
    for text, fault in (
        ("recipe: [", "cannot be read"),
        ("a: 1", "holds no recipe; a run writes it when its training starts"),
        ("recipe: !!python/object/apply:os.system ['true']", "cannot be read"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(OutputError, match=fault):
            read_resolved(path)


def test_keys_that_differ():
    first = ResolvedRecipe([ResolvedValue("name", "a", None), ResolvedValue("train.seed", "1", "x")], {})
    second = ResolvedRecipe([ResolvedValue("train.seed", "1", None), ResolvedValue("model.id", "m", None)], {})
    assert differing_keys([first, second]) == {"name": ["a", None], "model.id": [None, "m"]}
    assert differing_keys([first, first, first]) == {}
