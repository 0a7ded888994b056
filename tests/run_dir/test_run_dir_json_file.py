"""Records as files: whole or not at all, and read with their version."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hf_efficient.errors import OutputError
from hf_efficient.run_dir.json_file import read_record, strict_json, write_whole


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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "weighed.json: cannot be read: Input data was truncated"),
        ("[1]", "weighed.json: is not a weighing: "),
        ('{"grams": "heavy"}', "weighed.json: is not a weighing: Expected `float`, got `str` - at `$.grams`"),
        ('{"schema_version": 4, "kilograms": 1}', "schema_version 4 is newer than 3, which is read here: upgrade"),
    ],
)
def test_what_is_no_record(tmp_path, text, told):
    path = tmp_path / "weighed.json"
    path.write_text(text)
    with pytest.raises(OutputError) as raised:
        read(path)
    assert told in str(raised.value)
