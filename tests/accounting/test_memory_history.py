"""Snapshots in the layout that ``torch.cuda.memory._snapshot`` documents, small enough to be worked out."""

from hf_efficient.accounting.memory_history import NO_MODULE, snapshot_record
from hf_efficient.records.profile import AllocationSite

MIB = 2**20
LIB = "/venv/lib/python3.11/site-packages"
LINEAR = {"filename": f"{LIB}/torch/nn/modules/linear.py", "line": 134, "name": "forward"}
MLP = {"filename": f"{LIB}/transformers/models/llama/modeling_llama.py", "line": 180, "name": "forward"}
TRAIN = {"filename": "/home/anna/project/scripts/train.py", "line": 12, "name": "main"}
CPP = {"filename": "/src/c10/CUDAFunctions.cpp", "line": 9, "name": "c10::malloc"}


def block(address, size, state="active_allocated", frames=(), **more):
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": list(frames), **more}


def segment(address, blocks, device=0):
    active = sum(each["size"] for each in blocks if each["state"] != "inactive")
    sizes = {"total_size": sum(each["size"] for each in blocks), "allocated_size": active, "active_size": active}
    return {"device": device, "address": address, "blocks": blocks, **sizes}


def event(action, addr, size, frames=(), **more):
    return {"action": action, "addr": addr, "size": size, "frames": list(frames), "stream": 0, **more}


def test_what_is_held_and_what_is_fragmented():
    snapshot = {
        "segments": [
            segment(0, [block(0, 6 * MIB), block(6 * MIB, 4 * MIB, "inactive"), block(10 * MIB, 2 * MIB)]),
            segment(100 * MIB, [block(100 * MIB, 8 * MIB, "inactive")]),  # free as a whole: can be given back
            segment(0, [block(0, 50 * MIB)], device=1),
        ],
        "device_traces": [[], []],
    }
    found = snapshot_record(snapshot, "at the end", allocation_retries=3)
    assert (found.reserved_bytes, found.allocated_bytes) == (20 * MIB, 8 * MIB)
    assert (found.inactive_split_bytes, found.inactive_split_blocks) == (4 * MIB, 1)
    assert (found.largest_free_bytes, found.peak_bytes) == (8 * MIB, 8 * MIB)
    assert (found.allocation_retries, found.failed_bytes) == (3, None)
    assert snapshot_record(snapshot, "", device=1).reserved_bytes == 50 * MIB


def test_the_peak_lies_before_the_end_and_its_lines_are_named():
    # A: 10, before the history. B: 30, by the MLP, freed. C: 5, of the script, lives on. D: 20 in place of B.
    events = [event("alloc", 90, 30 * MIB, [CPP, LINEAR, MLP, TRAIN]), event("alloc", 50, 5 * MIB, [TRAIN])]
    events += [event("free_requested", 90, 30 * MIB), event("free_completed", 90, 30 * MIB)]
    events.append(event("alloc", 90, 20 * MIB, [CPP]))
    snapshot = {
        "segments": [segment(0, [block(0, 10 * MIB), block(50, 5 * MIB, frames=[TRAIN]), block(90, 20 * MIB)])],
        "device_traces": [events],
    }
    found = snapshot_record(snapshot, "after step 2")
    assert found.peak_bytes == 45 * MIB
    assert found.sites == [
        AllocationSite(
            "transformers/models/llama/modeling_llama.py:180 forward", ["project/scripts/train.py:12 main"], 30 * MIB, 1
        ),
        AllocationSite("allocated before the history begins", [], 10 * MIB, 1),
        AllocationSite("project/scripts/train.py:12 main", [], 5 * MIB, 1),
    ]
    assert found.history_events == 5


def test_what_failed():
    """The block that was freed is older than the history."""
    events = [event("free_completed", 7, 30 * MIB), event("alloc", 0, MIB, [TRAIN])]
    events.append({"action": "oom", "size": 9 * MIB, "device_free": 4 * MIB, "frames": []})
    snapshot = {"segments": [segment(0, [block(0, MIB, frames=[TRAIN])])], "device_traces": [events]}
    found = snapshot_record(snapshot, "out of memory")
    assert (found.failed_bytes, found.device_free_bytes, found.peak_bytes) == (9 * MIB, 4 * MIB, 30 * MIB)
    assert [site.place for site in found.sites] == ["allocated before the history begins"]


CODE = """\
import torch


class MLP(torch.nn.Module):
    class Inner:
        def forward(self, x):
            return x

    def forward(self, x):
        return x


def forward(x):
    return x
"""


def snapshot(*allocations):
    """Blocks of so many bytes with frames, one behind the other; all of them live at the end."""
    blocks, events, address = [], [], 0
    for size, frames in allocations:
        blocks.append(block(address, size, frames=frames))
        events.append(event("alloc", address, size, frames))
        address += size
    return {"segments": [segment(0, blocks)], "device_traces": [events]}


def modules(*allocations):
    return snapshot_record(snapshot(*allocations), "").modules


def test_the_class_is_told_by_the_stack(tmp_path):
    path = tmp_path / "modeling_tiny.py"
    path.write_text(CODE)
    frame = {"filename": str(path), "name": "forward"}
    found = modules(
        (10, [LINEAR, {**frame, "line": 10}]),
        (4, [{**frame, "line": 7}]),
        (2, [{**frame, "line": 14}]),
        (1, [{**frame, "line": 10, "name": "helper"}]),
    )
    assert [(one.module, one.bytes, one.modules) for one in found] == [
        ("class MLP", 10, 1),
        ("class Inner", 4, 1),
        (NO_MODULE, 3, 0),
    ]
