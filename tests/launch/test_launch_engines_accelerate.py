"""A recipe's ``distributed`` section as accelerate, its launcher and DeepSpeed are told of it."""

from __future__ import annotations

import pytest
import yaml

from hf_efficient.launch.command import (
    FLAGS_ALONE,
    Layout,
    NodePlace,
    accelerate_config,
    deepspeed_config,
    is_zero,
    launch_flags,
    layout_of,
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
    [
        ("auto", 1, "none"),
        ("auto", 2, "ddp"),
        ("ddp", 1, "none"),
        ("ddp", 2, "ddp"),
        ("zero2", 1, "zero2"),
        ("fsdp2", 8, "fsdp2"),
    ],
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


def test_one_process_and_data_parallel_ones():
    assert config() == {**_COMMON, "distributed_type": "NO", "num_processes": 1}
    assert config("strategy=ddp")["distributed_type"] == "NO"  # accelerate refuses --multi_gpu with one process
    assert config("processes=auto", devices=4) == {**_COMMON, "distributed_type": "MULTI_GPU", "num_processes": 4}


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
    assert config("processes=2", "strategy=zero1")["deepspeed_config"]["zero_stage"] == 1
    assert not config("processes=2", "strategy=zero2")["deepspeed_config"]["zero3_init_flag"]


def test_fsdp2():
    got = config("processes=2", "strategy=fsdp2", "offload.parameters=true")
    assert got["distributed_type"] == "FSDP"
    assert got["fsdp_config"] == {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_offload_params": True,
        "fsdp_reshard_after_forward": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def test_fsdp2_by_classes_of_layers():
    got = config("processes=2", "strategy=fsdp2", "wrap_classes=[LlamaAttention, LlamaMLP]")
    assert got["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"] == "LlamaAttention,LlamaMLP"
    assert launch_flags(got, threads=1)[-1] == "--fsdp_transformer_layer_cls_to_wrap=LlamaAttention,LlamaMLP"


def test_the_file_beside_the_flags_is_what_one_process_generates():
    """Flags replace it, so that nothing is taken from the user's own default configuration."""
    assert yaml.safe_load(FLAGS_ALONE.read_text(encoding="utf-8")) == config()


def test_the_second_of_two_machines():
    got = config("processes=4", "nodes=2", "strategy=ddp", place=NodePlace(1, "alpha", 4000))
    assert {name: got[name] for name in ("num_machines", "num_processes", "machine_rank", "rdzv_backend")} == {
        "num_machines": 2,
        "num_processes": 8,
        "machine_rank": 1,
        "rdzv_backend": "static",
    }
    assert (got["main_process_ip"], got["main_process_port"], got["same_network"]) == ("alpha", 4000, True)
    restarting = config("nodes=2", "max_restarts=3", place=NodePlace(0, "alpha", 4000))
    assert (restarting["rdzv_backend"], restarting["same_network"]) == ("c10d", False)


def test_flags_of_one_machine():
    assert launch_flags(config("processes=2", "strategy=fsdp2"), threads=2) == [
        "--num_machines=1",
        "--num_processes=2",
        "--mixed_precision=no",
        "--dynamo_backend=no",
        "--num_cpu_threads_per_process=2",
        "--use_fsdp",
        "--fsdp_version=2",
        "--fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP",
        "--fsdp_cpu_ram_efficient_loading=true",
        "--fsdp_offload_params=false",
        "--fsdp_reshard_after_forward=true",
        "--fsdp_state_dict_type=SHARDED_STATE_DICT",
    ]


def test_flags_of_two_machines():
    got = launch_flags(config("nodes=2", "strategy=ddp", place=NodePlace(1, "alpha", 4000)), threads=4)
    assert got[3:8] == [
        "--machine_rank=1",
        "--main_process_ip=alpha",
        "--main_process_port=4000",
        "--rdzv_backend=static",
        "--same_network",
    ]
    assert got[-1] == "--multi_gpu"
    restarting = launch_flags(config("nodes=2", "max_restarts=3", place=NodePlace(0, "alpha", 4000)), 4, 3)
    assert "--max_restarts=3" in restarting
    assert "--rdzv_backend=c10d" in restarting
    assert "--rdzv_conf=is_host=true" in restarting
    second = launch_flags(config("nodes=2", "max_restarts=3", place=NodePlace(1, "alpha", 4000)), 4, 3)
    assert "--rdzv_conf=is_host=false" in second
    assert "--same_network" not in restarting


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
    with pytest.raises(KeyError):
        deepspeed_config(recipe(), "fsdp2")
