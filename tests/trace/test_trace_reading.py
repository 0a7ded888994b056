"""Reading: whole, cut off, gzipped, broken, something else."""

import gzip
import json

import pytest
from made_trace import EVENTS, HEAD, OPERATORS, event, trace_text, write_trace

from hf_efficient.errors import OutputError
from hf_efficient.trace import read
from hf_efficient.trace.read import read_trace

KEPT = 27  # all of EVENTS but IGNORED
COMPLETE = 29  # two of IGNORED are complete events


def read_text(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_trace(path)


def test_a_trace_tells_about_itself(tmp_path):
    trace = read_trace(write_trace(tmp_path / "trace.json"))
    file = trace.file
    assert len(trace.events) == KEPT
    assert (file.events, file.unreadable_events, file.truncated) == (COMPLETE, 0, False)
    assert (file.rank, file.world_size, file.backend) == (1, 2, "nccl")
    assert file.device_names == {0: "NVIDIA Test GPU", 1: "NVIDIA Test GPU"}
    assert not file.has_shapes
    assert file.read_bytes == len(trace_text())


@pytest.mark.parametrize("pieces", [64, 1000])
@pytest.mark.parametrize("indent", [None, 2])
def test_pieces_of_any_size_give_the_same(tmp_path, monkeypatch, pieces, indent):
    monkeypatch.setattr(read, "_PIECE_BYTES", pieces)
    trace = read_text(tmp_path, trace_text(indent=indent))
    assert (len(trace.events), trace.file.truncated, trace.file.unreadable_events) == (KEPT, False, 0)
    assert trace.file.rank == 1


def test_a_bare_list_is_a_trace(tmp_path):
    trace = read_text(tmp_path, "\n" + json.dumps(EVENTS))
    assert (len(trace.events), trace.file.truncated, trace.file.rank) == (KEPT, False, None)


def test_gzipped_whatever_the_name_says_and_in_several_streams(tmp_path):
    assert len(read_trace(write_trace(tmp_path / "trace.gz")).events) == KEPT
    text = trace_text().encode()
    data = gzip.compress(text[:700]) + gzip.compress(text[700:]) + b"\0" * 16
    trace = read_text(tmp_path, data)
    assert (len(trace.events), trace.file.truncated) == (KEPT, False)


def test_cut_off_within_an_event(tmp_path):
    text = trace_text(OPERATORS)
    trace = read_text(tmp_path, text[: text.index('"aten::item"')])
    assert [trace.events.names[name] for name in trace.events.name] == ["aten::linear", "aten::mm", "aten::add"]
    assert (trace.file.truncated, trace.file.unreadable_events) == (True, 0)
    assert trace.file.rank == 1


def test_cut_off_behind_its_list_it_is_whole(tmp_path):
    text = trace_text()
    trace = read_text(tmp_path, text[: text.index('"traceName"')])
    assert (len(trace.events), trace.file.truncated, trace.file.rank) == (KEPT, False, 1)


def test_a_gzip_stream_cut_off_gives_what_came_before(tmp_path):
    text = trace_text([event("cpu_op", f"aten::{n * 7919 % 1000003}", n, n + 1) for n in range(2000)])
    data = gzip.compress(text.encode())
    trace = read_text(tmp_path, data[: len(data) // 2])
    assert 500 < len(trace.events) < 1500
    assert trace.file.truncated
    damaged = bytearray(data)
    damaged[len(data) // 2 : len(data) // 2 + 64] = b"\xff" * 64
    assert read_text(tmp_path, bytes(damaged)).file.truncated


def test_words_in_place_of_numbers_and_wrong_bytes_are_corrected(tmp_path):
    text = trace_text(OPERATORS).replace('"dur": 36', '"more": -nan, "least": Infinity, "dur": 36')
    data = text.encode().replace(b"aten::add", b"aten::\xff\x01add")
    trace = read_text(tmp_path, data)
    assert (len(trace.events), trace.file.unreadable_events, trace.file.truncated) == (5, 0, False)
    assert "aten::\ufffd add" in trace.events.names


@pytest.mark.parametrize("indent", [None, 2])
def test_a_broken_event_is_left_out_and_counted(tmp_path, indent):
    text = trace_text(indent=indent).replace('"aten::add"', '"aten::"add"')
    trace = read_text(tmp_path, text)
    assert len(trace.events) == KEPT - 1
    assert (trace.file.events, trace.file.unreadable_events, trace.file.truncated) == (COMPLETE - 1, 1, False)
    assert trace.file.rank == 1


def test_a_broken_event_in_a_trace_that_tells_about_itself_at_its_end(tmp_path):
    text = json.dumps({"traceEvents": EVENTS, **HEAD}).replace('"aten::add"', '"aten::"add"')
    trace = read_text(tmp_path, text)
    assert (len(trace.events), trace.file.unreadable_events, trace.file.truncated) == (KEPT - 1, 1, False)
    assert (trace.file.rank, len(trace.file.device_names)) == (1, 2)


def test_arguments_that_look_like_borders_of_events(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "_PIECE_BYTES", 100)
    odd = event("cpu_op", 'odd"}, {"ph": "X', 1, 2, nested=[{"ph": "X"}, {"ph": "X"}], text="}, {")
    trace = read_text(tmp_path, trace_text([odd, *OPERATORS, odd]))
    assert (len(trace.events), trace.file.unreadable_events) == (7, 0)


def test_numbers_may_be_strings_or_out_of_range(tmp_path):
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 3, "tid": 4, "ts": 1, "dur": 2}
    large = {"device": 2**40, "stream": 2**70, "correlation": None}
    args = [{"device": "2", "stream": "0x0", "correlation": "17"}, large, {}]
    odd = [*({**kernel, "args": one} for one in args), kernel]
    events = read_text(tmp_path, trace_text(odd)).events
    assert events.correlation.tolist() == [17, -1, -1, -1]
    assert events.device.tolist() == [2, 2**31 - 1, 3, 3]
    assert events.stream.tolist() == [4, 4, 4, 4]


@pytest.mark.parametrize("text", ["", "PK\x03\x04", '{"schema_version": 1}', '{"schemaVersion": 1, "deviceProp'])
def test_what_is_no_trace(tmp_path, text):
    with pytest.raises(OutputError, match="is no Chrome trace, as it has no list traceEvents; name a"):
        read_text(tmp_path, text)


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(OutputError, match=r"nowhere\.json cannot be read: No such file or directory; name a trace"):
        read_trace(tmp_path / "nowhere.json")
    with pytest.raises(OutputError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)
