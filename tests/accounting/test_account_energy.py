"""Energy and CO2e from samples, worked out by hand."""

from __future__ import annotations

import logging

import pytest
from replayed_nvml import replay
from test_account_build import alive, end, lines, process, span, step, train
from waiting import wait_for_line

from hf_efficient.accounting.account import account_of
from hf_efficient.errors import OutputError
from hf_efficient.recording import system
from hf_efficient.recording.meters import Found
from hf_efficient.records.amounts import EnergyAccount, EnergyPart


def sample(at, number=0, meters=None, **readings):
    held = {"schema_version": 1, "process": number, "at_seconds": at, **readings}
    return held if meters is None else {**held, "meters": meters}


def meter(source="nvml", unit="joules", name="GPU 0", machine="m", note="", **more):
    return {"id": name, "machine": machine, "source": source, "unit": unit, "note": note, **more}


def facts(number=0, **topics):
    return {"kind": "facts", "process": number, "facts": topics}


GRID = {"grams_per_kwh": 400.0, "source": "Utopia 2023"}


@pytest.fixture
def run(tmp_path):
    """Ten seconds: two of imports, one of set-up, steps from 4 to 9 with an evaluation from 6 to 8, an end at 10."""
    lines(
        tmp_path / "spans.jsonl",
        process(),
        facts(grid=GRID),
        span(0.0, imports=2.0),
        span(2.0, trainer_setup=1.0),
        train(0, 3.0),
        end(10.0),
    )
    lines(
        tmp_path / "steps.jsonl",
        step(1, 1.0, 1.0, forward=0.5, backward=0.5),
        step(2, 2.0, 3.0, forward=0.75, backward=0.25, evaluation=2.0),
        step(3, 5.0, 1.0, forward=0.75),
    )
    return tmp_path


def test_energy_by_hand(run):
    """100 W until the loop at 4 s, 500 W in it but 150 W in the step that evaluates, and nothing told before 2 s."""
    readings = [(2, 1000), (3, 1100), (4, 1200), (5, 1700), (8, 2150), (9, 2650), (10, 2750)]
    first, *rest = [sample(at, joules={"GPU 0": value}) for at, value in readings]
    lines(run / "system.jsonl", {**first, "meters": {"GPU 0": meter(note="energy counter")}}, *rest)
    found = account_of(run)
    assert found.energy == EnergyAccount(
        joules=1750.0,
        estimated=False,
        parts=[EnergyPart("GPU 0", 1750.0, "nvml", False, 8.0, 2.0, "energy counter")],
        phase_joules={
            "trainer_setup": 100.0,
            # 500 J of the first step in halves; 450 J of the second, by thirds of a quarter; 375 of the third's 500 J
            "forward": 250.0 + 112.5 + 375.0,
            "backward": 250.0 + 37.5,
            "evaluation": 300.0,
            "unattributed": 325.0,  # from 3 to 4 s, a quarter of the third step, and from 9 s on
        },
        co2e_grams=1750.0 / 3_600_000 * 400,
        grid_grams_per_kwh=400.0,
        grid_source="Utopia 2023",
    )
    assert sum(found.energy.phase_joules.values()) == 1750.0
    assert "energy" not in {gap.what.split()[0] for gap in found.not_measured}


def test_what_lies_before_the_first_reading_is_told(run):
    lines(
        run / "system.jsonl",
        sample(
            4.5,
            meters={"GPU 0": meter(), "CPU": meter("estimate", name="CPU", note="by table")},
            joules={"GPU 0": 0, "CPU": 0},
        ),
        sample(10, joules={"GPU 0": 550, "CPU": 11}),
    )
    found = account_of(run)
    assert [(part.name, part.missing_seconds) for part in found.energy.parts] == [("CPU", 4.5), ("GPU 0", 4.5)]
    assert found.energy.estimated
    told = {gap.what: gap.why for gap in found.not_measured}
    assert told["energy of 4.5 s at the start"] == "meters are read from where the run knows its output directory"
    assert told["measured energy of CPU"] == "it is estimated: by table"
    assert not any("GPU" in what for what in told)


