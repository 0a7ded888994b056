"""The fields of ``train:``, and the values that they take."""

from __future__ import annotations

import dataclasses
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.recipe import train_fields as module
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.train_fields import TrainField, check_train, train_fields
from hf_efficient.recipe.tree import dotted, wrap


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_trl(monkeypatch):
    """Importing trl fails, so that only what is remembered can answer."""
    monkeypatch.setitem(sys.modules, "trl", None)


def test_the_fields_are_those_of_the_installed_classes():
    trl = pytest.importorskip("trl")
    for method, config in (("sft", trl.SFTConfig), ("dpo", trl.DPOConfig)):
        assert list(train_fields(method)) == [field.name for field in dataclasses.fields(config) if field.init]


@pytest.mark.parametrize(
    ("method", "name", "expected"),
    [
        ("sft", "learning_rate", (("float",), (), (), 2e-5)),
        ("sft", "max_length", (("int", "null"), (), (), 1024)),
        ("sft", "bf16", (("bool", "null"), (), (), None)),
        ("sft", "eval_strategy", (("str",), (), ("no", "steps", "epoch"), "no")),
        ("sft", "packing_strategy", (("str",), (), ("bfd", "bfd_split", "wrapped"), "bfd")),
        ("sft", "gradient_checkpointing", (("bool",), (), (), True)),
        ("sft", "lr_scheduler_kwargs", (("mapping", "str", "null"), (), (), None)),
        ("sft", "parallelism_config", (("null",), (), (), None)),
        ("sft", "fsdp", (("str", "null", "bool"), (), (), None)),
        ("dpo", "loss_type", (("list", "str"), ("str",), (), ["sigmoid"])),
    ],
)
def test_kinds_choices_and_defaults(method, name, expected):
    field = train_fields(method)[name]
    assert (field.kinds, field.item_kinds, field.choices, field.default) == expected


def test_reports_go_to_what_transformers_knows():
    utils = pytest.importorskip("transformers.integrations.integration_utils")
    field = train_fields("sft")["report_to"]
    assert (field.kinds, field.item_kinds, field.default) == (("null", "str", "list"), ("str",), "none")
    assert field.choices == ("none", "all", *sorted(utils.INTEGRATION_TO_CALLBACK))
    assert "wandb" in field.choices


def test_they_are_remembered_without_trl(own_cache, monkeypatch):
    fields = train_fields("dpo")
    monkeypatch.setitem(sys.modules, "trl", None)
    assert train_fields("dpo") == fields
    assert set(train_fields("sft")) != set(fields)
    start = f"-trl-{module.train_versions()['trl']}-"
    names = sorted(path.name for path in (own_cache / "train_fields").iterdir())
    assert [name[: name.index(start)] for name in names] == ["dpo", "sft"]


def test_another_version_is_read_anew(own_cache, monkeypatch):
    train_fields("sft")
    monkeypatch.setattr(module, "train_versions", lambda: {"trl": "99.0", "transformers": "99.0"})
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(SetupError, match=r"^trl 99\.0 cannot be imported: .* Reinstall it\.$"):
        train_fields("sft")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"format": 0, "fields": [1]}',
        b'{"format": 1, "fields": [{}]}',
        b'{"format": 2, "fields": []}',
        b'{"format": 2, "fields": [{"name": "x"}]}',
        b'{"format": 2, "fields": [{"name": "x", "kinds": 3, "item_kinds": [], "choices": []}]}',
        b'{"format": 2, "fields": [{"name": "x", "kinds": [], "item_kinds": [], "choices": [], "more": 1}]}',
        b"[" * 100_000,
    ],
)
def test_a_broken_cache_is_rebuilt(own_cache, content):
    fields = train_fields("sft")
    path = next((own_cache / "train_fields").glob("sft-*"))
    good = path.read_bytes()
    path.write_bytes(content)
    assert train_fields("sft") == fields
    assert path.read_bytes() == good


def test_an_unwritable_cache_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "file" / "below"))
    assert train_fields("sft")["learning_rate"].default == 2e-5


def test_a_full_disk_leaves_no_half_a_file(own_cache, monkeypatch):
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert train_fields("sft")["learning_rate"].default == 2e-5
    assert list((own_cache / "train_fields").iterdir()) == []


def test_a_package_that_is_not_installed(monkeypatch):
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(SetupError) as caught:
        train_fields("sft")
    assert str(caught.value) == "The package trl is not installed. Install it: pip install trl"


def field(name: str, *kinds: str, items: tuple[str, ...] = (), choices: tuple[str, ...] = ()) -> TrainField:
    return TrainField(name, kinds, items, choices, None, "")


FIELDS = {
    one.name: one
    for one in (
        field("flag", "bool"),
        field("count", "int", "null"),
        field("rate", "float"),
        field("text", "str"),
        field("choice", "str", choices=("red", "green")),
        field("many", "str", choices=tuple(f"choice_{i:02}" for i in range(13))),
        field("names", "null", "str", "list", items=("str",)),
        field("debug", "str", "list", items=("str",), choices=("flow", "metrics")),
        field("kwargs", "mapping", "str", "null"),
        field("object", "null"),
        field("free", "any"),
        field("max_length", "int", "null"),
        field("seed", "int"),
        field("data_seed", "int", "null"),
        field("max_steps", "int"),
        field("num_train_epochs", "float"),
        field("report_to", "str", "list", items=("str",), choices=("none", "all", "wandb")),
        field("output_dir", "str"),
    )
}


