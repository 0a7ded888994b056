"""Compilation as a phase, by dynamo's callbacks on a clock that is set by hand and once for real; its counters."""

import json
import sys
import threading
import time
from collections import Counter, defaultdict
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch._dynamo.callback
from hand_clock import recorder_of

from hf_efficient.recording.compilation import compile_counts


@pytest.fixture
def recorder(hand, tmp_path):
    recorder = recorder_of(hand, tmp_path)
    recorder.next_step()
    yield recorder
    recorder.end()


HANDLER = torch._dynamo.callback.callback_handler


def phases(recorder, tmp_path):
    recorder.step_done(1, None)
    recorder.end()
    return json.loads((tmp_path / "steps.jsonl").read_text())["phase_seconds"]


def in_thread(do):
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


def compiles(hand, seconds):
    HANDLER.run_start_callbacks(None)
    hand.wait(seconds)
    HANDLER.run_end_callbacks(None)


def test_a_compilation_is_no_part_of_the_phase_that_it_holds_up(recorder, hand, tmp_path):
    with recorder.phase("forward"):
        hand.wait(1)
        compiles(hand, 5)
        hand.wait(0.5)
        compiles(hand, 2)
    recorder.mark("backward")
    in_thread(lambda: compiles(hand, 3))  # a thread of autograd, which this one waits for
    hand.wait(0.25)
    recorder.mark(None)
    with recorder.phase("evaluation", opaque=True):
        compiles(hand, 4)
    in_thread(lambda: compiles(hand, 8))  # somebody else's business
    assert phases(recorder, tmp_path) == {"forward": 1.5, "compilation": 10.0, "backward": 0.25, "evaluation": 4.0}


def test_callbacks_without_arguments_are_removed_again(hand, tmp_path, monkeypatch):
    old = ModuleType("torch._dynamo.callback")
    start, end = [], []
    old.callback_handler = SimpleNamespace(
        register_start_callback=start.append,
        register_end_callback=end.append,
        remove_start_callback=start.remove,
        remove_end_callback=end.remove,
    )
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", old)
    recorder = recorder_of(hand, tmp_path)
    recorder.next_step()
    start[0]()  # as torch 2.6 calls it
    end[0]()
    recorder.end()
    assert (start, end) == ([], [])


def test_dynamo_calls_back(tmp_path):
    def slow(graph, inputs):
        time.sleep(0.2)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x * 2).sum(), backend=slow)
    recorder = recorder_of(time.perf_counter_ns, tmp_path)
    for number in (1, 2):
        recorder.next_step()
        with recorder.phase("forward"):
            assert compiled(torch.ones(3)) == 6
        recorder.step_done(number, None)
    recorder.end()
    first, second = (json.loads(line)["phase_seconds"] for line in (tmp_path / "steps.jsonl").read_text().splitlines())
    assert first["compilation"] >= 0.2 > first["forward"]
    assert set(second) == {"forward"}


@pytest.fixture
def dynamo(monkeypatch):
    frames = SimpleNamespace(FRAME_COMPILE_COUNTER=Counter())
    utilities = SimpleNamespace(counters=defaultdict(Counter))
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", frames)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utilities)
    return frames, utilities


def test_recompilations_and_breaks(dynamo):
    frames, utilities = dynamo
    assert compile_counts() is None  # nothing was compiled
    frames.FRAME_COMPILE_COUNTER.update({0: 3, 1: 1})
    utilities.counters["stats"]["unique_graphs"] = 4
    utilities.counters["graph_break"].update({"a call of print\n  Explanation: ...": 1, "\ndata-dependent jump": 2})
    counts = {"frames": 2, "recompiles": 2, "graphs": 4, "graph_breaks": 3}
    assert compile_counts() == {**counts, "break_reasons": {"data-dependent jump": 2, "a call of print": 1}}
