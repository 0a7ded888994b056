"""Lines of a run directory: written whole, mended after a crash, read again."""

from __future__ import annotations

import json
import logging

import pytest

from hf_efficient.errors import OutputError
from hf_efficient.records.steps import StepRecord, TokenCounts
from hf_efficient.run_dir.reading import last_record, read_steps
from hf_efficient.run_dir.stream import FaultLatch, JsonlFile


def record(step, segment=0):
    return StepRecord(segment, 0, step, step / 4, 2.0, 1.0, {"forward": 0.5}, 1, TokenCounts(8, 6, None), loss=0.25)


def line(record):
    return json.dumps(record.to_json()).encode() + b"\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b'{"a": 1}\n', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"a": 2}', b'{"a": 1}\n{"a": 2}\n'),
        (b'{"a": 1}\n{"a": ', b'{"a": 1}\n'),
        (b'{"a": 1}\n{"a": "\xc3', b'{"a": 1}\n'),
        (b'{"a"', b""),
        (b'{"a": 1}\n17', b'{"a": 1}\n'),
        (b'{"text": "' + b"x" * 70_000 + b'"}\n{"half": "' + b"y" * 500, b'{"text": "' + b"x" * 70_000 + b'"}\n'),
    ],
)
def test_a_file_that_a_crash_left_is_mended(tmp_path, before, after):
    path = tmp_path / "new" / "steps.jsonl"
    path.parent.mkdir()
    path.write_bytes(before)
    JsonlFile(path).append(b'{"a": 3}\n')
    assert path.read_bytes() == after + b'{"a": 3}\n'


def test_lines_take_the_place_of_the_tail(tmp_path):
    path = tmp_path / "folder" / "spans.jsonl"
    file = JsonlFile(path)
    file.append(b'{"kind": "process"}\n', b'{"alive": "for a long while"}\n')
    length = len(path.read_bytes())
    file.append(b"", b'{"alive": 1}\n')
    assert len(path.read_bytes()) == length  # no kill can leave a piece of it
    assert [json.loads(one) for one in path.read_text().splitlines()] == [{"kind": "process"}, {"alive": 1}]
    file.append(b'{"kind": "span"}\n', b'{"alive": 2}\n')
    file.append(b"", b"")  # nothing to say: what was said stays
    assert [json.loads(one) for one in path.read_text().splitlines()][1:] == [{"kind": "span"}, {"alive": 2}]
    file.append(b'{"kind": "end"}\n')
    file.append(b'{"kind": "span"}\n')
    kinds = [json.loads(one)["kind"] for one in path.read_text().splitlines()]
    assert kinds == ["process", "span", "end", "span"]


def test_what_was_written_moves_along_over_what_lies_there(tmp_path):
    old, new = tmp_path / "starting/steps.jsonl", tmp_path / "steps.jsonl"
    new.write_text('{"another": "run"}\n')
    file = JsonlFile(old)
    file.append(b'{"step": 1}\n', b'{"alive": 1}\n')
    file.move_to(new)
    file.append(b'{"step": 2}\n')
    assert ([json.loads(one) for one in new.read_text().splitlines()], old.exists()) == (
        [{"step": 1}, {"step": 2}],
        False,
    )
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"exists|directory"):
        file.move_to(tmp_path / "file/steps.jsonl")


def test_a_folder_that_vanished_or_cannot_be_made_is_noticed(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"exists|directory"):
        JsonlFile(tmp_path / "file" / "steps.jsonl")
    file = JsonlFile(tmp_path / "folder" / "steps.jsonl")
    (tmp_path / "folder").rmdir()
    with pytest.raises(FileNotFoundError):
        file.append(b"{}\n")


def test_one_fault_of_several_files_is_one_warning(tmp_path, caplog):
    latch = FaultLatch()
    for number in range(3):
        latch.tell(tmp_path / "steps.jsonl", OSError(number))
    assert caplog.messages == [
        f"{tmp_path}/steps.jsonl cannot be written (0). Training goes on; its steps are not recorded."
    ]


def test_records_go_to_json_and_back(tmp_path):
    path = tmp_path / "steps.jsonl"
    JsonlFile(path).append(line(record(1)) + line(record(2)))
    assert list(read_steps(path)) == [record(1), record(2)]
    assert last_record(path) == record(2).to_json()


def test_half_a_last_line_and_a_broken_one_are_skipped_with_a_word(tmp_path, caplog):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"\0\0\0\n\n" + line(record(1)) + b'{"schema_version": 1, "se')
    with caplog.at_level(logging.INFO):
        assert list(read_steps(path)) == [record(1)]
    assert [(entry.levelname, entry.getMessage()) for entry in caplog.records] == [
        ("WARNING", f"{path}:1 is not a JSON object; it is skipped"),
        ("INFO", f"{path}:4 is half-written and skipped"),
    ]
    assert last_record(path) == record(1).to_json()


@pytest.mark.parametrize("zeros", [10, 70_000, 3_000_000])
def test_zeros_that_a_power_cut_left_cost_no_record(tmp_path, zeros):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(line(record(1)) + b"\0" * zeros)
    assert last_record(path) == record(1).to_json()
    JsonlFile(path).append(line(record(2)))
    assert list(read_steps(path)) == [record(1), record(2)]


def test_the_last_record_that_holds_a_number(tmp_path):
    path = tmp_path / "spans.jsonl"
    path.write_text('{"process": 4}\n{"process": "x"}\n{"other": 3}\n')
    assert last_record(path, "process") == {"process": 4}
    assert last_record(path) == {"other": 3}
    assert last_record(path, "nothing") is None


def test_reading_what_is_not_there_or_not_a_record(tmp_path):
    missing = tmp_path / "steps.jsonl"
    assert last_record(missing) is None
    with pytest.raises(OutputError, match=r"steps.jsonl: cannot be read \(No such file or directory\); name a run's"):
        list(read_steps(missing))
    missing.write_text('{"schema_version": 99}\n')
    with pytest.raises(OutputError, match=r"steps.jsonl:1: schema_version 99 is newer than 1, which is read here"):
        list(read_steps(missing))
