from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from hf_efficient.recipe.files import shipped_root
from hf_efficient.recipe.json_schema import json_schema
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.tree import parse_yaml


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def errors(validator: Draft202012Validator, text: str) -> list[str]:
    data = parse_yaml(text, Origin("r.yaml")).plain()
    return sorted(f"{error.json_path}: {error.message}" for error in validator.iter_errors(data))


def test_valid(validator):
    for text in (
        "{}",
        "extends: base.yaml",
        "extends: [a.yaml, b.yaml]\nmodel: {dtype: bfloat16}\ndata: {system: Be short.}",
        "name: t\nmodel: {id: m}\ndata: {train: [{path: a, weight: 2}]}\noutput_dir: o\ntrain: {learning_rate: 2e-4}",
        "train: {beta: 0.1, packing: true, max_length: null, report_to: [wandb], loss_type: [sigmoid]}",
        "objective: sft\ntrain: {packing: true, optim: adamw_torch, loss_type: nll}",
        "objective: dpo\ntrain: {beta: 0.1}",
        "adapter: {quantization: null, target_modules: [q_proj], lora_alpha: 8}",
        "model: m\ndata: a.jsonl",
        "data: {train: a.jsonl, eval: {path: b}}",
        "data: {train: [a.jsonl, {path: b}]}",
        "name: null\nadapter: null\nevaluate: {generate: null}\ntrain: {packing: null, eval_strategy: null}",
        "objective: dpo\ntrain: {packing: null}",
    ):
        assert errors(validator, text) == []


def test_invalid(validator):
    for text, error in (
        ("nmae: t", "$: Additional properties are not allowed ('nmae' was unexpected)"),
        ("extends: 3", "$.extends: 3 is not valid under any of the given schemas"),
        ("adapter: {r: 0}", "$.adapter.r: 0 is less than or equal to the minimum of 0"),
        ("data: {train: [{weight: 2}]}", "$.data.train[0]: 'path' is a required property"),
        ("train: {lerning_rate: 1}", "$.train: Additional properties are not allowed ('lerning_rate' was unexpected)"),
        ("data: {train: {weight: 2}}", "$.data.train: 'path' is a required property"),
        ("train: {learning_rate: fast}", "$.train.learning_rate: 'fast' is not of type 'number', 'null'"),
        ("train: {seed: 4294967296}", "$.train.seed: 4294967296 is greater than the maximum of 4294967295"),
        ("adapter: {method: qlra}", "$.adapter.method: 'qlra' is not one of ['full', 'lora', 'qlora', None]"),
        ("objective: dpo\ntrain: {packing: true}", "$.train.packing: True is not of type 'null'"),
        ("objective: sft\ntrain: {beta: 0.1}", "$.train.beta: 0.1 is not of type 'null'"),
    ):
        assert errors(validator, text) == [error]


def test_fields_carry_their_help_and_default():
    train = json_schema()["$defs"]["Train"]["properties"]
    assert train["packing_strategy"]["default"] == "bfd"
    assert train["packing_strategy"]["description"].startswith("Strategy for packing sequences.")
    assert "default" not in train["learning_rate"], "SFTConfig and DPOConfig differ"
    elsewhere = {"output_dir", "model_init_kwargs", "trust_remote_code", "dataset_kwargs", "parallelism_config"}
    assert elsewhere & set(train) == set()


def test_every_shipped_file_fits(validator):
    files = [path for path in sorted(shipped_root().rglob("*.yaml")) if "accelerate" not in path.parts]
    assert files
    for path in files:
        assert errors(validator, Path(path).read_text(encoding="utf-8")) == [], path