def test_a_counter_that_wraps_and_one_that_is_reset(run):
    lines(
        run / "system.jsonl",
        sample(
            0,
            meters={
                "CPU package 0": meter("rapl", name="r", range_joules=262_000.0),
                "GPU 0": meter("nvml"),
            },
            joules={"CPU package 0": 261_900, "GPU 0": 900},
        ),
        sample(1, joules={"CPU package 0": 50, "GPU 0": 1000}),
        sample(5, joules={"CPU package 0": 250, "GPU 0": 10}),
        sample(10, joules={"CPU package 0": 450, "GPU 0": 210}),
    )
    found = account_of(run)
    assert [(part.name, part.joules, part.covered_seconds, part.missing_seconds) for part in found.energy.parts] == [
        ("CPU package 0", 550.0, 10.0, 0.0),
        ("GPU 0", 300.0, 6.0, 4.0),
    ]
    assert {gap.what: gap.why for gap in found.not_measured}["energy of GPU 0 for 4.0 s"] == (
        "its readings end early, or leave a gap"
    )


def test_power_samples_are_integrated(run):
    lines(
        run / "system.jsonl",
        sample(0, meters={"GPU 0": meter(unit="watts")}, watts={"GPU 0": 100}),
        sample(5, watts={"GPU 0": 300}),
        sample(10, watts={"GPU 0": 300}),
    )
    found = account_of(run).energy
    assert (found.joules, found.parts[0].joules) == (2500.0, 2500.0)


def test_a_fault_is_the_reason(run):
    lines(
        run / "system.jsonl",
        sample(0, meters={"GPU 0": meter()}, joules={"GPU 0": 0}),
        sample(1, joules={"GPU 0": 100}),
        {**sample(2), "faults": {"GPU 0": "GPU is lost", "GPU 1": "no driver", "memory of the host": "OSError: no"}},
        sample(10),
    )
    found = account_of(run)
    told = {gap.what: gap.why for gap in found.not_measured}
    assert told["energy of GPU 0 for 9.0 s"] == "GPU is lost"
    assert told["energy of GPU 1"] == "no driver"
    assert told["memory of the host"] == "OSError: no"
    assert found.energy.joules == 100.0


def test_samples_that_end_early_are_named(run):
    lines(
        run / "system.jsonl", sample(0, meters={"GPU 0": meter()}, joules={"GPU 0": 0}), sample(4, joules={"GPU 0": 8})
    )
    assert "energy of GPU 0 for 6.0 s" in [gap.what for gap in account_of(run).not_measured]


def test_a_resumed_run_counts_no_joule_twice_and_none_in_between(run):
    """The counter ran on by 10 kJ while no process lived, and the second reads on from there."""
    lines(
        run / "spans.jsonl",
        process(1),
        facts(1, grid={"grams_per_kwh": 100.0, "source": "Elsewhere"}),
        span(0.0, 1, imports=1.0),
        train(1, 1.0, 1),
        end(5.0, 1),
    )
    lines(run / "steps.jsonl", step(3, 0.0, 4.0, segment=1, forward=4.0))
    described = {"GPU 0": meter()}
    lines(
        run / "system.jsonl",
        sample(0, meters=described, joules={"GPU 0": 0}),
        sample(10, joules={"GPU 0": 1000}),
        sample(1, 1, meters=described, joules={"GPU 0": 11_000}),
        sample(5, 1, joules={"GPU 0": 11_400}),
    )
    found = account_of(run)
    assert found.time.wall_seconds == 15.0
    assert found.energy.joules == 1400.0
    assert [(part.covered_seconds, part.missing_seconds) for part in found.energy.parts] == [(14.0, 1.0)]
    # 100 W throughout: imports of the first process, none of the second; 0.5 + 0.75 + 0.75 + 4 s of forward
    assert found.energy.phase_joules["imports"] == 200.0
    assert found.energy.phase_joules["forward"] == 600.0
    assert (found.energy.grid_source, found.energy.co2e_grams) == ("Elsewhere", 1400.0 / 3_600_000 * 100)


