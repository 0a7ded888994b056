"""A recipe's ``distributed`` section as accelerate and DeepSpeed read it, and what is asked of a machine before."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hf_efficient.errors import SetupError
from hf_efficient.launch import command
from hf_efficient.launch import machine as checks
from hf_efficient.launch.command import (
    FLAGS_ALONE,
    Layout,
    accelerate_command,
    accelerate_config,
    deepspeed_config,
    is_zero,
    launch_flags,
    layout_of,
    node_place,
    strategy_of,
)
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe

_COMMON = {
    "compute_environment": "LOCAL_MACHINE", "debug": False, "downcast_bf16": "no", "enable_cpu_affinity": False,
    "machine_rank": 0, "main_training_function": "main", "mixed_precision": "no", "num_machines": 1,
    "rdzv_backend": "static", "same_network": True, "use_cpu": False,
}  # fmt: skip


def recipe(*distributed: str):
    return load_recipe("quickstart/lora", [f"distributed.{one}" for one in distributed])


def config(*distributed: str, place: tuple[int, str, int] | None = None, devices: int = 0):
    loaded = recipe(*distributed)
    return accelerate_config(loaded, layout_of(loaded, device_count=devices, cores=4, place=place))


def test_strategies_by_name():
    cases = {("auto", 1): "none", ("auto", 2): "ddp", ("ddp", 1): "none", ("ddp", 2): "ddp", ("zero2", 1): "zero2"}
    assert {one: strategy_of(recipe(f"strategy={one[0]}"), one[1]) for one in cases} == cases


def test_layouts():
    assert layout_of(recipe("processes=auto"), device_count=8, cores=16) == Layout(1, 8, 16)
    assert layout_of(recipe("processes=auto"), device_count=0, cores=2) == Layout(1, 1, 2)
    place = (1, "alpha", 4000)
    made = layout_of(recipe("processes=4", "nodes=2"), device_count=0, cores=8, place=place)
    assert made == Layout(2, 4, 8, 1, "alpha", 4000)
    assert made.world_size == 8


ADDRESSES = {"alpha": ("alpha", 29500), "10.0.0.1:4000": ("10.0.0.1", 4000), "[fd00::1]:4000": ("fd00::1", 4000)}
WRONG_PLACES = {
    "--main-address: is missing, and distributed.nodes is 2": (2, 0, None),
    "--node-rank: is 2, but distributed.nodes is 2: write 0 to 1": (2, 2, "alpha"),
    "--main-address: 'many' is no port": (2, 0, "alpha:many"),
    "--main-address: distributed.nodes is 1": (1, 0, "alpha"),
    "--node-rank: distributed.nodes is 1": (1, 1, None),
}


def test_where_machines_meet():
    for address, place in {**ADDRESSES, "fd00::1": ("fd00::1", 29500)}.items():
        assert node_place(recipe("nodes=2"), 1, address) == (1, *place)
    assert node_place(recipe(), 0, None) is None
    for message, (nodes, *place) in WRONG_PLACES.items():
        with pytest.raises(SetupError, match=f"^{message}"):
            node_place(recipe(f"nodes={nodes}"), *place)


def test_one_process_and_data_parallel_ones():
    assert config() == {**_COMMON, "distributed_type": "NO", "num_processes": 1}
    assert config("strategy=ddp")["distributed_type"] == "NO"  # accelerate refuses --multi_gpu with one process
    assert config("processes=auto", devices=4) == {**_COMMON, "distributed_type": "MULTI_GPU", "num_processes": 4}
    # Flags replace the file, so that nothing is taken from the user's own default configuration.
    assert yaml.safe_load(FLAGS_ALONE.read_text(encoding="utf-8")) == config()


def test_zero_with_offload():
    got = config("processes=2", "strategy=zero3", "offload.optimizer=true", "offload.parameters=true")
    assert got["distributed_type"] == "DEEPSPEED"
    offload = {"offload_optimizer_device": "cpu", "offload_param_device": "cpu"}
    of_three = {"zero_stage": 3, "zero3_init_flag": True, "zero3_save_16bit_model": True}
    assert got["deepspeed_config"] == {**of_three, **offload}
    two = config("processes=2", "strategy=zero2")["deepspeed_config"]
    assert (two["zero_stage"], two["zero3_init_flag"]) == (2, False)


def test_fsdp2_and_its_flags():
    got = config("processes=2", "strategy=fsdp2", "offload.parameters=true", "wrap_classes=[LlamaAttention, LlamaMLP]")
    assert got["distributed_type"] == "FSDP"
    assert " ".join(launch_flags(got, threads=2)) == (
        "--num_machines=1 --num_processes=2 --mixed_precision=no --dynamo_backend=no --num_cpu_threads_per_process=2 "
        "--use_fsdp --fsdp_version=2 --fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP "
        "--fsdp_cpu_ram_efficient_loading=true --fsdp_offload_params=true --fsdp_reshard_after_forward=true "
        "--fsdp_state_dict_type=SHARDED_STATE_DICT --fsdp_transformer_layer_cls_to_wrap=LlamaAttention,LlamaMLP"
    )


def test_the_second_of_two_machines():
    flags = launch_flags(config("nodes=2", "strategy=ddp", place=(1, "alpha", 4000)), threads=4)
    place = "--machine_rank=1 --main_process_ip=alpha --main_process_port=4000 --rdzv_backend=static --same_network"
    assert " ".join(flags[3:8]) == place
    assert flags[-1] == "--multi_gpu"


@pytest.mark.parametrize("rank", [0, 1])
def test_machines_that_meet_again_after_a_failure(rank):
    got = config("nodes=2", "max_restarts=3", place=(rank, "alpha", 4000))
    assert (got["rdzv_backend"], got["same_network"]) == ("c10d", False)
    flags = launch_flags(got, 4, 3)
    assert {"--max_restarts=3", "--rdzv_backend=c10d", f"--rdzv_conf=is_host={str(rank == 0).lower()}"} <= set(flags)
    assert "--same_network" not in flags


def test_the_configuration_of_deepspeed():
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
    assert shlex.join(commanded("train.bf16=true", tail=["a.b=1 2", "--resume"], cores=6)) == (
        "accelerate launch --quiet --config_file=/flags.yaml --num_machines=1 --num_processes=1 --mixed_precision=bf16 "
        "--dynamo_backend=no --num_cpu_threads_per_process=6 -m hf_efficient.train r.yaml 'a.b=1 2' --resume"
    )
    assert commanded(module="a.b")[-3:] == ["-m", "a.b", "r.yaml"]
    assert "--mixed_precision=fp16" in commanded("train.bf16=false", "train.fp16=true")
    assert "--multi_gpu" not in commanded("distributed.processes=auto")
    four = commanded("distributed.processes=auto", device_count=4, cores=9)
    assert {"--num_processes=4", "--multi_gpu", "--num_cpu_threads_per_process=2"} <= set(four)
    assert "--num_processes=2" in commanded("distributed.processes=2", device_count=8, cores=1)
    assert "--num_cpu_threads_per_process=3" in commanded("distributed.cpu_threads=3", cores=6)


FSDP_BY_DEFAULT = {
    **_COMMON, "debug": True, "distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 1,
    "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 1},
}  # fmt: skip
PRINTS = """\
import os
print({name: os.environ.get(name) for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_DEBUG_MODE", "FSDP_VERSION")})
"""


@pytest.mark.slow
def test_the_users_own_default_configuration_does_no_harm(tmp_path):
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate/default_config.yaml").write_text(yaml.safe_dump(FSDP_BY_DEFAULT))
    (tmp_path / "prints.py").write_text(PRINTS)
    made = accelerate_command(recipe(), "", [], Layout(1, 1, 1), module="prints")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    own = {**os.environ, "HF_HOME": str(tmp_path), "PYTHONPATH": path}
    done = subprocess.run(made, env=own, capture_output=True, text=True, timeout=120, check=True)
    assert "{'ACCELERATE_USE_FSDP': None, 'ACCELERATE_DEBUG_MODE': None, 'FSDP_VERSION': None}" in done.stdout
    without = [one for one in made if not one.startswith("--config_file")]  # so it would be
    done = subprocess.run(without, env=own, capture_output=True, text=True, timeout=120, check=False)
    assert "'ACCELERATE_USE_FSDP': None" not in done.stdout  # accelerate 1.15 does not come so far as to start it


def check(loaded, devices=0):
    checks.check_engine(loaded, layout_of(loaded, device_count=devices, cores=2), devices)


def test_deepspeed_is_not_installed(monkeypatch):
    monkeypatch.setattr(checks, "is_installed", lambda name: False)
    check(recipe("processes=2", "strategy=fsdp2"))
    named = r"^command line: distributed\.strategy=zero2: distributed\.strategy: zero2 is DeepSpeed's"
    remedy = r"which is not installed. Install it \(pip install 'hf-efficient\[deepspeed\]'\)"
    with pytest.raises(SetupError, match=f"{named}, {remedy}"):
        check(recipe("processes=2", "strategy=zero2"))


def test_more_processes_than_devices():
    check(recipe("processes=4"), devices=4)
    check(recipe("processes=4"))  # on a CPU any number
    with pytest.raises(SetupError, match=r"distributed\.processes: is 4, but this machine has 2 accelerators"):
        check(recipe("processes=4"), devices=2)


def test_the_cpu_on_a_machine_with_accelerators():
    on_cpu = ["train.use_cpu=true", "distributed.processes=4"]
    check(load_recipe("quickstart/lora", on_cpu), devices=2)  # DDP: any number
    for strategy in ("zero1", "fsdp2"):
        loaded = load_recipe("quickstart/lora", [*on_cpu, f"distributed.strategy={strategy}"])
        check(loaded)
        with pytest.raises(SetupError, match=f"train.use_cpu: is true, and {strategy} would not follow it"):
            check(loaded, devices=4)


def test_the_environment_of_several_machines(monkeypatch):
    there = Layout(2, 1, 2, 0, "127.0.0.1", 4000)
    named = {"GLOO_SOCKET_IFNAME": "lo", "PET_LOCAL_ADDR": "127.0.0.1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    for name in named:
        monkeypatch.delenv(name, raising=False)
    assert checks.launch_environment(Layout(1, 2, 2)) == {}
    assert checks.launch_environment(there) == named
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")  # what the user has set stays
    assert "GLOO_SOCKET_IFNAME" not in checks.launch_environment(there)


def test_a_disk_that_is_not_there(tmp_path):
    offload = ["strategy=zero3", "processes=2", "offload.parameters=true"]
    check(recipe(*offload, f"offload.nvme_path={tmp_path}"))
    with pytest.raises(SetupError, match=r"offload\.nvme_path: .*gone is no folder that can be written"):
        check(recipe(*offload, f"offload.nvme_path={tmp_path / 'gone'}"))


def reading(model="m", *data, tokenizer=None, profile=None) -> Recipe:
    sources = [{"path": str(path)} for path in data or ("a",)]
    section = {"model": {"id": str(model), "tokenizer": tokenizer}, "profile": profile or {}}
    return Recipe(name="t", data={"train": sources}, output_dir="out", **section)


def test_what_needs_the_hub(tiny_llama_dir, chats_jsonl):
    assert not checks.needs_hub(reading(tiny_llama_dir, chats_jsonl, "builtin:python-docstrings"))
    assert checks.needs_hub(reading("owner/model", chats_jsonl))
    assert checks.needs_hub(reading(tiny_llama_dir, chats_jsonl, tokenizer="owner/model"))
    assert checks.needs_hub(reading(tiny_llama_dir, "openai/gsm8k"))
    assert not checks.needs_hub(reading("./missing", chats_jsonl))


@pytest.mark.parametrize("reachable", [True, False])
def test_offline_only_where_the_hub_is_needed_and_away(reachable, tiny_llama_dir, chats_jsonl, monkeypatch):
    monkeypatch.setattr(checks, "hub_reachable", lambda: reachable)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not checks.go_offline_without_hub(reading(tiny_llama_dir, chats_jsonl))
    assert os.environ["HF_HUB_OFFLINE"] == "0"
    assert checks.go_offline_without_hub(reading("owner/model", chats_jsonl)) is (not reachable)
    assert os.environ["HF_HUB_OFFLINE"] == ("0" if reachable else "1")


_FAULTS_OF_A_BLOCK = """
import resource
from hf_efficient.launch.machine import keep_freed_memory
{call}
import torch
faults = []
for _ in range(8):
    torch.ones(2**24)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(min(after - before for before, after in zip(faults[1:], faults[2:])))  # a busy kernel splits a huge page at times
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
@pytest.mark.parametrize(("call", "expected"), [("", range(16, 2**15)), ("keep_freed_memory()", range(4))])
def test_freed_memory_is_used_again_without_page_faults(call, expected):
    code = [sys.executable, "-c", _FAULTS_OF_A_BLOCK.format(call=call)]
    env = {name: value for name, value in os.environ.items() if name not in ("GLIBC_TUNABLES", "THP_MEM_ALLOC_ENABLE")}
    for _ in range(3):  # a kernel short of memory takes pages back at times
        done = subprocess.run(code, env=env, capture_output=True, text=True, timeout=120, check=True)
        if int(done.stdout) in expected:
            return
    raise AssertionError(f"{done.stdout.strip()} page faults")


def test_the_command_of_nsight():
    assert " ".join(checks.nsight_command("nsys", reading(), has_gpu=True)) == (
        "nsys profile --trace=cuda,nvtx,osrt,cudnn,cublas --sample=process-tree --cuda-memory-usage=true "
        "--capture-range=cudaProfilerApi --capture-range-end=stop --force-overwrite=true "
        f"--output={Path('out/efficiency/profile/nsys')}"
    )
    command = checks.nsight_command("ncu", reading(profile={"capture": {"after_step": 9}}), has_gpu=True)
    assert {"--nvtx", "--nvtx-include=step 10", "--set=roofline", "--launch-count=200"} <= set(command)


def test_the_run_names_its_steps():
    both = ["profile.nvtx=true", "profile.capture={}"]
    profiles = ({}, {"nvtx": True, "capture": {"steps": 1}}, {"capture": {}})
    assert [checks.nsight_overrides(reading(profile=one)) for one in profiles] == [both, [], both[:1]]


@pytest.mark.parametrize(("tool", "product"), [("nsys", "Nsight Systems"), ("ncu", "Nsight Compute")])
def test_where_it_is_absent(monkeypatch, tmp_path, tool, product):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=rf"--{tool}: {product} is not installed here: .* Get it from https://dev"):
        checks.check_installed(tool)
    program = tmp_path / tool
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    checks.check_installed(tool)
