"""Energy and money of real trainings, and faults of what samples them: training continues, one warning."""

import math
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from replayed_nvml import replay
from tiny_training import assert_same_run, causal_trainer, lines, train_causal, valid_account
from transformers import Trainer

from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.errors import SetupError
from hf_efficient.facts import prices
from hf_efficient.facts.prices import Rates
from hf_efficient.recording import run_files, system
from hf_efficient.recording.meters import EnergyMeter
from hf_efficient.recording.timeline import process_timeline
from hf_efficient.trainer import EfficientTrainer

RATES = Rates(price_usd_per_hour=7.2, grid=500)


@pytest.fixture
def sampled_often(monkeypatch):
    """Ten times per second, since the trainings here take no longer than a few seconds."""
    monkeypatch.setattr(run_files, "_ROUND_SECONDS", 0.1)


def test_a_training_and_an_evaluation_after_it(tiny_dir, tmp_path, sampled_often, writers):
    trainer = train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=6, eval_rows=4, mixin={"rates": RATES})
    assert writers() == []
    first = lines(tmp_path, "system.jsonl")
    trainer.evaluate()
    assert writers() == []
    sampler = process_timeline().system
    time.sleep(0.5)  # a pause that belongs to no run, since another one takes the process over
    process_timeline().release()
    found, taken = valid_account(tmp_path), lines(tmp_path, "system.jsonl")
    assert len(taken) >= len(first) + 2  # on waking and on ending
    times = [line["at_seconds"] for line in taken]
    assert times == sorted(times)

    # The counter of the estimate runs from the first to the last sample, and nothing else is energy.
    (part,) = found.energy.parts
    assert found.energy.joules == part.joules == round(taken[-1]["joules"]["CPU"] - taken[0]["joules"]["CPU"], 6)
    assert part.covered_seconds == pytest.approx(times[-1] - times[0], abs=1e-3)
    assert times[-1] == pytest.approx(found.time.processes[0].last_sign_at_seconds, abs=0.2)
    # The last sample is taken on ending, perhaps some milliseconds after the last span.
    assert part.covered_seconds + part.missing_seconds == pytest.approx(found.time.wall_seconds, abs=0.02)
    assert found.energy.estimated
    assert found.energy.co2e_grams == pytest.approx(found.energy.joules / 3.6e6 * 500, rel=1e-12)
    assert math.fsum(found.energy.phase_joules.values()) == pytest.approx(found.energy.joules, abs=1e-4)
    assert found.energy.phase_joules["evaluation"] > 0
    assert sampler.joules == pytest.approx(found.energy.joules, abs=0.01)

    # 7.2 dollars an hour are 0.2 cents a second.
    assert found.money.cost_usd == pytest.approx(found.time.wall_seconds * 0.002, rel=1e-12)
    assert found.money.phase_usd["evaluation"] == pytest.approx(found.time.phase_seconds["evaluation"] * 0.002)
    assert math.fsum(found.money.phase_usd.values()) == pytest.approx(found.money.cost_usd, abs=1e-9)
    assert found.money.usd_per_million_non_padding_tokens == pytest.approx(
        found.money.cost_usd / found.tokens.non_padding * 1e6
    )
    assert (found.money.price_source, found.money.estimated) == ("set by the user", False)


def test_a_callback_alone_tells_the_same(tiny_dir, tmp_path, sampled_often, writers):
    train_causal(Trainer, tiny_dir, tmp_path, callbacks=[AccountCallback(rates=RATES)])
    found = valid_account(tmp_path)
    assert found.money.cost_usd == pytest.approx(found.time.wall_seconds * 0.002, rel=1e-12)
    assert found.money.usd_per_million_non_padding_tokens is None
    assert (found.energy.grid_grams_per_kwh, found.energy.grid_source) == (500.0, "set by the user")
    assert found.energy.joules is not None
    assert writers() == []


def test_a_provider_without_this_gpu_stops_the_trainer_before_it_trains(tiny_dir, tmp_path, monkeypatch):
    known = prices.price_facts
    monkeypatch.setattr(prices, "price_facts", lambda rates, _, gpus: known(rates, "NVIDIA H200", gpus))
    rates = Rates(price_from="lambda")
    with pytest.raises(SetupError, match="price_from: lambda has no known on_demand price for H200"):
        causal_trainer(EfficientTrainer, tiny_dir, tmp_path / "a", mixin={"rates": rates})
    with pytest.raises(SetupError, match="price_from: lambda has no known on_demand price for H200"):
        train_causal(Trainer, tiny_dir, tmp_path / "b", callbacks=[AccountCallback(rates=rates)])
    assert not (tmp_path / "b/efficiency").exists()


