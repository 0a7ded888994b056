"""The CPU's peak: its arithmetic from given times, its cache, and that it leaves no trace."""

from __future__ import annotations

import json

import pytest
import torch

from hf_efficient.measure import matmul_peak
from hf_efficient.measure.matmul_peak import MatmulPeak, cpu_matmul_peak, measure_matmul


def seconds_of(monkeypatch, seconds):
    """Each size takes as long as given; returns the sizes that were tried."""
    tried = []

    def fastest(size, dtype):
        tried.append(size)
        return seconds[size]

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