def said(name: str, value: object, fields=FIELDS, method: str = "sft") -> list[str]:
    tree = wrap({"train": {name: value}}, Origin("r.yaml", 1))
    found = check_train(tree, method, fields)
    return [f"{dotted(one.path)}: {one.message} {one.remedy}".rstrip() for one in found]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flag", True),
        ("count", 3),
        ("count", None),
        ("rate", 3),
        ("rate", 2e-4),
        ("text", ""),
        ("choice", "green"),
        ("many", "choice_07"),
        ("names", ["a", "b"]),
        ("names", "a"),
        ("names", None),
        ("debug", "flow metrics"),
        ("debug", ""),
        ("debug", ["flow"]),
        ("kwargs", {"a": [1]}),
        ("kwargs", "{}"),
        ("object", None),
        ("free", [{}]),
        ("max_length", 1),
        ("max_length", None),
        ("seed", 2**32 - 1),
        ("max_steps", -1),
        ("num_train_epochs", 0.5),
        ("report_to", ["wandb"]),
    ],
)
def test_what_fits(name, value):
    assert said(name, value) == []


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("flag", 1, "is the number 1, but must be true or false."),
        ("flag", "yes", "is the text 'yes', but must be true or false. Write true or false, without quotes."),
        ("flag", None, "is nothing (null), but must be true or false. Leave the key out to get its default."),
        ("count", True, "is true, but must be a whole number."),
        ("count", 3.0, "is the number 3.0, but must be a whole number. Write 3."),
        ("count", 3.5, "is the number 3.5, but must be a whole number."),
        ("count", "3", "is the text '3', but must be a whole number. Write 3 without quotes."),
        ("count", "3.5", "is the text '3.5', but must be a whole number."),
        ("rate", "2e-4", "is the text '2e-4', but must be a number. Write 2e-4 without quotes."),
        ("rate", "fast", "is the text 'fast', but must be a number."),
        ("rate", False, "is false, but must be a number."),
        ("text", 3, "is the number 3, but must be text."),
        ("choice", "grene", "is the text 'grene', but must be one of red or green. Did you mean green?"),
        ("choice", 3, "is the number 3, but must be one of red or green."),
        ("many", "coice_07", "is the text 'coice_07', but must be one of its choices. Did you mean choice_07?"),
        ("many", "x", "is the text 'x', but must be one of its choices. Choices: choice_00, choice_01, choice_02,"),
        ("names", {"a": 1}, "is a mapping, but must be text or a list."),
        ("debug", "flow metric", "is the text 'flow metric', but must be one of flow or metrics. Did you mean"),
        ("kwargs", [1], "is a list, but must be a mapping or text."),
        ("object", {}, "is an empty mapping, but must be left out: it cannot be written in YAML."),
        ("max_length", 0, "is the number 0, but must be at least 1."),
        ("seed", 2**32, "is the number 4294967296, but must be at most 4294967295."),
        ("data_seed", 2**32, "is the number 4294967296, but must be at most 4294967295."),
        ("data_seed", -1, "is the number -1, but must be at least 0."),
        ("max_steps", 0, "is the number 0, which trains nothing. Write a number of steps, or -1 for as many as"),
        ("num_train_epochs", 0.0, "is the number 0.0, which trains nothing. Write more than 0."),
        ("num_train_epochs", -1, "is the number -1, which trains nothing. Write more than 0."),
        ("report_to", "wadb", "is the text 'wadb', but must be one of none, all or wandb. Did you mean wandb?"),
        ("report_to", "all wandb", "is the text 'all wandb', but must be one of none, all or wandb. Did you mean"),
        ("output_dir", "x", "is set elsewhere in a recipe. Write `output_dir` at the top of the recipe."),
    ],
)
def test_what_does_not_fit(name, value, problem):
    (found,) = said(name, value)
    assert found.startswith(f"train.{name}: {problem}")


def test_items_of_a_list_are_told_by_their_index():
    assert said("names", ["a", 3, None]) == [
        "train.names.1: is the number 3, but must be text.",
        "train.names.2: is nothing (null), but must be text.",
    ]
    assert said("debug", ["flow", "metric"]) == [
        "train.debug.1: is the text 'metric', but must be one of flow or metrics. Did you mean metrics?"
    ]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("model_init_kwargs", "Write the settings under `model`: dtype, attn_implementation, revision."),
        ("trust_remote_code", "Write `model.trust_remote_code`."),
        ("dataset_kwargs", "Write the settings under `data`."),
    ],
)
def test_fields_with_another_home(name, remedy):
    assert said(name, {}) == [f"train.{name}: is set elsewhere in a recipe. {remedy}"]


def test_unknown_fields_and_where_they_belong(monkeypatch):
    monkeypatch.setattr("hf_efficient.recipe.train_fields.train_versions", lambda: {"trl": "1.2"})
    fields, unknown = train_fields("sft"), "is no field of trl.SFTConfig (trl 1.2)."
    assert said("packin", True, fields) == [f"train.packin: {unknown} Did you mean `packing`?"]
    assert said("lr", 1, fields) == [f"train.lr: {unknown} Did you mean `learning_rate`?"]
    assert said("target_modules", 1, fields) == [
        f"train.target_modules: {unknown} Did you mean `adapter.target_modules`?"
    ]
    assert said("xyzzy", 1, fields) == [f"train.xyzzy: {unknown}"]
    assert said("packing", True, train_fields("dpo"), "dpo") == [
        "train.packing: is no field of trl.DPOConfig (trl 1.2)."
    ]