def test_a_process_without_samples_is_named(run):
    lines(run / "spans.jsonl", process(1), end(5.0, 1))
    lines(
        run / "system.jsonl",
        sample(0, meters={"GPU 0": meter()}, joules={"GPU 0": 0}),
        sample(10, joules={"GPU 0": 10}),
    )
    told = {gap.what: gap.why for gap in account_of(run).not_measured}
    assert told["energy of 5.0 s"] == "nothing was sampled in one start of the run"


def test_all_ranks_add_up_and_a_meter_that_two_read_counts_once(run):
    shared = meter("rapl", name="socket")
    lines(
        run / "system.jsonl",
        sample(0, meters={"GPU 0": meter(), "CPU package 0": shared}, joules={"GPU 0": 0, "CPU package 0": 0}),
        sample(10, joules={"GPU 0": 1000, "CPU package 0": 50}),
    )
    lines(
        run / "system.rank1.jsonl",
        sample(
            0, meters={"GPU 1": meter(name="GPU 1"), "CPU package 0": shared}, joules={"GPU 1": 0, "CPU package 0": 0}
        ),
        sample(8, joules={"GPU 1": 800, "CPU package 0": 40}),
        sample(10, joules={"GPU 1": 1000}),
    )
    found = account_of(run).energy
    assert [(part.name, part.joules) for part in found.parts] == [
        ("CPU package 0", 50.0),
        ("GPU 0", 1000.0),
        ("GPU 1", 1000.0),
    ]
    assert found.joules == 2050.0


def test_processes_add_their_parts_to_one_estimate(run):
    for name, at in (("system.jsonl", 10), ("system.rank1.jsonl", 9)):
        own = {"CPU": meter("estimate", name=name, note=f"of {name}")}
        lines(run / name, sample(0, meters=own, joules={"CPU": 0}), sample(at, joules={"CPU": 30}))
    (part,) = account_of(run).energy.parts
    assert (part.joules, part.covered_seconds, part.missing_seconds) == (60.0, 10.0, 0.0)
    assert part.note == "of system.jsonl"


def test_machines_are_told_apart_where_there_are_several(run):
    for name, machine in (("system.jsonl", "node0"), ("system.rank8.jsonl", "node1")):
        own = {"GPU 0": meter(name=f"GPU of {machine}", machine=machine)}
        lines(run / name, sample(0, meters=own, joules={"GPU 0": 0}), sample(10, joules={"GPU 0": 5}))
    found = account_of(run).energy
    assert [part.name for part in found.parts] == ["node0: GPU 0", "node1: GPU 0"]


