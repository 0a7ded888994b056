"""The CPU's peak: its arithmetic from given times, its cache, and that it leaves no trace."""

from __future__ import annotations

import json

import pytest
import torch

from hf_efficient.model.peak import peak_of
from hf_efficient.profilers import calibration as matmul_peak
from hf_efficient.profilers.calibration import MatmulPeak, cpu_matmul_peak, measure_matmul


def seconds_of(monkeypatch, seconds, cpu_seconds=None):
    """Each size takes as long as given, and as much CPU, by default all of it; returns the sizes that were tried."""
    tried = []

    def fastest(size, dtype):
        tried.append(size)
        return seconds[size], (cpu_seconds or {}).get(size, seconds[size] * torch.get_num_threads())

    monkeypatch.setattr(matmul_peak, "_fastest_product", fastest)
    return tried


def test_the_fastest_product_is_the_peak(monkeypatch):
    """256: 2 * 256 ** 3 = 33,554,432 FLOPs in 1 ms; at that rate 2048 would take half a second."""
    tried = seconds_of(monkeypatch, {128: 1e-3, 256: 1e-3, 512: 20e-3, 1024: 80e-3})
    found = measure_matmul(torch.float32)
    assert (found.flops_per_second, found.size) == (33_554_432 / 1e-3, 256)
    assert found.threads == torch.get_num_threads()
    assert tried == [128, 256, 512, 1024]


def test_a_slow_machine_is_not_asked_for_more(monkeypatch):
    tried = seconds_of(monkeypatch, {128: 1.0})
    assert measure_matmul(torch.float16).flops_per_second == 2 * 128**3
    assert tried == [128]


class Clocks:
    """Wall and CPU time that pass by hand: every product takes a millisecond and the CPU time that is given."""

    def __init__(self, monkeypatch, cpu_seconds):
        self.wall = self.cpu = 0.0
        self.cpu_seconds = iter(cpu_seconds)
        monkeypatch.setattr(matmul_peak.time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(matmul_peak.time, "process_time", lambda: self.cpu)
        product = torch.mm

        def mm(left, right, out=None):
            if out is not None:
                self.wall += next(walls)
                self.cpu += next(self.cpu_seconds)
            return product(left, right, out=out)

        walls = iter([2e-3, 1e-3, 3e-3] + [1.0] * 9)
        monkeypatch.setattr(torch, "mm", mm)


def test_the_cpu_time_is_that_of_the_fastest_product(monkeypatch):
    Clocks(monkeypatch, [4e-3, 1.5e-3, 3e-3] + [1.0] * 9)
    assert matmul_peak._fastest_product(128, torch.float32) == pytest.approx((1e-3, 1.5e-3))


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
def test_a_product_that_did_not_get_the_cpu_it_asked_for(monkeypatch, cpu, share, busy):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    seconds_of(monkeypatch, {128: 1e-3, 256: 1e-3, 512: 20e-3, 1024: 80e-3}, cpu)
    found = measure_matmul(torch.float32)
    assert (found.size, found.cpu_share, found.is_of_a_busy_machine) == (256, share, busy)


def test_random_generators_gradients_and_defaults_are_left_alone():
    before = torch.get_rng_state()
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    assert measure_matmul(torch.bfloat16).size in matmul_peak._SIZES
    assert torch.equal(torch.get_rng_state(), before)
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (threads, grad)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path))
    return tmp_path / "matmul_peaks"


def test_it_is_measured_once_for_each_dtype_and_number_of_threads(cache, monkeypatch):
    measured = []

    def measure(dtype):
        measured.append(dtype)
        return MatmulPeak(1e9 * len(measured), 256, 1, "2026-01-02")

    monkeypatch.setattr(matmul_peak, "measure_matmul", measure)
    assert cpu_matmul_peak(torch.float32) == cpu_matmul_peak(torch.float32) == MatmulPeak(1e9, 256, 1, "2026-01-02")
    assert cpu_matmul_peak(torch.bfloat16).flops_per_second == 2e9
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert cpu_matmul_peak(torch.float32).flops_per_second == 3e9
    assert len(list(cache.iterdir())) == 3


def test_what_a_busy_machine_gave_is_not_kept_and_is_told(cache, monkeypatch):
    shares = iter([0.6, 0.95])
    monkeypatch.setattr(
        matmul_peak, "measure_matmul", lambda dtype: MatmulPeak(5e9, 256, 2, "2026-01-02", next(shares))
    )
    cpu = torch.device("cpu")
    busy, kept, again = (peak_of(cpu, "fp32").source for _ in range(3))
    assert busy == "a matmul measured here on a busy machine: 256 x 256, 2 threads, 2026-01-02"
    assert kept == again == "a matmul measured here: 256 x 256, 2 threads, 2026-01-02"


def test_an_entry_that_does_not_tell_its_cpu_time_is_measured_anew(cache, monkeypatch):
    peaks = iter([1e9, 5e9])
    monkeypatch.setattr(matmul_peak, "measure_matmul", lambda dtype: MatmulPeak(next(peaks), 256, 1, "2026-01-02"))
    cpu_matmul_peak(torch.float32)
    (path,) = cache.iterdir()
    held = json.loads(path.read_text())
    del held["peak"]["cpu_share"]
    path.write_text(json.dumps(held))
    assert cpu_matmul_peak(torch.float32).flops_per_second == 5e9


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 1}', '{"key": null, "peak": {"flops_per_second": 0}}'])
def test_a_damaged_entry_is_measured_anew(cache, monkeypatch, text):
    monkeypatch.setattr(matmul_peak, "measure_matmul", lambda dtype: MatmulPeak(5e9, 256, 1, "2026-01-02"))
    cpu_matmul_peak(torch.float32)
    (path,) = cache.iterdir()
    path.write_text(text)
    assert cpu_matmul_peak(torch.float32).flops_per_second == 5e9
    assert json.loads(path.read_text())["peak"]["flops_per_second"] == 5e9


def test_a_cache_that_cannot_be_written_is_no_fault(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(matmul_peak, "measure_matmul", lambda dtype: MatmulPeak(5e9, 256, 1, "2026-01-02"))
    assert cpu_matmul_peak(torch.float32).flops_per_second == 5e9
