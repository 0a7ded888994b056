import json
from pathlib import Path

import datasets
import pytest
from made_data import refused

from hf_efficient.data import sources
from hf_efficient.data.sources import open_source
from hf_efficient.errors import DataError
from hf_efficient.recipe.schema import SourceSection

ROWS = [{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}]


def read(path: object, **settings: object) -> list[tuple[str, dict]]:
    source = open_source(SourceSection(path=str(path), **settings), "data.train.0")
    return [(row.where, dict(row.value)) for row in source.rows()]


def message(path: object, **settings: object) -> str:
    return refused(read, path, **settings)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_rows_of_each_kind_of_file(tmp_path):
    path = write(
        tmp_path / "a.jsonl", '\ufeff{"prompt": "a", "completion": "b"}\n\n  \n{"prompt": "c", "completion": "d"}'
    )
    assert read(path) == [(f"{path}:1", ROWS[0]), (f"{path}:4", ROWS[1])]
    path = write(tmp_path / "a.csv", 'prompt,completion\n"a\nb",c\n\nd,"e, ""f"""\n')
    assert read(path) == [
        (f"{path}:2", {"prompt": "a\nb", "completion": "c"}),
        (f"{path}:5", {"prompt": "d", "completion": 'e, "f"'}),
    ]
    path = tmp_path / "a.parquet"
    datasets.Dataset.from_list(ROWS).to_parquet(str(path))
    assert read(path) == [(f"{path}, row 1", ROWS[0]), (f"{path}, row 2", ROWS[1])]
    plain = write(tmp_path / "a.json", json.dumps(ROWS))
    under = write(tmp_path / "b.json", json.dumps({"version": 1, "data": ROWS}))
    assert read(plain) == [(f"{plain}, row 1", ROWS[0]), (f"{plain}, row 2", ROWS[1])]
    assert [row for _, row in read(under)] == ROWS


def test_a_folder_of_save_to_disk(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(ROWS[:1]), "dev": datasets.Dataset.from_list(ROWS[1:])}
    ).save_to_disk(str(tmp_path / "two"))
    assert [row for _, row in read(tmp_path / "one")] == ROWS
    assert read(tmp_path / "two", split="dev") == [(f"{tmp_path / 'two'}, row 1", ROWS[1])]
    assert message(tmp_path / "two", split="test") == (
        f"data.train.0.split: {tmp_path / 'two'} has no split 'test'; it has: train, dev."
    )
    assert message(tmp_path / "one", split="test") == (
        f"data.train.0.split: {tmp_path / 'one'} holds one data set without a split 'test'; leave it out."
    )


def test_a_folder_of_files_is_read_in_the_order_of_their_names(tmp_path):
    write(tmp_path / "b.jsonl", '{"text": "2"}\n')
    write(tmp_path / "a.csv", "text\n1\n")
    write(tmp_path / "readme.md", "not data")
    assert read(tmp_path) == [(f"{tmp_path}/a.csv:2", {"text": "1"}), (f"{tmp_path}/b.jsonl:1", {"text": "2"})]


