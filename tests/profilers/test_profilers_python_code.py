"""Profilers of Python on functions whose behaviour is known."""

import pstats
import re

import pytest
import torch

from hf_efficient.errors import SetupError
from hf_efficient.profilers.instrument import Place, WindowedInstrument, named_functions, require
from hf_efficient.profilers.python_code import HostMemory, LineTimes, PythonProfile
from hf_efficient.records.profile import FunctionTable, HostMemoryTable, LineTable
from hf_efficient.run_dir.json_file import read_table, table_path

MIB = 2**20


def busy(rounds):
    total = 0
    for number in range(rounds):
        total += number * number
    return total


def hold(mebibytes):
    kept = torch.ones(mebibytes, MIB // 4)
    return kept.numel()


def silent():
    raise AssertionError("is never called")


class Step:
    def run(self, rounds):
        return busy(rounds)


def train(instrument, folder, work, steps=3):
    instrument.start(Place(folder, 0))
    for step in range(1, steps + 1):
        work()
        instrument.step_ends(step)
    instrument.stop()


def test_it_waits_for_its_step(tmp_path):
    calls = []

    class Told(WindowedInstrument):
        def begin(self, place):
            calls.append(("begin", self._done))

        def finish(self, place):
            calls.append(("finish", self._done))

    told = Told(2)
    train(told, tmp_path, lambda: None)
    told.stop()
    assert calls == [("begin", 2), ("finish", 3)]
    late = Told(5)
    train(late, tmp_path, lambda: None)
    assert late.notes == ["training ended after 3 steps, and it begins after 5"]
    with pytest.raises(ValueError, match="after_step is -1, steps is None; write at least 0 and 1"):
        Told(-1)


def test_cprofile_counts_calls(tmp_path):
    train(PythonProfile(after_step=1), tmp_path, lambda: Step().run(2000))
    table = read_table(table_path(tmp_path, "python", 0), FunctionTable)
    (found,) = [function for function in table.functions if function.place.endswith(" busy")]
    assert found.calls == 2  # of three steps one goes by
    assert (table.process, table.tool) == ("main", "cprofile")
    assert found.self_seconds <= found.total_seconds <= table.seconds
    assert pstats.Stats(str(tmp_path / "python.rank0.pstats")).total_calls > 0


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return busy(500)


def test_the_workers_of_the_loader(tmp_path):
    seen = []
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2, worker_init_fn=seen.append)
    inner = loader.worker_init_fn
    profile = PythonProfile(after_step=0)
    profile.start(Place(tmp_path, 0, loader))
    for _ in range(2):  # two epochs: the workers start anew
        assert len(list(loader)) == 4
    profile.stop()
    assert loader.worker_init_fn is inner
    assert "python.rank0.worker1.json" in [path.name for path in profile.files]
    tables = [read_table(table_path(tmp_path, "python", 0, f"worker{number}"), FunctionTable) for number in (0, 1)]
    assert [table.process for table in tables] == ["worker 0", "worker 1"]
    found = [function for function in tables[0].functions if function.place.endswith(" busy")]
    assert found[0].calls == 8  # half of the rows, twice


def test_lines_of_a_named_function(tmp_path):
    lines = LineTimes([busy, silent], after_step=0)
    train(lines, tmp_path, lambda: busy(100), steps=2)
    (found,) = read_table(table_path(tmp_path, "lines", 0), LineTable).functions
    assert found.place.endswith(" busy")
    assert {line.text.strip(): line.hits for line in found.lines} == {
        "total = 0": 2,
        "for number in range(rounds):": 202,
        "total += number * number": 200,
        "return total": 2,
    }
    assert lines.notes == ["never called on the thread that trains: silent"]


def test_host_memory_counts_tensors(tmp_path):
    memory = HostMemory([hold], after_step=0)
    train(memory, tmp_path, lambda: hold(24))
    table = read_table(table_path(tmp_path, "host_memory", 0), HostMemoryTable)
    largest = table.lines[0]
    assert largest.text == "kept = torch.ones(mebibytes, MIB // 4)"
    assert 24 * MIB <= largest.bytes < 25 * MIB  # one at a time, however many steps
    assert table.peak_bytes >= largest.bytes


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:f", "lines: no_such_module:f: no_such_module cannot be imported: No module named"),
        ("json:dump_all", "lines: json:dump_all: there is no dump_all in it; write package.module:function"),
        ("json", "lines: json: there is no name in it"),
        ("math:sqrt", "lines: math:sqrt is not written in Python"),
    ],
)
def test_a_function_that_is_not_there(name, said):
    with pytest.raises(SetupError, match=f"^{re.escape(said)}"):
        named_functions("lines", [name])


def test_a_package_that_is_missing_names_its_extra():
    require("json")
    with pytest.raises(SetupError, match=r"no_such_package is not installed; .* 'hf-efficient\[profile\]'"):
        require("no_such_package")
