"""What is missing on a machine is said before any process starts."""

from __future__ import annotations

import socket

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.launch import machine as checks
from hf_efficient.launch.command import Layout, NodePlace, layout_of, node_place
from hf_efficient.launch.machine import check_engine, check_port, interface_of, is_free, launch_environment, own_address
from hf_efficient.recipe.load import load_recipe


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


def test_one_machine_has_no_place():
    assert node_place(recipe(), 0, None) is None


def test_interfaces():
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert own_address("no-such-host.invalid") is None
    assert interface_of("192.0.2.77") is None


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
