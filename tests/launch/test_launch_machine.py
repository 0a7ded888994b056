"""What is asked of a machine before any process starts: engine, port, network, hub, Nsight."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hf_efficient.errors import ModelError, SetupError
from hf_efficient.launch import machine as checks
from hf_efficient.launch import machine as offline
from hf_efficient.launch.command import Layout, layout_of
from hf_efficient.launch.machine import (
    check_engine,
    check_installed,
    check_port,
    check_wrap_classes_without_weights,
    go_offline_without_hub,
    is_free,
    launch_environment,
    needs_hub,
    nsight_command,
    nsight_overrides,
)
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe


def recipe(*distributed):
    return load_recipe("quickstart/lora", [f"distributed.{one}" for one in distributed])


def check(loaded, devices=0):
    check_engine(loaded, layout_of(loaded, device_count=devices, cores=2), devices)


def test_deepspeed_is_not_installed(monkeypatch):
    monkeypatch.setattr(checks, "is_installed", lambda name: False)
    check(recipe("processes=2", "strategy=fsdp2"))
    with pytest.raises(SetupError) as raised:
        check(recipe("processes=2", "strategy=zero2"))
    assert str(raised.value).startswith(
        "command line: distributed.strategy=zero2: distributed.strategy: zero2 is DeepSpeed's, which is not installed. "
        "Install it (pip install 'hf_efficient[deepspeed]')"
    )


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


def test_a_disk_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "has_libaio", lambda: True)
    offload = ["strategy=zero3", "offload.optimizer=true", "processes=2"]
    check(recipe(*offload, f"offload.nvme_path={tmp_path}"))
    with pytest.raises(SetupError, match=r"offload\.nvme_path: .*gone is no folder that can be written"):
        check(recipe(*offload, f"offload.nvme_path={tmp_path / 'gone'}"))


def test_the_port_to_meet_at_is_in_use():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(SetupError, match=f"--main-address: port {port} of this machine is in use"):
            check_port(Layout(2, 1, 2, 0, "alpha", port))
        check_port(Layout(2, 1, 2, 1, "alpha", port))  # machine 1 only calls there
        check_port(Layout(1, 2, 2))
    assert is_free(port)
    check_port(Layout(2, 1, 2, 0, "alpha", port))


def test_what_the_processes_of_several_machines_are_told(monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "PET_LOCAL_ADDR", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"):
        monkeypatch.delenv(name, raising=False)
    assert launch_environment(Layout(1, 2, 2)) == {}
    assert launch_environment(Layout(2, 1, 2, 0, "127.0.0.1", 4000)) == {
        "GLOO_SOCKET_IFNAME": "lo",
        "PET_LOCAL_ADDR": "127.0.0.1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")  # what the user has set stays
    assert "GLOO_SOCKET_IFNAME" not in launch_environment(Layout(2, 1, 2, 0, "127.0.0.1", 4000))


def test_a_disk_without_the_library_that_reads_it(tmp_path, monkeypatch):
    """DeepSpeed would try to build its operators for minutes, and say so in every process."""
    monkeypatch.setattr(checks.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(checks.ctypes.util, "find_library", lambda name: None)
    monkeypatch.delenv("LDFLAGS", raising=False)
    asked = recipe("strategy=zero3", "processes=2", "offload.parameters=true", f"offload.nvme_path={tmp_path}")
    with pytest.raises(SetupError, match=r"offload\.nvme_path: .* libaio, which is not installed"):
        check(asked)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libaio.so.1").touch()
    check(asked)


def reading(model, *data, tokenizer=None) -> Recipe:
    return Recipe(
        name="t",
        model={"id": str(model), "tokenizer": tokenizer},
        data={"train": [{"path": str(path)} for path in data]},
        output_dir="o",
    )


def test_what_needs_the_hub(tiny_llama_dir, chats_jsonl):
    assert not needs_hub(reading(tiny_llama_dir, chats_jsonl, "builtin:python-docstrings"))
    assert needs_hub(reading("owner/model", chats_jsonl))
    assert needs_hub(reading(tiny_llama_dir, chats_jsonl, tokenizer="owner/model"))
    assert needs_hub(reading(tiny_llama_dir, "openai/gsm8k"))
    assert not needs_hub(reading("./missing", chats_jsonl))


@pytest.mark.parametrize("reachable", [True, False])
def test_offline_only_where_the_hub_is_needed_and_away(reachable, tiny_llama_dir, chats_jsonl, monkeypatch):
    monkeypatch.setattr(offline, "hub_reachable", lambda: reachable)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not go_offline_without_hub(reading(tiny_llama_dir, chats_jsonl))
    assert os.environ["HF_HUB_OFFLINE"] == "0"
    assert go_offline_without_hub(reading("owner/model", chats_jsonl)) is (not reachable)
    assert os.environ["HF_HUB_OFFLINE"] == ("0" if reachable else "1")


def of_model(model, *overrides):
    return load_recipe("quickstart/lora", [f"model.id={model}", "distributed.strategy=fsdp2", *overrides])


def test_the_configuration_alone_tells(tiny_llama_dir, tmp_path):
    (tmp_path / "config.json").write_text((tiny_llama_dir / "config.json").read_text())  # no weights
    check_wrap_classes_without_weights(of_model(tmp_path))
    check_wrap_classes_without_weights(of_model(tmp_path, "distributed.wrap_classes=[LlamaDecoderLayer]"))
    with pytest.raises(ModelError, match=r"MistralDecoderLayer is no class .* LlamaDecoderLayer"):
        check_wrap_classes_without_weights(of_model(tmp_path, "distributed.wrap_classes=[MistralDecoderLayer]"))


def profiled(profile=None):
    return Recipe(
        name="t",
        model={"id": "m"},
        data={"train": [{"path": "a"}]},
        output_dir="out",
        efficiency={"profile": profile or {}},
    )


def test_nsys_captures_the_recipes_steps():
    assert nsight_command("nsys", profiled(), has_gpu=True) == [
        "nsys",
        "profile",
        "--trace=cuda,nvtx,osrt,cudnn,cublas",
        "--sample=process-tree",
        "--cuda-memory-usage=true",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--force-overwrite=true",
        f"--output={Path('out/efficiency/profile/nsys')}",
    ]


def test_ncu_looks_at_the_first_captured_step():
    command = nsight_command("ncu", profiled({"capture": {"after_step": 9}}), has_gpu=True)
    assert {"--nvtx", "--nvtx-include=step 10", "--set=roofline", "--launch-count=200"} <= set(command)


@pytest.mark.parametrize(
    ("profile", "overrides"),
    [
        ({}, ["efficiency.profile.nvtx=true", "efficiency.profile.capture={}"]),
        ({"nvtx": True, "capture": {"steps": 1}}, []),
        ({"capture": {}}, ["efficiency.profile.nvtx=true"]),
    ],
)
def test_the_run_names_its_steps(profile, overrides):
    assert nsight_overrides(profiled(profile)) == overrides


@pytest.mark.parametrize(("tool", "product"), [("nsys", "Nsight Systems"), ("ncu", "Nsight Compute")])
def test_where_it_is_absent(monkeypatch, tmp_path, tool, product):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=rf"--{tool}: {product} is not installed here: .* Get it from https://dev"):
        check_installed(tool)
    program = tmp_path / tool
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    check_installed(tool)
