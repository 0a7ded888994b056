"""The peak by modules, from snapshots in the layout that torch writes, small enough to be worked out."""

from __future__ import annotations

import pytest

from hf_efficient.accounting.memory_history import NO_MODULE, class_at, snapshot_record

MLP = {"filename": "/lib/transformers/models/llama/modeling_llama.py", "line": 180, "name": "forward"}


LINEAR = {"filename": "/lib/torch/nn/modules/linear.py", "line": 134, "name": "forward"}


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
    """Blocks of so many bytes with label and frames, one behind the other; all of them live at the end."""
    blocks, events, address = [], [], 0
    for size, label, frames in allocations:
        blocks.append({"address": address, "size": size, "state": "active_allocated", "frames": frames})
        event = {"action": "alloc", "addr": address, "size": size, "frames": frames}
        events.append(event if label is None else {**event, "user_metadata": label})
        address += size
    segment = {"device": 0, "address": 0, "total_size": address, "active_size": address, "blocks": blocks}
    return {"segments": [segment], "device_traces": [events]}


def modules(*allocations):
    return snapshot_record(snapshot(*allocations), "").modules


def test_layers_are_summed_up_and_one_alone_keeps_its_number():
    found = modules(
        (10, "model.layers.0.mlp.down_proj", [LINEAR, MLP]),
        (10, "model.layers.1.mlp.down_proj", [LINEAR, MLP]),
        (5, "model.layers.1.mlp.down_proj", [LINEAR, MLP]),
        (40, "model.layers.3.mlp", [MLP]),
        (7, "model.layers.0.mlp.down_proj (backward)", []),
        (8, "model.layers.1.mlp.down_proj (backward)", []),
        (3, "", []),
        (2, "experts.0.7", []),
    )
    line = "llama/modeling_llama.py:180 forward"
    assert [(one.module, one.bytes, one.blocks, one.modules) for one in found] == [
        ("model.layers.3.mlp", 40, 1, 1),
        ("model.layers.*.mlp.down_proj", 25, 3, 2),
        ("model.layers.*.mlp.down_proj (backward)", 15, 2, 2),
        (NO_MODULE, 3, 1, 0),
        ("experts.0.7", 2, 1, 1),
    ]
    assert found[1].place.endswith(line)
    assert found[2].place == "no Python frame: a backward's own thread, or C++"


def test_a_block_has_the_label_of_the_allocation_that_it_is_of():
    """The address was another module's before, and is a third one's after the peak."""
    events = [
        {"action": "alloc", "addr": 0, "size": 5, "frames": [], "user_metadata": "old"},
        {"action": "free_completed", "addr": 0, "size": 5},
        {"action": "alloc", "addr": 0, "size": 50, "frames": [], "user_metadata": "peak"},
        {"action": "free_completed", "addr": 0, "size": 50},
        {"action": "alloc", "addr": 0, "size": 9, "frames": [], "user_metadata": "new"},
    ]
    blocks = [{"address": 0, "size": 9, "state": "active_allocated", "frames": []}]
    segments = [{"device": 0, "address": 0, "total_size": 64, "active_size": 9, "blocks": blocks}]
    found = snapshot_record({"segments": segments, "device_traces": [events]}, "").modules
    assert [(one.module, one.bytes) for one in found] == [("peak", 50)]


def test_without_labels_the_class_is_told_by_the_stack(tmp_path):
    path = tmp_path / "modeling_tiny.py"
    path.write_text(CODE)
    frame = {"filename": str(path), "name": "forward"}
    found = modules(
        (10, None, [LINEAR, {**frame, "line": 10}]),
        (4, None, [{**frame, "line": 7}]),
        (2, None, [{**frame, "line": 14}]),
        (1, None, [{**frame, "line": 10, "name": "helper"}]),
    )
    assert [(one.module, one.bytes, one.modules) for one in found] == [
        ("class MLP", 10, 1),
        ("class Inner", 4, 1),
        (NO_MODULE, 3, 0),
    ]


def test_where_no_module_is_known_there_is_none():
    assert modules((10, None, [MLP]), (5, "", [])) == []  # its file is not here


@pytest.mark.parametrize(("line", "name"), [(4, "MLP"), (6, "Inner"), (10, "MLP"), (13, ""), (99, "")])
def test_the_class_of_a_line(tmp_path, line, name):
    path = tmp_path / "code.py"
    path.write_text(CODE)
    assert class_at(str(path), line) == name
