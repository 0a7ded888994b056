"""Calibration: its arithmetic from given times, a CUDA device replayed, and what it leaves alone."""

from __future__ import annotations

import time

import pytest
import torch
from tests.measure.fake_device import Device

from hf_efficient.profilers import calibration
from hf_efficient.profilers.calibration import (
    Bench,
    MatmulPeak,
    benches,
    calibrate,
    copy_rate,
    cpu_bench,
    cuda_bench,
    launch_seconds,
    product_rates,
)
from hf_efficient.profilers.stopwatch import EventStopwatch
from hf_efficient.records.device import MatmulRate

CPU = torch.device("cpu")


class Told:
    """A watch that knows how long each call takes: the work is done, and its time is what was told."""

    def __init__(self, *seconds):
        self.answers, self.settled = list(seconds), 0

    def seconds(self, work, times):
        work()
        return self.answers[0] if times == 1 else self.answers.pop(0)

    def settle(self):
        self.settled += 1


def steady(monkeypatch, *seconds):
    """Each thing that is measured takes as long as given, and is done once."""
    answers = list(seconds)

    def one(watch, work):
        work()
        return answers.pop(0)

    monkeypatch.setattr(calibration, "steady_seconds", one)
    return answers


def bench(**changes):
    values = {
        "device": CPU,
        "name": "A Device",
        "device_type": "cuda",
        "watch": Told(),
        "products": lambda: ((MatmulRate("bf16", 64, 5e11),), False),
        "copy_bytes": 4096,
    }
    return Bench(**{**values, **changes})


def test_products(monkeypatch):
    """2 * 4 ** 3 = 128 FLOPs in 1 us, 2 * 8 ** 3 = 1024 in 2 us."""
    steady(monkeypatch, 1e-6, 2e-6)
    found = list(product_rates("bf16", CPU, Told(), sizes=(4, 8)))
    assert found == [MatmulRate("bf16", 4, pytest.approx(128e6)), MatmulRate("bf16", 8, pytest.approx(512e6))]


def test_a_slow_device_is_not_asked_for_more(monkeypatch):
    """At 128 FLOPs in 10 ms, 1024 take 80 ms; then, at 12.8 kFLOP/s, 8192 would take 0.64 s."""
    left = steady(monkeypatch, 10e-3, 80e-3, 1.0)
    assert [rate.size for rate in product_rates("fp32", CPU, Told(), sizes=(4, 8, 16))] == [4, 8]
    assert left == [1.0]


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_products_are_of_their_dtype_and_not_of_zeros(monkeypatch, name, dtype):
    multiplied = []

    def mm(left, right, out):
        multiplied.append((left, right, out))

    steady(monkeypatch, 1e-6)
    monkeypatch.setattr(torch, "mm", mm)
    list(product_rates(name, CPU, Told(), sizes=(4,)))
    ((left, right, out),) = multiplied
    assert {left.dtype, right.dtype, out.dtype} == {dtype}
    assert left.shape == right.shape == out.shape == (4, 4)
    assert int((left != 0).sum()) == 16
    assert torch.equal(right, left.t())


def test_a_copy_reads_and_writes(monkeypatch):
    """4096 bytes read and 4096 written in 2 us."""
    steady(monkeypatch, 2e-6)
    assert copy_rate(bench()) == pytest.approx(4.096e9)


def test_a_launch_is_the_mean_of_a_chain_and_the_median_of_rounds():
    """The clock is read before and after each of 20 rounds of 400 kernels: 12 at 4 ms, 8 at 40 ms."""
    rounds = [4e-3] * 12 + [40e-3] * 8
    readings = iter([reading for seconds in rounds for reading in (0.0, seconds)])
    held = bench()
    assert launch_seconds(held, lambda: next(readings)) == pytest.approx(10e-6)
    assert held.watch.settled == 20


def test_a_launch_is_measured_where_gradients_are_off():
    with torch.no_grad():
        assert launch_seconds(bench(), iter(range(100)).__next__) == pytest.approx(1 / 400)