def test_a_run_that_died_keeps_its_energy(tmp_path):
    lines(tmp_path / "spans.jsonl", process(), train(0, 0.0), alive(6.0, 1.0, phase="evaluation", evaluation=5.0))
    lines(tmp_path / "steps.jsonl", step(1, 0.0, 1.0, forward=1.0))
    lines(tmp_path / "system.jsonl", sample(0, meters={"GPU 0": meter()}, joules={"GPU 0": 0}))
    lines(tmp_path / "system.jsonl", *(sample(at, joules={"GPU 0": 100 * at}) for at in range(1, 6)))
    with (tmp_path / "system.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "proc')
    found = account_of(tmp_path)
    assert found.energy.phase_joules == {"forward": 100.0, "evaluation": 400.0, "unattributed": 0.0}
    assert (found.energy.grid_source, found.energy.grid_grams_per_kwh) == ("World 2023, Ember, July 2024", 481.0)


def test_a_run_that_died_in_the_moment_in_which_a_phase_began(tmp_path):
    lines(
        tmp_path / "spans.jsonl", process(), span(0.0, imports=2.0), alive(2.0, 2.0, phase="model_load", model_load=0.0)
    )
    lines(
        tmp_path / "system.jsonl",
        sample(0, meters={"GPU 0": meter()}, joules={"GPU 0": 0}),
        sample(2, joules={"GPU 0": 8}),
    )
    assert account_of(tmp_path).energy.phase_joules == {"imports": 8.0, "unattributed": 0.0}


def test_a_line_that_is_no_sample_is_skipped_and_counted(run, caplog):
    described = {"GPU 0": meter()}
    wrong = [
        {"schema_version": 1, "at_seconds": 1},
        sample(2, joules={"GPU 0": "many"}),
        sample(3, joules={"GPU 0": -1}),
        sample(4, joules=[1]),
    ]
    lines(
        run / "system.jsonl", sample(0, meters=described, joules={"GPU 0": 0}), *wrong, sample(10, joules={"GPU 0": 7})
    )
    with caplog.at_level(logging.WARNING):
        found = account_of(run)
    assert found.energy.joules == 7.0
    assert {gap.what: gap.why for gap in found.not_measured}["a part of system.jsonl"] == (
        "3 unreadable lines in system.jsonl were skipped"
    )


def test_times_that_run_backwards_are_left_out(run):
    readings = [(0, 0), (5, 50), (4, 60), (10, 100)]
    first, *rest = [sample(at, joules={"GPU 0": value}) for at, value in readings]
    lines(run / "system.jsonl", {**first, "meters": {"GPU 0": meter()}}, *rest)
    assert account_of(run).energy.joules == 100.0


def test_a_single_reading_is_no_energy(run):
    lines(run / "system.jsonl", sample(0, meters={"GPU 0": meter()}, joules={"GPU 0": 5000}))
    found = account_of(run)
    assert (found.energy.joules, found.energy.phase_joules, found.energy.co2e_grams) == (None, None, None)
    assert "no meter was read" in [gap.why for gap in found.not_measured]


def test_samples_of_a_newer_version_are_refused(run):
    lines(run / "system.jsonl", {"schema_version": 9, "process": 0, "at_seconds": 0})
    with pytest.raises(OutputError, match=r"system\.jsonl:1: schema_version 9 is newer than 1"):
        account_of(run)


@pytest.mark.parametrize(
    ("recording", "rounds", "joules", "covered"),
    [
        ("counter", 3, 1800.0, 3.0),
        ("counter_reset", 3, 500.0, 2.0),
        ("counter_nonsense", 4, 500.0, 2.0),
        ("power_only", 3, 550.0, 3.0),
    ],
)
def test_recordings_to_grams(tmp_path, monkeypatch, recording, rounds, joules, covered):
    """What NVML tells, a second a round, through the sampler's thread and file to grams; by hand from the recording."""
    nvml = replay(monkeypatch, recording)
    monkeypatch.setattr(system, "host_meters", Found)
    monkeypatch.setattr(system, "cuda_devices", lambda _current: [nvml.device()])
    clock = [0.0]
    stream = system.SystemStream(tmp_path / "system.jsonl", 0, lambda: clock[0], flush_seconds=1000)
    wait_for_line(stream.path)
    for _ in range(rounds - 1):
        clock[0] += 1
        stream._write_batch(last=False)
    clock[0] += 1
    stream.close()
    lines(tmp_path / "spans.jsonl", process(), facts(grid=GRID), end(clock[0]))
    found = account_of(tmp_path).energy
    assert (found.joules, found.parts[0].covered_seconds) == (joules, covered)
    assert found.co2e_grams == pytest.approx(joules / 3_600_000 * 400, rel=1e-12)
    assert stream.joules == joules
