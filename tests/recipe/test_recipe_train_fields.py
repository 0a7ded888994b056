from __future__ import annotations

import dataclasses
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.recipe import train_fields as module
from hf_efficient.recipe.train_fields import TrainField, train_fields


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


def test_classes_that_yaml_cannot_write_accept_nothing():
    @dataclasses.dataclass
    class Config:
        other: list[int] | Config | None = None
        anything: object = 3

    kinds: list[str] = []
    items: list[str] = []
    for part in module._alternatives(list[int] | Config | None):
        module._add_alternative(part, kinds, items, [])
    assert (kinds, items) == (["list", "null"], ["int"])
    field = dataclasses.fields(Config)[1]
    assert module._describe("sft", field, object) == TrainField("anything", (), (), (), 3, "")
