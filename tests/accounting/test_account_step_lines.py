"""Typed lines against the records that they are written from, and what is no such line."""

from __future__ import annotations

import json

import msgspec
import pytest
from test_account_build import lines, step
from test_account_series import full_step

from hf_efficient.accounting.step_sums import StepLine, step_reader, step_seconds
from hf_efficient.errors import OutputError
from hf_efficient.records.steps import StepLoader, StepRecord
from hf_efficient.run_dir.reading import Tail


def read(path, rank=0):
    reader = step_reader(detailed=rank == 0)
    return [line for block in Tail(path).blocks() for line in reader.read(block)[0]]


def test_a_line_holds_what_the_record_does(tmp_path):
    written = full_step(7, 1.5, 2.0, loss=3.5, learning_rate=0.5, grad_norm=float("inf"))
    written["phase_seconds"] |= {"evaluation": 0.5, "checkpointing": 0.25}
    lines(tmp_path / "steps.jsonl", written, step(8, 3.5, 1.0))
    first, second = read(tmp_path / "steps.jsonl")
    held = msgspec.to_builtins(first)
    written["loader"] = msgspec.to_builtins(StepLoader(**written["loader"]))  # whose defaults are not written
    assert held == {key: written[key] for key in held}
    assert set(written) - set(held) == {"rank", "epoch", "micro_batches", "unattributed_seconds"}
    assert step_seconds(first) == 1.25
    assert (second.sequences, second.work, second.memory, second.device_seconds, second.loss) == (None,) * 5
    other = read(tmp_path / "steps.jsonl", rank=3)
    assert [line.phase_seconds for line in other] == [first.phase_seconds, second.phase_seconds]
    assert not hasattr(other[0], "memory")


def test_every_field_of_a_line_is_one_of_the_record():
    known = set(full_step(1, 0.0, 1.0, learning_rate=1.0, grad_norm=1.0))
    assert {field.name for field in msgspec.structs.fields(StepLine)} <= known


def test_what_only_json_reads_is_read_like_the_rest(tmp_path, caplog):
    path = tmp_path / "steps.jsonl"
    texts = [json.dumps(step(number, 0.0, 1.0)) for number in (1, 2, 3, 4)]
    odd = texts[1].replace('"loss": null', '"loss": NaN')
    path.write_bytes("\n".join([texts[0], "", odd, "\0\0\0", "[]", texts[2] + texts[3], texts[3], ""]).encode())
    assert [line.step for line in read(path)] == [1, 2, 4]
    assert [entry.getMessage() for entry in caplog.records] == [
        f"{path}:{number} is not a JSON object and skipped" for number in (4, 5, 6)
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema_version": "1"}, "not a record: schema_version is '1'"),
        ({"tokens": None}, "not a step record: ValidationError: Expected `object`, got `null` - at `$.tokens`"),
        ({"wall_seconds": float("nan")}, "not a step record: ValueError: wall_seconds is nan"),
        ({"phase_seconds": {"forward": float("inf")}}, "not a step record: ValueError: phase_seconds.forward is inf"),
        ({"step": "x"}, "not a step record: ValidationError: Expected `int`, got `str` - at `$.step`"),
    ],
)
def test_what_is_no_step_is_left_out(tmp_path, caplog, change, told):
    path = tmp_path / "steps.jsonl"
    lines(path, step(1, 0.0, 1.0), {**step(2, 1.0, 1.0), **change}, step(3, 2.0, 1.0))
    (block,) = Tail(path).blocks()
    found, skipped = step_reader(detailed=True).read(block)
    assert ([line.step for line in found], skipped) == ([1, 3], 1)
    assert [entry.getMessage() for entry in caplog.records] == [f"{path}:2 is {told}; it is skipped"]


def test_a_step_of_a_newer_version_is_refused(tmp_path):
    path = tmp_path / "steps.jsonl"
    lines(path, step(1, 0.0, 1.0), {**step(2, 1.0, 1.0), "schema_version": 2})
    with pytest.raises(OutputError) as caught:
        read(path)
    assert str(caught.value) == f"{path}:2: schema_version 2 is newer than 1, which is read here: upgrade hf-efficient"


def test_a_record_of_the_stream_is_read_both_ways(tmp_path):
    lines(tmp_path / "steps.jsonl", full_step(1, 0.5, 1.0, loss=float("nan")))
    (line,) = read(tmp_path / "steps.jsonl")
    record = StepRecord.from_json(json.loads((tmp_path / "steps.jsonl").read_text()))
    assert (line.wall_seconds, line.work.model_flops, line.loss) == (record.wall_seconds, 100, "nan")