def raising(error: BaseException, after: int) -> EnergyMeter:
    read = iter(range(10**9))

    def joules() -> float:
        number = next(read)
        if number >= after:
            raise error
        return 100.0 * number

    return EnergyMeter("CPU package 0", "x", "rapl", "joules", joules)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "told", "gap"),
    [
        ("probe", "CPU package 0 cannot be measured (OSError: gone)", ("energy of CPU package 0", "OSError: gone")),
        ("thread", "no longer sampled (SystemExit: dead)", ("energy of CPU package 0", "readings end early")),
        ("lost", "GPU 3 cannot be measured (NVMLError_GpuIsLost: GPU is lost)", ("energy of GPU 3", "GPU is lost")),
        ("driver", "GPU 0 cannot be measured (NVML: Driver Not Loaded)", ("measured energy of GPU 0", "TDP of 700")),
    ],
)
def test_faults_of_meters(tiny_dir, tmp_path, monkeypatch, warned, plain_run, sampled_often, writers, fault, told, gap):
    error = SystemExit("dead") if fault == "thread" else OSError("gone")
    meters = [raising(error, after=2)] if fault in ("probe", "thread") else []
    monkeypatch.setattr(system, "host_meters", lambda: meters)
    if not meters:
        nvml = replay(monkeypatch, "lost_midway" if fault == "lost" else "no_driver")
        monkeypatch.setattr(system, "cuda_devices", lambda _current: [nvml.device()])

    class Slow(EfficientTrainer):
        def training_step(self, *args, **kwargs):
            time.sleep(0.8)
            return super().training_step(*args, **kwargs)

    ours = train_causal(Slow, tiny_dir, tmp_path, max_steps=4)
    assert_same_run(ours, plain_run(4))
    (warning,) = warned()
    assert told in warning
    assert writers() == []
    gaps = [(one.what, one.why) for one in valid_account(tmp_path).not_measured]
    assert [what for what, why in gaps if what.startswith(gap[0]) and gap[1] in why], gaps


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from tiny_training import train_causal
from hf_efficient import EfficientTrainer, Rates

train_causal(EfficientTrainer, Path({model!r}), Path({output!r}), mixin={{"rates": Rates(3.6)}})
print("trained", flush=True)
time.sleep(1.5)
"""


@pytest.mark.slow
def test_the_meters_are_read_once_more_when_the_process_exits(tiny_dir, tmp_path):
    """The run holds the process to its end, and so does its energy, without a thread meanwhile."""
    script = SCRIPT.format(tests=str(Path(__file__).parent), model=str(tiny_dir), output=str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, timeout=300)
    found = valid_account(tmp_path)
    late = [gap for gap in found.not_measured if gap.what.startswith("energy of") and "at the start" not in gap.what]
    assert late == []
    assert found.time.phase_seconds["outside_trainer"] > 1.5
    assert found.energy.phase_joules["outside_trainer"] > 0
    assert found.energy.parts[0].covered_seconds > 1.5
    assert found.money.cost_usd == pytest.approx(found.time.wall_seconds * 0.001, rel=1e-12)


@pytest.mark.slow
def test_another_run_in_the_same_process_takes_no_second_or_joule_of_the_first(tiny_dir, tmp_path, sampled_often):
    for name in ("a", "b", "a"):
        train_causal(EfficientTrainer, tiny_dir, tmp_path / name)
    process_timeline().release()
    spans = []
    for name, process in (("a", 0), ("b", 0), ("a", 1)):
        found, taken = valid_account(tmp_path / name), lines(tmp_path / name, "system.jsonl")
        assert found.energy.parts[0].covered_seconds <= found.time.wall_seconds + 0.1  # the last sample follows the end
        spans.append([line["at_seconds"] for line in taken if line["process"] == process])
        assert found.time.processes[process].steps == 3
    assert spans[0][-1] <= spans[1][0]
    assert spans[1][-1] <= spans[2][0]


def test_the_device_is_told_by_the_training_thread(tmp_path, monkeypatch, writers):
    """Each thread has a current device of its own; the sampler's would always be the first."""
    from hf_efficient.recording.meters import ProcessStart
    from hf_efficient.recording.timeline import Timeline

    books = {
        "allocated_bytes": {"all": {"current": 7, "peak": 7}},
        "reserved_bytes": {"all": {"current": 9, "peak": 9}},
        "num_alloc_retries": 0,
    }
    cuda = types.SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 3 if threading.current_thread() is threading.main_thread() else 0,
        device_count=lambda: 4,
        memory=types.SimpleNamespace(memory_stats_as_nested_dict=lambda index: books if index in (None, 3) else {}),
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(system, "cuda_devices", lambda current: [])
    timeline = Timeline(time.perf_counter_ns, lambda: ProcessStart(time.perf_counter_ns(), "kernel"))
    timeline.open(tmp_path / "efficiency", 3, "trainer")
    timeline.note_memory()
    timeline.end()
    timeline.release()
    assert writers() == []
    taken = lines(tmp_path, "system.rank3.jsonl")
    for one in taken:
        assert (one["device_allocated_bytes"], one["device_reserved_bytes"]) == (7, 9)
    assert "faults" not in taken[-1]
