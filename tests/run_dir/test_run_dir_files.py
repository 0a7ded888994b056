"""Files of a run: lines that grow, byte by byte and block by block, and records whole or not at all."""

from dataclasses import dataclass

import pytest

from hf_efficient.errors import OutputError
from hf_efficient.run_dir.json_file import read_record, strict_json, write_whole
from hf_efficient.run_dir.jsonl import Replaced, Tail


def taken(tail):
    return [(number, line) for block in tail.blocks() for number, line in block if line]


def append(path, text):
    with path.open("ab") as file:
        file.write(text)


def test_every_look_gives_what_came_since(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a"')
    tail = Tail(path)
    assert taken(tail) == [(1, b'{"a": 1}'), (2, b'{"a": 2}')]
    append(path, b": 3}")
    assert taken(tail) == []
    append(path, b"\n")
    assert taken(tail) == [(3, b'{"a": 3}')]
    append(path, b'\n{"a": 5}\n')
    assert taken(tail) == [(5, b'{"a": 5}')]


def test_blocks_end_with_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_efficient.run_dir.jsonl._BLOCK_BYTES", 4)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'1\n2\n3\n{"long": 123}\n\n6\n{}')
    assert [(block.first_line, block.lines, block.text) for block in Tail(path).blocks()] == [
        (1, 2, b"1\n2\n"),
        (3, 2, b'3\n{"long": 123}\n'),
        (5, 2, b"\n6\n"),
    ]


@pytest.mark.parametrize(
    "text", [b'{"a": 1}\n', b'{"b": 9}\n{"a": 2}\n{"a": 3}\n', b""], ids=["shorter", "other", "empty"]
)
def test_a_file_that_does_not_go_on(tmp_path, text):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    tail = Tail(path)
    assert len(taken(tail)) == 2
    path.write_bytes(text)
    with pytest.raises(Replaced):
        taken(tail)


def test_a_file_that_is_gone(tmp_path):
    path = tmp_path / "a.jsonl"
    with pytest.raises(OutputError) as caught:
        taken(Tail(path))
    assert str(caught.value) == f"{path}: cannot be read (No such file or directory); name a run's a.jsonl"
    path.write_bytes(b"{}\n")
    tail = Tail(path)
    taken(tail)
    path.unlink()
    with pytest.raises(Replaced):
        taken(tail)


@dataclass(frozen=True)
class Weighed:
    grams: float
    schema_version: int = 3


def read(path):
    return read_record(path, Weighed, 3, "a weighing")


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "weighed.json"
    write_whole(path, strict_json(Weighed(grams=1.5)))
    assert path.read_text() == '{\n  "grams": 1.5,\n  "schema_version": 3\n}\n'
    assert read(path) == Weighed(grams=1.5)


def test_a_file_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    path = tmp_path / "weighed.json"
    write_whole(path, "before")

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "after")
    assert path.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["weighed.json"]


def test_what_is_no_record(tmp_path):
    for text, told in (
        ("{", "weighed.json: cannot be read: Input data was truncated"),
        ("[1]", "weighed.json: is not a weighing: "),
        ('{"grams": "heavy"}', "weighed.json: is not a weighing: Expected `float`, got `str` - at `$.grams`"),
        ('{"schema_version": 4, "kilograms": 1}', "schema_version 4 is newer than 3, which is read here: upgrade"),
    ):
        path = tmp_path / "weighed.json"
        path.write_text(text)
        with pytest.raises(OutputError) as raised:
            read(path)
        assert told in str(raised.value)
