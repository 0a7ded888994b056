"""Short forms, null, names that follow from the file, and evaluation data that stay with their training data."""

import pytest

from hf_efficient.recipe.load import change_recipe, load_recipe

SHORT = "model: m\ndata: a.jsonl\n"
OWN_EVAL = "model: m\ndata: {train: a.jsonl, eval: b.jsonl}\nname: base\ntrain: {eval_strategy: epoch}\n"


def paths(recipe):
    data = recipe.data
    return [one.path for one in data.train], [one.path for one in data.eval], data.eval_fraction


def test_short_forms_are_the_long_one(write):
    for text in (
        SHORT,
        "model: {id: m}\ndata: {train: a.jsonl}\n",
        "model: m\ndata: {train: {path: a.jsonl}}\n",
        "model: m\ndata: {train: [a.jsonl]}\n",
    ):
        recipe = load_recipe(write(text))
        long = load_recipe(write("model: {id: m}\ndata: {train: [{path: a.jsonl}]}\n"))
        assert recipe == long
        assert str(recipe.provenance["data.train.0.path"]).startswith("r.yaml:2")


def test_a_short_form_keeps_the_other_keys_of_its_section(write):
    write("model: {id: m, dtype: float32}\ndata: {train: [a, b], system: Hi}\n", "base.yaml")
    recipe = load_recipe(write("extends: base.yaml\nmodel: n\n"), ["data.train.1=c", "adapter.lora_alpha=3"])
    assert (recipe.model.id, recipe.model.dtype, recipe.data.system) == ("n", "float32", "Hi")
    assert paths(recipe) == (["a", "c"], [], None)
    assert recipe.adapter.alpha == 3


def test_names_of_peft(write):
    text = SHORT + "adapter: {lora_alpha: 8, lora_dropout: 0.1, use_dora: true, use_rslora: true}\n"
    adapter = load_recipe(write(text)).adapter
    assert (adapter.alpha, adapter.dropout, adapter.dora, adapter.rslora) == (8, 0.1, True, True)


def test_name_and_output_follow_from_the_file(write):
    recipe = load_recipe(write(SHORT, "deep/my-run.yaml"))
    assert (recipe.name, recipe.output_dir) == ("my-run", "outputs/my-run")
    assert str(recipe.provenance["output_dir"]) == "derived: name"
    assert change_recipe(recipe, {"name": "b"}).output_dir == "outputs/b"
    assert load_recipe("llama3.1-8b/qlora").output_dir == "outputs/llama3.1-8b-qlora"
    mine = load_recipe(write("extends: llama3.1-8b/qlora\n", "mine.yaml"))
    assert (mine.name, mine.output_dir) == ("mine", "outputs/mine")


@pytest.mark.parametrize(
    ("key", "default"),
    [("train.packing", None), ("adapter", None), ("adapter.r", 16), ("evaluate.generate", None), ("objective", "sft")],
)
def test_null_takes_an_inherited_value_away(write, key, default):
    value = {"adapter.r": "4", "objective": "dpo", "train.packing": "true"}.get(key, "{}")
    plain = load_recipe(write(SHORT, "r.yaml"))
    changed = load_recipe(write(SHORT, "r.yaml"), [f"{key}={value}", f"{key}=null"])
    assert changed.resolved() == plain.resolved()
    if default is not None:
        section, _, name = key.rpartition(".")
        assert getattr(getattr(changed, section) if section else changed, name) == default


def test_null_is_a_value_where_the_key_has_one(write):
    assert load_recipe(write(SHORT), ["train.max_length=null"]).train["max_length"] is None


def test_nothing_is_evaluated_on_another_task(write):
    for flags, expected in (
        ([], (["a.jsonl"], ["b.jsonl"], None)),
        (["data=c.jsonl"], (["c.jsonl"], [], 0.05)),
        (["data.train.0.path=c.jsonl"], (["c.jsonl"], [], 0.05)),
        (["data.train=c.jsonl", "data.eval_fraction=0.2"], (["c.jsonl"], [], 0.2)),
        (["data.train=c.jsonl", "data.eval=d.jsonl"], (["c.jsonl"], ["d.jsonl"], None)),
        (["data.eval=d.jsonl"], (["a.jsonl"], ["d.jsonl"], None)),
        (["data.eval_fraction=0.2"], (["a.jsonl"], [], 0.2)),
        (["data.train.0.weight=2.0"], (["a.jsonl"], ["b.jsonl"], None)),
        (["data.train.1=c.jsonl"], (["a.jsonl", "c.jsonl"], ["b.jsonl"], None)),
    ):
        path = write(OWN_EVAL, "base.yaml")
        assert paths(load_recipe(path, flags)) == expected
        lines = "".join(f"  {flag.removeprefix('data.').replace('=', ': ')}\n" for flag in flags if "data." in flag)
        if not any(".0" in flag or ".1" in flag or "data=" in flag for flag in flags) and lines:
            assert paths(load_recipe(write(f"extends: base.yaml\ndata:\n{lines}"))) == expected


def test_evaluation_data_replace_an_inherited_fraction(write):
    mine = write("extends: bases/lora\nmodel: m\ndata: {train: a.jsonl, eval: b.jsonl}\n")
    assert paths(load_recipe(mine)) == (["a.jsonl"], ["b.jsonl"], None)


@pytest.mark.parametrize("base", ["dora", "full", "lora", "qlora", "sft", "preference"])
def test_bases_need_data_and_a_model(write, problems, base):
    *models, data = sorted(problems(f"extends: bases/{base}\n"), key=lambda line: "data.train: is" in line)
    assert data == (
        "r.yaml: data.train: is missing. Write your training data: a file, `data.train: chats.jsonl`, or a hub name, "
        "`data.train: tatsu-lab/alpaca`."
    )
    (model,) = models
    assert model.partition(" is missing. Write a hub name")[0] in ("r.yaml: model.id:", "r.yaml: model:")
    recipe = load_recipe(write(f"extends: [bases/{base}, bases/preference]\n{SHORT}"))
    assert (recipe.objective, recipe.data.eval_fraction, "packing" in recipe.train) == ("dpo", 0.05, False)