def test_builtins_and_splits(tmp_path):
    [(where, row), *_] = read("builtin:python-docstrings", split="eval")
    assert where == "builtin:python-docstrings, row 1"
    assert row["split"] == "eval"
    assert [turn["role"] for turn in row["prompt"] + row["completion"]] == ["user", "assistant"]
    assert message("builtin:docs") == (
        "data.train.0.path: unknown builtin:docs; the embedded data sets: builtin:python-docstrings, "
        "builtin:docstring-pairs."
    )
    assert message("builtin:python-docstrings", split="test") == (
        "data.train.0.split: builtin:python-docstrings has no split 'test'; it has: train, eval."
    )
    path = write(tmp_path / "a.jsonl", "{}")
    assert message(path, split="test") == (
        f"data.train.0.split: {path} is a file and has no splits; leave `split: test` out, or name the "
        "file of that split."
    )


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": b"}\n', "{path}:2: not valid JSON (column 10: Expecting value):"),
        ("a.jsonl", "[\n{}\n]\n", "{path}:1: not valid JSON (column 2: Expecting value): `[`. It looks like one JSON"),
        ("a.jsonl", '{"a": 1}\n[1]\n', "{path}:2: expected an object ({{...}}), found a list."),
        ("a.jsonl", '{"a": 1}\n' + "[" * 100_000, "{path}:2: not readable as JSON: maximum recursion depth exceeded"),
        ("a.json", "[" + "1" * 5000 + "]", "{path}: not readable as JSON: Exceeds the limit (4300 digits)"),
        ("a.jsonl", "null\n", "{path}:1: expected an object ({{...}}), found null."),
        ("a.jsonl", b'{"a": "x"}\n{"a": "\xff"}\n', "{path}:2: not UTF-8 (byte 0xff at offset 7). Save the file as"),
        ("a.jsonl", '{"a": 1}'.encode("utf-16"), "{path}:1: not UTF-8 (byte 0xff at offset 0). It looks like UTF-16."),
        ("a.json", '[{"a": 1},\n{"a" 2}]', "{path}:2: not valid JSON (column 6: Expecting ':' delimiter)."),
        ("a.json", '{"a": 1}\n{"a": 2}\n', "{path}:2: not valid JSON (column 1: Extra data). If it holds one object"),
        ("a.json", '{"rows": []}', '{path}: expected a list of objects, or {{"data": [...]}}; found an object.'),
        ("a.json", "[1]", "{path}, row 1: expected an object ({{...}}), found a number."),
        ("a.csv", "a,b\n1,2\n1,2,3\n", "{path}:3: 3 fields, but the header names 2 columns."),
        ("a.csv", "a,b\n1\n", "{path}:2: 1 field, but the header names 2 columns."),
        ("a.csv", "prompt;completion\n1;2\n", "{path}:1: the header names one column, 'prompt;completion': it seems"),
        ("a.csv", "prompt\tcompletion\n1\t2\n", "{path}:1: the header names one column, 'prompt\\tcompletion': it"),
        ("a.jsonl", b"\x1f\x8b\x08\x00", "{path}: is gzip-compressed. Unpack it (gunzip) and name the unpacked file."),
        ("a.json", "", "data.train.0.path: {path} is empty: it has no rows."),
        ("a.csv", "a,b,a\n1,2,3\n", "{path}:1: the header names a column twice: 'a'."),
        ("a.csv", 'a\n"1\n', "{path}:2: not valid CSV: unexpected end of data."),
        ("a.csv", b"a\n\xe9\n", "{path}: not UTF-8 (byte 0xe9 at offset 2). Save the file as UTF-8."),
        ("a.json", "[]", "data.train.0.path: {path} is empty: it has no rows."),
        ("a.csv", "a,b\n", "data.train.0.path: {path} is empty: it has no rows."),
        ("a.xml", "<a/>", "data.train.0.path: {path}: unknown kind of file; known suffixes: .jsonl, .ndjson, .json,"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_line(tmp_path, name, content, expected):
    path = write(tmp_path / name, content)
    assert message(path).startswith(expected.format(path=path))


def test_a_long_broken_line_is_excerpted(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "' + "x" * 100 + '", nonsense, "more": "' + "y" * 100 + '"}\n')
    assert message(path) == (
        f"{path}:1: not valid JSON (column 114: Expecting property name enclosed in double quotes): "
        f'`…{"x" * 37}", nonsense, "more": "y…`.'
    )


def test_a_missing_file_names_the_nearest(tmp_path):
    write(tmp_path / "chats.jsonl", "{}")
    missing = tmp_path / "chat.jsonl"
    assert message(missing) == (f"data.train.0.path: no such file: {missing}. Nearest in {tmp_path}: chats.jsonl.")
    assert message(tmp_path / "zzz.csv") == f"data.train.0.path: no such file: {tmp_path / 'zzz.csv'}."
    assert message(tmp_path / "no" / "a.csv") == (
        f"data.train.0.path: no such file: {tmp_path / 'no' / 'a.csv'}. The folder {tmp_path / 'no'} does "
        "not exist either."
    )
    write(tmp_path / "state.json", "{}")
    assert message(tmp_path).startswith(
        f"data.train.0.path: {tmp_path} is not a readable folder of Dataset.save_to_disk: "
    )


@pytest.mark.parametrize("name", ["./chats", "~/nowhere/chats", "chats.json", "a/b/c", "data.tsv"])
def test_what_cannot_be_a_hub_name_is_a_missing_file(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message(name).startswith(f"data.train.0.path: no such file: {name}.")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_a_file_that_may_not_be_read(name, tmp_path, monkeypatch):
    path = write(tmp_path / name, "{}")
    opened = Path.open

    def guarded(self, *args, **settings):  # these tests may run as root, who may read everything
        if self == path:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *args, **settings)

    monkeypatch.setattr(Path, "open", guarded)
    assert message(path) == f"{path}: cannot be read: Permission denied."


def test_without_a_network_the_hub_is_not_waited_for(monkeypatch):
    seen = []
    monkeypatch.setattr(sources, "hub_reachable", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)

    def load_dataset(path, name, split):
        seen.append(datasets.config.HF_HUB_OFFLINE)
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    read("owner/set")
    monkeypatch.setattr(sources, "hub_reachable", lambda: True)
    read("owner/set")
    assert seen == [True, False]
    assert datasets.config.HF_HUB_OFFLINE is False


def test_a_hub_name_without_a_network_says_so_and_names_the_local_ways():
    text = message("somebody/some-data-v1.5")
    assert text.startswith(
        "data.train.0.path: somebody/some-data-v1.5: no such local path, and the hub cannot be reached ("
    )
    assert text.endswith(
        "Local ways: a path to a .jsonl/.ndjson/.json/.csv/.parquet/.txt/.md/.html/.htm/.pdf file, a folder of such "
        "files, a folder "
        "written by Dataset.save_to_disk, builtin:python-docstrings, or a hub data set that this machine has cached "
        "(HF_HUB_OFFLINE=1)."
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            datasets.exceptions.DatasetNotFoundError("it is not there"),
            "data.train.0.path: owner/set: no such local path, and no such hub data set (it is not "
            "there). Local ways: ",
        ),
        (ValueError("Unknown split"), "data.train.0: owner/set cannot be loaded from the hub: Unknown split"),
    ],
)
def test_what_the_hub_says_is_passed_on(monkeypatch, error, expected):
    def load_dataset(path, name, split):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert message("owner/set").startswith(expected)


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Files below a URL, by a server that counts what is asked of it, and breaks off where the name says so."""
    import functools
    import http.server
    import threading

    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "served"
    folder.mkdir()
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if "broken" not in self.path:
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"text": "half"}\n')

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_a_url_is_fetched_once_and_again_when_it_changes(served):
    folder, url, asked = served
    (folder / "rows.jsonl").write_text('{"text": "one"}\n')

    def texts():
        source = open_source(SourceSection(path=f"{url}/rows.jsonl"), "data.train.0")
        return [row.value["text"] for row in source.rows()]

    assert texts() == texts() == ["one"]
    assert asked.count("/rows.jsonl") == 1
    (folder / "rows.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    assert texts() == ["one", "two"]


def test_a_pattern_names_several_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "cache"))
    for number in (2, 1):
        (tmp_path / f"{number}.jsonl").write_text(f'{{"text": "{number}"}}\n')
    found = open_source(SourceSection(path=f"file://{tmp_path}/*.jsonl"), "data.train.0")
    assert [row.value["text"] for row in found.rows()] == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.jsonl", r"missing\.jsonl: cannot be fetched: "),
        ("broken.jsonl", r"broken\.jsonl: cannot be fetched: .*"),
        ("rows.tar", r"rows\.tar: unknown kind of file; known suffixes: \.jsonl"),
    ],
)
def test_a_url_that_cannot_be_read_is_named_each_time(served, name, said):
    for _ in range(2):  # what was fetched by halves is not taken for the file
        with pytest.raises(DataError, match=rf"^data\.train\.0\.path: http://.*{said}"):
            open_source(SourceSection(path=f"{served[1]}/{name}"), "data.train.0")
