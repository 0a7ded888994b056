"""From a folder to a diagnosis, whatever the run left in it."""

from __future__ import annotations

import json

import pytest

from hf_efficient.diagnosis.engine import diagnose, read_diagnosis, to_json, write_diagnosis
from hf_efficient.errors import OutputError
from tests.diagnosis.cases import case_in, settings, step

MANY_SAVES = {"settings": settings(arguments={"save_strategy": "steps", "save_steps": 2})}


def saving(count=20):
    phases = {"forward": 0.4, "backward": 0.6}
    return [step(n, phases={**phases, "checkpointing": 1.0} if n % 2 == 0 else phases) for n in range(1, count + 1)]


def test_a_run_is_diagnosed_by_its_output_directory(tmp_path):
    case_in(tmp_path / "efficiency", saving(), facts=MANY_SAVES)
    found = diagnose(tmp_path)
    assert found.findings[0].rule == "saves_cost"
    assert found.loop_seconds == pytest.approx(30.0)
    assert found == diagnose(tmp_path / "efficiency")


def test_the_diagnosis_is_written_and_read_again(tmp_path):
    case_in(tmp_path, saving(), facts=MANY_SAVES)
    write_diagnosis(tmp_path)
    assert read_diagnosis(tmp_path / "diagnosis.json") == diagnose(tmp_path)
    assert json.loads(to_json(diagnose(tmp_path)))["findings"][0]["rule"] == "saves_cost"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"schema_version": 99}', "schema_version 99 is newer than 1"),
        ("[]", "is not a diagnosis"),
        ("{", "cannot be read"),
        ('{"schema_version": 1}', "is not a diagnosis: hf_efficient_version"),
    ],
)
def test_a_file_that_is_no_diagnosis_is_refused(tmp_path, text, told):
    (tmp_path / "diagnosis.json").write_text(text)
    with pytest.raises(OutputError, match=told):
        read_diagnosis(tmp_path / "diagnosis.json")


def test_a_newer_schema_is_refused(tmp_path):
    case_in(tmp_path, saving(), facts=MANY_SAVES)
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write(json.dumps({**step(21), "schema_version": 99}) + "\n")
    with pytest.raises(OutputError, match=r"steps.jsonl:21: schema_version 99 is newer"):
        diagnose(tmp_path)


def test_a_half_written_step_is_left_out(tmp_path):
    case_in(tmp_path, saving(), facts=MANY_SAVES)
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "segm')
    assert diagnose(tmp_path).loop_seconds == pytest.approx(30.0)


@pytest.mark.parametrize("steps", [[], saving(1)], ids=["no step", "one step"])
def test_a_run_that_never_came_to_train_has_no_finding_made_up(tmp_path, steps):
    case_in(tmp_path, steps)
    found = diagnose(tmp_path)
    assert found.findings == []
    assert found.faults == []


def test_a_run_that_crashed_in_its_first_step(tmp_path):
    case_in(tmp_path)
    spans = (tmp_path / "spans.jsonl").read_text().splitlines()[:-2]
    error = {"ended": "error", "error": "OutOfMemoryError: CUDA out of memory", "process": 0}
    spans.append(json.dumps({"kind": "train_end", "segment": 0, "at_seconds": 3.0, **error}))
    spans.append(json.dumps({"kind": "end", "at_seconds": 3.0, "memory": {}, **error}))
    (tmp_path / "spans.jsonl").write_text("\n".join(spans) + "\n")
    found = diagnose(tmp_path)
    assert (found.ended, found.error, found.steps) == ("error", "OutOfMemoryError: CUDA out of memory", 0)
    assert [one.rule for one in found.findings] == ["out_of_memory"]
    assert found.faults == []
    assert found.limit is None


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(OutputError, match="holds no records of a run"):
        diagnose(tmp_path)
    with pytest.raises(OutputError, match="no such folder"):
        diagnose(tmp_path / "nowhere")


def test_where_only_the_account_was_kept_the_rules_abstain(tmp_path):
    from hf_efficient.accounting.account import write_account

    case_in(tmp_path, saving(), facts=MANY_SAVES)
    write_account(tmp_path)
    for name in ("steps.jsonl", "spans.jsonl"):
        (tmp_path / name).unlink()
    found = diagnose(tmp_path)
    assert found.findings == []
    assert {"saves_cost", "padding_waste"} <= {one.rule for one in found.abstentions}
