"""Rates of a device: arithmetic from given times, a CUDA device replayed, and what is kept in the cache."""

import dataclasses
import json
import time

import pytest
import torch

from hf_efficient.errors import SetupError
from hf_efficient.model.work import peak_of
from hf_efficient.profilers import calibration
from hf_efficient.records.device import Calibration, MatmulRate

CPU = torch.device("cpu")


def test_a_launch_is_the_mean_of_a_chain_and_the_median_of_rounds():
    """The clock is read before and after each of 20 rounds of 400 kernels: 12 at 4 ms, 8 at 40 ms."""
    rounds = [4e-3] * 12 + [40e-3] * 8
    readings = iter([reading for seconds in rounds for reading in (0.0, seconds)])
    with torch.no_grad():  # also where gradients are off
        assert calibration.launch_seconds(CPU, lambda: next(readings)) == pytest.approx(10e-6)


def test_a_device_by_calls_that_take_a_millisecond(monkeypatch):
    monkeypatch.setattr(calibration, "steady_seconds", lambda work: (work(), 1e-3)[1])
    rates = list(calibration.product_rates("bf16", CPU, sizes=(4, 8)))
    assert [rate.flops_per_second for rate in rates] == [pytest.approx(128e3), pytest.approx(1024e3)]
    monkeypatch.setattr(calibration, "_cpu_products", lambda: (tuple(rates), None))
    monkeypatch.setattr(calibration, "_copy_bytes", lambda device: 4096)
    monkeypatch.setattr(calibration, "launch_seconds", lambda device: 6e-6)
    found = calibration.calibrate(CPU)
    assert found.bandwidth_bytes_per_second == pytest.approx(8192e3)
    assert (found.matmul, found.launch_seconds, found.busy) == (tuple(rates), 6e-6, None)
    assert (found.device_type, found.threads) == ("cpu", torch.get_num_threads())
    assert (found.torch_version, found.measured_on) == (torch.__version__, time.strftime("%Y-%m-%d"))


def test_a_call_is_timed_alone():
    assert calibration.steady_seconds(lambda: time.sleep(2e-3)) >= 2e-3


def test_a_gpu_that_others_use(monkeypatch):
    held, gpu = {"load": lambda device: 0, "free": 80 * 2**30}, torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (held["free"], 2 * held["free"]))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: held["load"](device))
    monkeypatch.setattr(calibration, "product_rates", lambda dtype, device: [dtype])
    assert calibration._copy_bytes(gpu) == 2**30
    held["free"] = 2**30
    assert calibration._copy_bytes(gpu) == 2**28
    for load, busy in ((lambda device: 37, True), (lambda device: 1 / 0, None)):
        held["load"] = load
        assert calibration._gpu_products(gpu) == (("fp16", "fp32"), busy)


def test_a_gpu_of_each_name_is_measured_once(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "T4" if index else "H100")
    assert [str(device) for device in calibration.devices()] == ["cuda:0", "cuda:1", "cpu"]


@pytest.mark.parametrize(("share", "busy"), [(0.99, False), (0.5, True)])
def test_the_cpu_takes_its_products_from_the_peak(monkeypatch, share, busy):
    of = calibration.MatmulPeak
    peaks = {torch.bfloat16: of(5e11, 1024, 2, "", 0.99), torch.float32: of(1e11, 512, 2, "", share)}
    monkeypatch.setattr(calibration, "measure_matmul", peaks.__getitem__)
    assert calibration._cpu_products() == ((MatmulRate("bf16", 1024, 5e11), MatmulRate("fp32", 512, 1e11)), busy)


HELD = Calibration(
    "NVIDIA GeForce RTX 4090", "cuda", "2.13.0", "2026-01-02", (MatmulRate("bf16", 4096, 1.6e14),), 9.2e11, 6e-6, False
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path))
    return tmp_path


def test_what_is_kept_is_found(cache, caplog):
    assert calibration.load_calibration(HELD.device_name) is None
    assert calibration.save_calibration(HELD) == cache / "calibrations/nvidia-geforce-rtx-4090.json"
    assert calibration.load_calibration(HELD.device_name) == HELD
    assert calibration.load_calibration("nvidia geforce rtx 4090") is None  # another device of the same file name
    later = dataclasses.replace(HELD, measured_on="2026-02-03", busy=None, threads=4)
    calibration.save_calibration(later)
    assert calibration.load_calibration(HELD.device_name) == later
    assert len(list((cache / "calibrations").iterdir())) == 1


