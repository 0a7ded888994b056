"""The fields of ``train:``, and the values that they take."""

import dataclasses
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.recipe import train_fields as module
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.train_fields import train_fields


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_fields_are_those_of_the_installed_classes():
    trl = pytest.importorskip("trl")
    for method, config in (("sft", trl.SFTConfig), ("dpo", trl.DPOConfig)):
        assert list(train_fields(method)) == [field.name for field in dataclasses.fields(config) if field.init]


def test_kinds_choices_and_defaults():
    for method, name, expected in (
        ("sft", "learning_rate", (("float",), (), (), 2e-5)),
        ("sft", "max_length", (("int", "null"), (), (), 1024)),
        ("sft", "eval_strategy", (("str",), (), ("no", "steps", "epoch"), "no")),
        ("sft", "lr_scheduler_kwargs", (("mapping", "str", "null"), (), (), None)),
        ("sft", "parallelism_config", (("null",), (), (), None)),
        ("sft", "fsdp", (("str", "null", "bool"), (), (), None)),
        ("dpo", "loss_type", (("list", "str"), ("str",), (), ["sigmoid"])),
    ):
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
    assert [name[: name.index(start)] for name in names] == sorted(OBJECTIVES)


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
        b'{"format": 0, "fields": [1]}',
        b'{"format": 2, "fields": [{"name": "x", "kinds": 3, "item_kinds": [], "choices": []}]}',
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
    assert str(caught.value) == (
        "The package trl, for recipes and TRL's trainers, is not installed: run `pip install 'hf-efficient[recipes]'`."
    )


HEAD = "name: t\nmodel: {id: m}\ndata: {train: [{path: a}]}\noutput_dir: o\n"


# fmt: off
FITS = [
    "bf16=false", "max_length=null", "learning_rate=1", "run_name=''", "lr_scheduler_type=cosine",
    "lr_scheduler_kwargs={}", "lr_scheduler_kwargs='{}'", "parallelism_config=null", "seed=4294967295",
    "max_steps=-1", "num_train_epochs=0.5", "report_to=[none]", "save_strategy=best", "max_grad_norm=.inf",
    "label_names=[a, b]", "fsdp=false",
]
# fmt: on


@pytest.mark.parametrize("flag", FITS)
def test_what_fits(problems, flag):
    assert problems(HEAD, f"train.{flag}") == []


def test_what_does_not_fit(problems):
    for flag, problem in (
        ("packing=1", "is the number 1, but must be true or false."),
        ("seed=true", "is true, but must be a whole number."),
        ("seed='3.5'", "is the text '3.5', but must be a whole number."),
        ("eval_strategy=step", "is the text 'step', but must be no, steps or epoch. Did you mean steps?"),
        ("optim=x", "is the text 'x', but must be one of its choices. Choices: adamw_torch, "),
        ("lr_scheduler_kwargs=[1]", "is a list, but must be a mapping or text."),
        ("parallelism_config={}", "is an empty mapping, but must be left out: it cannot be written in YAML."),
        ("label_names.0=3", "is the number 3, but must be text."),
        ("max_length=0", "is the number 0, but must be at least 1."),
        ("seed=4294967296", "is the number 4294967296, but must be at most 4294967295."),
        ("num_train_epochs=-1", "is the number -1, but must be greater than 0."),
        ("report_to=wadb", "is the text 'wadb', but must be "),
        ("model_init_kwargs={}", "is set elsewhere in a recipe. Write the settings under `model`: dtype, "),
        ("target_modules=1", "is no field of trl.SFTConfig (trl TRL). Did you mean `adapter.target_modules`?"),
    ):
        (found,) = problems(HEAD, f"train.{flag}")
        name = flag.partition("=")[0]
        assert f"train.{name}: {problem.replace('TRL', module.train_versions()['trl'])}" in found


def test_the_fields_of_another_class(problems):
    (found,) = problems(HEAD, "objective=dpo", "train.packing=true")
    assert "train.packing: is no field of trl.DPOConfig (trl " in found
    assert problems(HEAD, "objective=dpo", "train.loss_type=sigmoid") == []
