"""A recipe's ``distributed`` section as accelerate, its launcher and DeepSpeed are told of it, and the command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from hf_efficient.errors import SetupError
from hf_efficient.launch import command
from hf_efficient.launch.command import (
    FLAGS_ALONE,
    Layout,
    NodePlace,
    accelerate_command,
    accelerate_config,
    deepspeed_config,
    is_zero,
    launch_flags,
    layout_of,
    node_place,
    printable,
    strategy_of,
)
from hf_efficient.recipe.load import load_recipe

_COMMON = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "downcast_bf16": "no",
    "enable_cpu_affinity": False,
    "machine_rank": 0,
    "main_training_function": "main",
    "mixed_precision": "no",
    "num_machines": 1,
    "rdzv_backend": "static",
    "same_network": True,
    "use_cpu": False,
}


def recipe(*distributed: str):
    return load_recipe("quickstart/lora", [f"distributed.{one}" for one in distributed])


def config(*distributed: str, place: NodePlace | None = None, devices: int = 0):
    loaded = recipe(*distributed)
    return accelerate_config(loaded, layout_of(loaded, device_count=devices, cores=4, place=place))


@pytest.mark.parametrize(
    ("strategy", "world_size", "engine"),
    [("auto", 1, "none"), ("auto", 2, "ddp"), ("ddp", 1, "none"), ("ddp", 2, "ddp"), ("zero2", 1, "zero2")],
)
def test_strategies_by_name(strategy, world_size, engine):
    assert strategy_of(recipe(f"strategy={strategy}"), world_size) == engine


def test_layouts():
    assert layout_of(recipe("processes=auto"), device_count=8, cores=16) == Layout(1, 8, 16)
    assert layout_of(recipe("processes=auto"), device_count=0, cores=2) == Layout(1, 1, 2)
    place = NodePlace(1, "alpha", 4000)
    made = layout_of(recipe("processes=4", "nodes=2"), device_count=0, cores=8, place=place)
    assert made == Layout(2, 4, 8, 1, "alpha", 4000)
    assert made.world_size == 8


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("alpha", NodePlace(1, "alpha", 29500)),
        ("10.0.0.1:4000", NodePlace(1, "10.0.0.1", 4000)),
        ("[fd00::1]:4000", NodePlace(1, "fd00::1", 4000)),
        ("fd00::1", NodePlace(1, "fd00::1", 29500)),
    ],
)
def test_where_machines_meet(address, place):
    assert node_place(recipe("nodes=2"), 1, address) == place
    assert node_place(recipe(), 0, None) is None


@pytest.mark.parametrize(
    ("nodes", "rank", "address", "told"),
    [
        (2, 0, None, "--main-address: is missing, and distributed.nodes is 2"),
        (2, 2, "alpha", "--node-rank: is 2, but distributed.nodes is 2: write 0 to 1"),
        (2, 0, "alpha:many", "--main-address: 'many' is no port"),
        (1, 0, "alpha", "--main-address: distributed.nodes is 1"),
        (1, 1, None, "--node-rank: distributed.nodes is 1"),
    ],
)
def test_wrong_places(nodes, rank, address, told):
    with pytest.raises(SetupError) as raised:
        node_place(recipe(f"nodes={nodes}"), rank, address)
    assert told in str(raised.value)


def test_one_process_and_data_parallel_ones():
    assert config() == {**_COMMON, "distributed_type": "NO", "num_processes": 1}
    assert config("strategy=ddp")["distributed_type"] == "NO"  # accelerate refuses --multi_gpu with one process
    assert config("processes=auto", devices=4) == {**_COMMON, "distributed_type": "MULTI_GPU", "num_processes": 4}
    # Flags replace the file, so that nothing is taken from the user's own default configuration.
    assert yaml.safe_load(FLAGS_ALONE.read_text(encoding="utf-8")) == config()


def test_zero_with_offload():
    got = config("processes=2", "strategy=zero3", "offload.optimizer=true", "offload.parameters=true")
    assert got["distributed_type"] == "DEEPSPEED"
    assert got["deepspeed_config"] == {
        "zero_stage": 3,
        "offload_optimizer_device": "cpu",
        "offload_param_device": "cpu",
        "zero3_init_flag": True,
        "zero3_save_16bit_model": True,
    }
    two = config("processes=2", "strategy=zero2")["deepspeed_config"]
    assert (two["zero_stage"], two["zero3_init_flag"]) == (2, False)


def test_fsdp2_and_its_flags():
    got = config("processes=2", "strategy=fsdp2", "offload.parameters=true", "wrap_classes=[LlamaAttention, LlamaMLP]")
    assert got["distributed_type"] == "FSDP"
    assert launch_flags(got, threads=2) == [
        "--num_machines=1",
        "--num_processes=2",
        "--mixed_precision=no",
        "--dynamo_backend=no",
        "--num_cpu_threads_per_process=2",
        "--use_fsdp",
        "--fsdp_version=2",
        "--fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP",
        "--fsdp_cpu_ram_efficient_loading=true",
        "--fsdp_offload_params=true",
        "--fsdp_reshard_after_forward=true",
        "--fsdp_state_dict_type=SHARDED_STATE_DICT",
        "--fsdp_transformer_layer_cls_to_wrap=LlamaAttention,LlamaMLP",
    ]


def test_the_second_of_two_machines():
    got = config("nodes=2", "strategy=ddp", place=NodePlace(1, "alpha", 4000))
    flags = launch_flags(got, threads=4)
    assert flags[3:8] == [
        "--machine_rank=1",
        "--main_process_ip=alpha",
        "--main_process_port=4000",
        "--rdzv_backend=static",
        "--same_network",
    ]
    assert flags[-1] == "--multi_gpu"


@pytest.mark.parametrize("rank", [0, 1])
def test_machines_that_meet_again_after_a_failure(rank):
    got = config("nodes=2", "max_restarts=3", place=NodePlace(rank, "alpha", 4000))
    assert (got["rdzv_backend"], got["same_network"]) == ("c10d", False)
    flags = launch_flags(got, 4, 3)
    assert {"--max_restarts=3", "--rdzv_backend=c10d", f"--rdzv_conf=is_host={str(rank == 0).lower()}"} <= set(flags)
    assert "--same_network" not in flags


def test_what_deepspeed_is_told():
    three = recipe("strategy=zero3", "offload.optimizer=true", "offload.parameters=true", "offload.nvme_path=/fast")
    zero = deepspeed_config(three, "zero3")["zero_optimization"]
    place = {"device": "nvme", "nvme_path": "/fast", "pin_memory": True}
    assert (zero["stage"], zero["offload_optimizer"], zero["offload_param"]) == (3, place, place)
    share = deepspeed_config(three, "zero3", largest_share=525_336_576)["zero_optimization"]["offload_param"]
    assert share == {**place, "buffer_size": 525_336_576}  # an embedding of 128,256 x 8,192 on two ranks
    assert deepspeed_config(three, "zero3", largest_share=100_000_000)["zero_optimization"]["offload_param"] == place
    assert zero["stage3_gather_16bit_weights_on_model_save"] is True
    assert "allgather_bucket_size" not in zero
    one = deepspeed_config(recipe("strategy=zero1"), "zero1")
    assert one["zero_optimization"]["stage"] == 1
    assert not {"offload_optimizer", "offload_param"} & one["zero_optimization"].keys()
    assert {one[name] for name in ("train_batch_size", "gradient_accumulation_steps", "gradient_clipping")} == {"auto"}
    assert [is_zero(engine) for engine in ("none", "ddp", "fsdp2", "zero1")] == [False, False, False, True]


@pytest.fixture
def commanded(monkeypatch):
    monkeypatch.setattr(command, "_accelerate", lambda: "accelerate")
    monkeypatch.setattr(command, "FLAGS_ALONE", Path("/flags.yaml"))

    def make(*overrides, tail=(), device_count=0, cores=2, **more):
        loaded = load_recipe("quickstart/lora", list(overrides))
        layout = layout_of(loaded, device_count=device_count, cores=cores)
        return accelerate_command(loaded, "r.yaml", tail, layout, **more)

    return make


def test_the_command_of_one_process(commanded):
    assert printable(commanded("train.bf16=true", tail=["a.b=1 2", "--resume"], cores=6)) == (
        "accelerate launch --quiet --config_file=/flags.yaml --num_machines=1 --num_processes=1 --mixed_precision=bf16 "
        "--dynamo_backend=no --num_cpu_threads_per_process=6 -m hf_efficient.train r.yaml 'a.b=1 2' --resume"
    )
    assert commanded(module="a.b")[-3:] == ["-m", "a.b", "r.yaml"]
    fp16 = commanded("train.bf16=false", "train.fp16=true")
    assert "--mixed_precision=fp16" in fp16


def test_processes_named_and_automatic(commanded):
    assert "--multi_gpu" not in commanded("distributed.processes=auto")
    four = commanded("distributed.processes=auto", device_count=4, cores=9)
    assert {"--num_processes=4", "--multi_gpu", "--num_cpu_threads_per_process=2"} <= set(four)
    assert "--num_processes=2" in commanded("distributed.processes=2", device_count=8, cores=1)


FSDP_BY_DEFAULT = """\
compute_environment: LOCAL_MACHINE
debug: true
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 1}
mixed_precision: bf16
num_machines: 1
num_processes: 1
use_cpu: false
"""
TELLS = """\
import os
print({name: os.environ.get(name) for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_DEBUG_MODE", "FSDP_VERSION")})
"""


@pytest.mark.slow
def test_the_users_own_default_configuration_does_no_harm(tmp_path):
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate/default_config.yaml").write_text(FSDP_BY_DEFAULT)
    (tmp_path / "tells.py").write_text(TELLS)
    made = accelerate_command(recipe(), "", [], Layout(1, 1, 1), module="tells")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    own = {**os.environ, "HF_HOME": str(tmp_path), "PYTHONPATH": path}
    done = subprocess.run(made, env=own, capture_output=True, text=True, timeout=120, check=True)
    assert "{'ACCELERATE_USE_FSDP': None, 'ACCELERATE_DEBUG_MODE': None, 'FSDP_VERSION': None}" in done.stdout
    without = [one for one in made if not one.startswith("--config_file")]  # so it would be
    done = subprocess.run(without, env=own, capture_output=True, text=True, timeout=120, check=False)
    assert "'ACCELERATE_USE_FSDP': None" not in done.stdout  # accelerate 1.15 does not come so far as to start it
