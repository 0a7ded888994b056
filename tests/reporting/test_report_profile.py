"""What the page and the terminal show of a profile."""

from __future__ import annotations

from rich.console import Console

from hf_efficient.records.profile import (
    AllocationSite,
    CodeLine,
    FunctionLines,
    FunctionTable,
    FunctionTime,
    HostMemoryLine,
    HostMemoryTable,
    InstrumentAccount,
    LineTable,
    MemorySnapshot,
    ModuleAllocations,
    OperatorTable,
    OperatorTime,
    ProfileAccount,
)
from hf_efficient.reporting.profile_tables import found_tables, instrument_rows, profile_renderables

MIB = 2**20
OPERATORS = OperatorTable(
    0, 3, 0.2, 0.08, 0.1,
    [
        OperatorTime("aten::mm", 36, 0.02, 0.075, 123_000_000, "[208, 64] [64, 128]"),
        OperatorTime("aten::copy_", 4, 0.06, 0.025, 0, ""),
    ],
    7,
)  # fmt: skip
SNAPSHOT = MemorySnapshot(
    moment="out of memory", reserved_bytes=100 * MIB, allocated_bytes=60 * MIB, inactive_split_bytes=24 * MIB,
    inactive_split_blocks=3, largest_free_bytes=16 * MIB, peak_bytes=80 * MIB,
    sites=[AllocationSite("llama/modeling_llama.py:180 forward", ["a.py:1 f"], 60 * MIB, 2)],
    other_sites_bytes=20 * MIB, allocation_retries=4, failed_bytes=32 * MIB, device_free_bytes=8 * MIB,
    history_events=9,
    modules=[
        ModuleAllocations("model.layers.*.mlp.down_proj", 60 * MIB, 8, 4, "llama/modeling_llama.py:180 forward"),
        ModuleAllocations("outside the model's modules", 12 * MIB, 2, 0, "optim/adamw.py:9 step"),
    ],
    other_modules_bytes=8 * MIB,
)  # fmt: skip
PROFILE = ProfileAccount(
    [InstrumentAccount("trace", 1.5, 1.25, 3, ["profile/t"], "n"), InstrumentAccount("nvtx", None, 0.0, 0)],
    OPERATORS,
    [SNAPSHOT],
    [FunctionTable("worker 0", "cprofile", 2.0, [FunctionTime("c.py:3 collate", 1.5, 1.75, 40)], 1)],
    LineTable([FunctionLines("c.py:3 collate", 2.0, [CodeLine(4, "    x = pad(x)", 40, 1.5)])]),
    HostMemoryTable(200 * MIB, [HostMemoryLine("d.py:9 load", "rows = read()", 50 * MIB, 3)]),
)


def test_each_table_holds_shares_of_its_own_whole():
    operators, snapshot, modules, functions, lines, memory = found_tables(PROFILE, 1)
    assert operators.headings == ["operator", "calls", "device", "share", "host", "FLOPs", "shapes"]
    assert operators.rows == [["aten::mm", "36", "75.0 ms", "75%", "20.0 ms", "123 M", "[208, 64] [64, 128]"]]
    assert operators.left_out == "8 rows with less time are left out here."
    assert "kernels took 100 ms on the device, 50% of that" in operators.summary
    assert snapshot.rows == [["llama/modeling_llama.py:180 forward", "60.0 MiB", "75%", "2", "a.py:1 f"]]
    assert snapshot.left_out == "20.0 MiB of other lines are left out here."
    assert list(modules.headings) == ["module", "size", "share", "blocks", "modules", "most of it asked for by"]
    place = "llama/modeling_llama.py:180 forward"
    assert modules.rows == [["model.layers.*.mlp.down_proj", "60.0 MiB", "75%", "8", "4", place]]
    assert modules.summary == "out of memory: the 80.0 MiB at the peak by the modules that they are for"
    assert modules.left_out == "20.0 MiB of other modules are left out here."
    assert functions.rows == [["c.py:3 collate", "1.50 s", "75%", "1.75 s", "40"]]
    assert lines.rows == [["4", "1.50 s", "75%", "40", "    x = pad(x)"]]
    assert memory.rows == [["d.py:9 load", "50.0 MiB", "25%", "3", "rows = read()"]]


def test_what_an_instrument_cost():
    assert instrument_rows(PROFILE.instruments) == [
        ("trace", "cost 1.50 s over 3 steps (1.25 s of it in its own code): n; wrote profile/t"),
        ("nvtx", "did not run"),
    ]


def test_a_narrow_terminal_keeps_the_numbers():
    console = Console(width=60, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    for renderable in profile_renderables(PROFILE):
        console.print(renderable)
    told = console.export_text()
    (line,) = [line for line in told.splitlines() if line.startswith("aten::mm")]
    assert "75.0 ms" in line
    assert "123 M" in line
    assert "x = pad(x)" in told
