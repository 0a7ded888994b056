"""Checkpoints of other engines and of other numbers of processes, by the names of their files."""

from __future__ import annotations

import pytest

from hf_efficient.errors import OutputError
from hf_efficient.launch.checkpoints import CheckpointLayout, check_layout, fault_of, layout_of_checkpoint

WHOLE = ["model.safetensors", "rng_state.pth"]
DDP = ["model.safetensors", "rng_state_0.pth", "rng_state_1.pth"]
ZERO = [
    "global_step4/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "global_step4/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "global_step4/zero_pp_rank_0_mp_rank_00_model_states.pt",
]
FSDP = ["pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata", "rng_state_0.pth", "rng_state_1.pth", "scheduler.pt"]


@pytest.fixture
def checkpoint(tmp_path):
    def make(names):
        folder = tmp_path / "checkpoint-4"
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        return folder

    return make


@pytest.mark.parametrize(
    ("names", "kind", "processes"),
    [
        (WHOLE, "whole", 1),
        (DDP, "whole", 2),
        (ZERO, "zero3", 2),
        (ZERO[:2], "zero", 2),
        (FSDP, "fsdp2", 2),
        (["model.safetensors"], "whole", None),
    ],
)
def test_who_wrote_it(checkpoint, names, kind, processes):
    assert layout_of_checkpoint(checkpoint(names)) == CheckpointLayout(kind, processes)


@pytest.mark.parametrize(
    ("names", "engine", "world_size"), [(WHOLE, "none", 1), (DDP, "ddp", 2), (ZERO, "zero3", 2), (FSDP, "fsdp2", 2)]
)
def test_the_same_goes_on(checkpoint, names, engine, world_size):
    check_layout(checkpoint(names), engine, world_size)


@pytest.mark.parametrize(
    ("names", "engine", "world_size", "told"),
    [
        (DDP, "fsdp2", 2, "is fsdp2, but checkpoint-4 was written by whole models (one process, or DDP)"),
        (ZERO, "ddp", 2, "zero_to_fp32.py"),
        (ZERO, "zero2", 2, "is zero2, but checkpoint-4 was written by DeepSpeed's ZeRO-3"),
        (FSDP, "zero3", 2, "accelerate merge-weights"),
        (ZERO, "zero3", 4, "distributed.processes: 4 train, but checkpoint-4 was written by 2"),
        (DDP, "none", 1, "distributed.processes: 1 train, but checkpoint-4 was written by 2"),
    ],
)
def test_another_does_not(checkpoint, names, engine, world_size, told):
    with pytest.raises(OutputError) as raised:
        check_layout(checkpoint(names), engine, world_size)
    assert told in str(raised.value)


def test_shards_that_were_cut_off(checkpoint):
    folder = checkpoint(FSDP)
    (folder / "trainer_state.json").write_text('{"global_step": 4}')
    assert fault_of(folder) is None
    (folder / "optimizer_0/.metadata").unlink()
    assert fault_of(folder) == "optimizer_0/.metadata, its last file, is missing: saving was cut off"