@pytest.mark.parametrize("change", [None, {"schema_version": 2}, {"matmul": None}, {"launch_seconds": "short"}])
def test_a_damaged_file_is_reported_and_not_used(cache, caplog, change):
    path = calibration.save_calibration(HELD)
    text = "\xff" if change is None else json.dumps({**dataclasses.asdict(HELD), **change})
    path.write_text(text, encoding="latin-1")
    assert calibration.load_calibration(HELD.device_name) is None
    (message,) = caplog.messages
    assert message.startswith(f"{path}: ")
    assert message.endswith("Measure again: hf-efficient env --calibrate")


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "file"))
    with pytest.raises(SetupError, match=r"cannot be written: .*\. Set HF_EFFICIENT_CACHE to a folder that can be\."):
        calibration.save_calibration(HELD)
    monkeypatch.setattr(calibration, "measure_matmul", lambda dtype: calibration.MatmulPeak(5e9, 256, 1, "2026-01-02"))
    assert calibration.cpu_matmul_peak(torch.float32).flops_per_second == 5e9  # of a peak it is no fault


def products_take(monkeypatch, seconds, cpu_seconds=None):
    """Each size takes as long as given, and as much CPU, by default all of it; returns the sizes that were tried."""
    tried = []

    def fastest(size, dtype):
        tried.append(size)
        return seconds[size], (cpu_seconds or {}).get(size, seconds[size] * torch.get_num_threads())

    monkeypatch.setattr(calibration, "_fastest_product", fastest)
    return tried


@pytest.mark.parametrize(
    ("cpu", "share", "busy"),
    [
        ({}, 1.0, False),
        ({256: 1.9e-3}, 0.95, False),
        ({256: 1.0e-3}, 0.5, True),
        ({128: 0.1e-3}, 1.0, False),  # smaller than the fastest
        ({512: 10e-3}, 0.25, True),  # larger: it might have been the fastest
        ({256: 9.0}, 1.0, False),  # other threads of this process
        ({256: 0.0}, 1.0, False),  # the clock did not tick
    ],
)
def test_the_fastest_product_is_the_peak_whatever_cpu_it_got(monkeypatch, cpu, share, busy):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    tried = products_take(monkeypatch, {128: 1e-3, 256: 1e-3, 512: 20e-3, 1024: 80e-3}, cpu)
    found = calibration.measure_matmul(torch.float32)
    assert (found.size, found.cpu_share, found.is_of_a_busy_machine) == (256, share, busy)
    # 2 * 256 ** 3 = 33,554,432 FLOPs in 1 ms; at that rate 2048 would take half a second.
    assert (found.flops_per_second, found.threads, tried) == (33_554_432 / 1e-3, 2, [128, 256, 512, 1024])


def test_a_peak_is_measured_once_for_each_dtype_and_number_of_threads(cache, monkeypatch):
    measured = []

    def measure(dtype):
        measured.append(dtype)
        return calibration.MatmulPeak(1e9 * len(measured), 256, 1, "2026-01-02")

    monkeypatch.setattr(calibration, "measure_matmul", measure)
    for _ in range(2):
        assert calibration.cpu_matmul_peak(torch.float32).flops_per_second == 1e9
    assert calibration.cpu_matmul_peak(torch.bfloat16).flops_per_second == 2e9
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert calibration.cpu_matmul_peak(torch.float32).flops_per_second == 3e9
    assert len(list((cache / "matmul_peaks").iterdir())) == 3


@pytest.mark.parametrize(("rates", "faster"), [((326e9, 168e9), True), ((415e9, 400e9), False), ((90e9, 180e9), False)])
def test_a_cpu_is_faster_in_float32_by_measurement_and_ranks_go_by_instructions(cache, monkeypatch, rates, faster):
    calibration._float32_is_faster.cache_clear()
    peaks = dict(zip((torch.float32, torch.bfloat16), rates, strict=True))
    monkeypatch.setattr(
        calibration, "cpu_matmul_peak", lambda dtype: calibration.MatmulPeak(peaks[dtype], 1, 1, "2026-01-02")
    )
    assert calibration.cpu_is_faster_in_float32() is faster
    calibration._float32_is_faster.cache_clear()
    peaks.update({torch.float32: 1.0, torch.bfloat16: 1.0} if faster else {torch.float32: 9e12})
    assert calibration.cpu_is_faster_in_float32() is faster  # kept, though the machine seems another today
    calibration._float32_is_faster.cache_clear()
    monkeypatch.setenv("WORLD_SIZE", "2")
    for emulates in (True, False):
        monkeypatch.setattr(calibration, "cpu_emulates_bf16", lambda emulates=emulates: emulates)
        assert calibration.cpu_is_faster_in_float32() is emulates


def test_what_a_busy_machine_gave_is_not_kept(cache, monkeypatch):
    shares = iter([0.6, 0.95])
    monkeypatch.setattr(
        calibration, "measure_matmul", lambda dtype: calibration.MatmulPeak(5e9, 256, 2, "2026-01-02", next(shares))
    )
    busy, kept, again = (peak_of(CPU, "fp32").source for _ in range(3))
    assert busy == "a matmul measured here on a busy machine: 256 x 256, 2 threads, 2026-01-02"
    assert kept == again == "a matmul measured here: 256 x 256, 2 threads, 2026-01-02"