def test_a_cuda_device_replayed(monkeypatch):
    """Kernels of 1 ms on the device's own clock, whatever they do: the host's time is not part of it."""
    device = Device()

    def synchronize():
        device.host = max(device.host, device.done_at)

    class Watch(EventStopwatch):
        def seconds(self, work, times):
            return super().seconds(lambda: (work(), device.queue(1e-3)), times)

    watch = Watch(device.event, synchronize)

    def products():
        return tuple(product_rates("bf16", CPU, watch, sizes=(4, 8))), None

    monkeypatch.setattr(calibration, "launch_seconds", lambda held: 6e-6)
    found = calibrate(bench(watch=watch, products=products))
    assert [rate.flops_per_second for rate in found.matmul] == [pytest.approx(128e3), pytest.approx(1024e3)]
    assert found.bandwidth_bytes_per_second == pytest.approx(8192e3)
    assert (found.launch_seconds, found.busy, found.threads) == (6e-6, None, None)
    assert (found.device_name, found.device_type) == ("A Device", "cuda")
    assert (found.torch_version, found.measured_on) == (torch.__version__, time.strftime("%Y-%m-%d"))


@pytest.fixture
def gpus(monkeypatch):
    """Two models of GPU, one of them twice, as ``torch.cuda`` tells them; returns what can be changed."""
    held = {"load": lambda index: 0, "bf16": True, "free": 80 * 2**30, "asked": []}
    names = ["NVIDIA H200", "NVIDIA H200", "Tesla T4"]

    def rates(dtype, device, watch):
        held["asked"].append((dtype, str(device)))
        yield MatmulRate(dtype, 64, 1e12)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", names.__getitem__)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (held["free"], 2 * held["free"]))
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: held["bf16"] or including_emulation
    )
    monkeypatch.setattr(torch.cuda, "utilization", lambda index: held["load"](index))
    monkeypatch.setattr(calibration, "product_rates", rates)
    return held


def test_each_model_of_gpu_once_and_the_cpu(gpus, monkeypatch):
    monkeypatch.setattr(calibration, "cpu_model", lambda: "A CPU")
    found = list(benches())
    assert [(one.name, str(one.device)) for one in found] == [
        ("NVIDIA H200", "cuda:0"), ("Tesla T4", "cuda:2"), ("A CPU", "cpu"),
    ]  # fmt: skip


def test_a_machine_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(calibration, "cpu_model", lambda: None)
    (found,) = benches()
    assert (found.name, found.device_type, found.threads) == ("CPU", "cpu", torch.get_num_threads())


def test_a_gpu_is_asked_for_the_dtypes_that_it_computes_in(gpus):
    rates, busy = cuda_bench(0).products()
    assert [rate.dtype for rate in rates] == ["bf16", "fp16", "fp32"]
    assert gpus["asked"] == [("bf16", "cuda:0"), ("fp16", "cuda:0"), ("fp32", "cuda:0")]
    assert busy is False
    gpus["bf16"] = False
    assert [rate.dtype for rate in cuda_bench(0).products()[0]] == ["fp16", "fp32"]


def test_the_copy_leaves_others_their_memory(gpus):
    assert cuda_bench(0).copy_bytes == 2**30
    gpus["free"] = 2**30
    assert cuda_bench(0).copy_bytes == 2**28


def test_a_gpu_that_others_use(gpus):
    gpus["load"] = lambda index: 37
    assert cuda_bench(0).products()[1] is True

    def untold(index):
        raise ModuleNotFoundError("pynvml")

    gpus["load"] = untold
    assert cuda_bench(0).products()[1] is None


@pytest.mark.parametrize(("share", "busy"), [(0.99, False), (0.5, True)])
def test_the_cpu_takes_its_products_from_the_peak(monkeypatch, share, busy):
    peaks = {
        torch.bfloat16: MatmulPeak(5e11, 1024, 2, "2026-01-02", 0.99),
        torch.float32: MatmulPeak(1e11, 512, 2, "2026-01-02", share),
    }
    monkeypatch.setattr(calibration, "measure_matmul", peaks.__getitem__)
    assert cpu_bench().products() == ((MatmulRate("bf16", 1024, 5e11), MatmulRate("fp32", 512, 1e11)), busy)


def test_random_generators_and_gradients_are_left_alone(monkeypatch):
    steady(monkeypatch, 1e-6, 1e-6)
    before = torch.get_rng_state()
    copy_rate(bench())
    list(product_rates("fp32", CPU, Told(), sizes=(4,)))
    launch_seconds(bench(), iter(range(100)).__next__)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()
