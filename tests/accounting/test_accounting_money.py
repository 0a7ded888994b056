"""Energy, CO2e and money of hand-made records, and what restarts cost, worked out by hand."""

import math

import pytest
from made_records import alive, end, facts, lines, meter, price, process, sample, span, step, train
from replayed_nvml import replay

from hf_efficient.accounting.account import account_of
from hf_efficient.recording import system
from hf_efficient.records.account import RestartAccount
from hf_efficient.records.amounts import EnergyAccount, EnergyPart, MoneyAccount

GRID = {"grams_per_kwh": 400.0, "source": "Utopia 2023"}


@pytest.fixture
def run(tmp_path):
    """Ten seconds: two of imports, one of set-up, steps from 4 to 9 with an evaluation from 6 to 8, an end at 10."""
    lines(
        tmp_path / "spans.jsonl", process(), facts(grid=GRID), span(0.0, imports=2.0), span(2.0, trainer_setup=1.0),
        train(0, 3.0), end(10.0),
    )  # fmt: skip
    lines(
        tmp_path / "steps.jsonl",
        step(1, 1.0, 1.0, forward=0.5, backward=0.5),
        step(2, 2.0, 3.0, forward=0.75, backward=0.25, evaluation=2.0),
        step(3, 5.0, 1.0, forward=0.75),
    )
    return tmp_path


def metered(folder, readings, name="GPU 0", file="system.jsonl", number=0, **more):
    """Readings of one counter, (second, joules), in a file of samples."""
    first, *rest = [sample(at, number, joules={name: value}) for at, value in readings]
    lines(folder / file, {**first, "meters": {name: meter(**{"name": name, **more})}}, *rest)


def gaps(account):
    return {gap.what: gap.why for gap in account.not_measured}


def test_energy_by_hand(run):
    """100 W until the loop at 4 s, 500 W in it but 150 W in the step that evaluates, and nothing told before 2 s."""
    readings = [(2, 1000), (3, 1100), (4, 1200), (5, 1700), (8, 2150), (9, 2650), (10, 2750)]
    metered(run, readings, note="energy counter")
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
    assert "energy" not in {what.split()[0] for what in gaps(found)}


def test_what_lies_before_the_first_reading_is_told(run):
    meters = {"GPU 0": meter(), "CPU": meter("estimate", name="CPU", note="by table")}
    lines(run / "system.jsonl", sample(4.5, meters=meters, joules={"GPU 0": 0, "CPU": 0}))
    lines(run / "system.jsonl", sample(10, joules={"GPU 0": 550, "CPU": 11}))
    found = account_of(run)
    assert [(part.name, part.missing_seconds) for part in found.energy.parts] == [("CPU", 4.5), ("GPU 0", 4.5)]
    assert found.energy.estimated
    told = gaps(found)
    assert told["energy of 4.5 s at the start"] == "meters are read from where the run knows its output directory"
    assert told["measured energy of CPU"] == "it is estimated: by table"
    assert not any("GPU" in what for what in told)


@pytest.mark.parametrize(
    ("readings", "about", "joules", "covered"),
    [
        ([(0, 261_900), (1, 50), (5, 250), (10, 450)], {"source": "rapl", "range_joules": 262_000.0}, 550.0, 10.0),
        ([(0, 900), (1, 1000), (5, 10), (10, 210)], {}, 300.0, 6.0),  # reset between 1 and 5 s
        ([(0, 0), (5, 50), (4, 60), (10, 100)], {}, 100.0, 10.0),  # a time that runs backwards is left out
    ],
    ids=["wraps", "is reset", "runs backwards"],
)
def test_a_counter(run, readings, about, joules, covered):
    metered(run, readings, **about)
    found = account_of(run)
    (part,) = found.energy.parts
    assert (part.joules, part.covered_seconds, part.missing_seconds) == (joules, covered, 10.0 - covered)
    if covered < 10:
        assert gaps(found)["energy of GPU 0 for 4.0 s"] == "its readings end early, or leave a gap"


def test_a_fault_is_the_reason(run):
    metered(run, [(0, 0), (1, 100)])
    faults = {"GPU 0": "GPU is lost", "GPU 1": "no driver", "memory of the host": "OSError: no"}
    lines(run / "system.jsonl", {**sample(2), "faults": faults}, sample(10))
    found = account_of(run)
    told = gaps(found)
    assert told["energy of GPU 0 for 9.0 s"] == "GPU is lost"
    assert (told["energy of GPU 1"], told["memory of the host"]) == ("no driver", "OSError: no")
    assert found.energy.joules == 100.0


def test_a_resumed_run_counts_no_joule_twice_and_none_in_between(run):
    """The counter ran on by 10 kJ while no process lived, and the second reads on from there."""
    elsewhere = facts(1, grid={"grams_per_kwh": 100.0, "source": "Elsewhere"})
    lines(run / "spans.jsonl", process(1), elsewhere, span(0.0, 1, imports=1.0), train(1, 1.0, 1), end(5.0, 1))
    lines(run / "steps.jsonl", step(3, 0.0, 4.0, segment=1, forward=4.0))
    metered(run, [(0, 0), (10, 1000)])
    metered(run, [(1, 11_000), (5, 11_400)], number=1)
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
    metered(run, [(0, 0), (10, 10)])
    assert gaps(account_of(run))["energy of 5.0 s"] == "nothing was sampled in one start of the run"


def test_all_ranks_add_up_and_a_meter_that_two_read_counts_once(run):
    for rank, file in enumerate(("system.jsonl", "system.rank1.jsonl")):
        metered(run, [(0, 0), (10, 1000)], f"GPU {rank}", file)
        metered(run, [(0, 0), (10 - 2 * rank, 50 - 10 * rank)], "CPU package 0", file, source="rapl")
    found = account_of(run).energy
    assert [(part.name, part.joules) for part in found.parts] == [
        ("CPU package 0", 50.0),
        ("GPU 0", 1000.0),
        ("GPU 1", 1000.0),
    ]
    assert found.joules == 2050.0


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


def test_a_line_that_is_no_sample_is_skipped_and_counted(run):
    metered(run, [(0, 0)])
    lines(run / "system.jsonl", {"schema_version": 1, "at_seconds": 1})
    lines(run / "system.jsonl", *(sample(2, joules=wrong) for wrong in ({"GPU 0": "many"}, {"GPU 0": -1}, [1])))
    lines(run / "system.jsonl", sample(10, joules={"GPU 0": 7}))
    found = account_of(run)
    assert found.energy.joules == 7.0
    assert gaps(found)["a part of system.jsonl"] == "3 unreadable lines in system.jsonl were skipped"


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
    monkeypatch.setattr(system, "host_meters", list)
    monkeypatch.setattr(system, "cuda_devices", lambda _current: [nvml.device()])
    clock = [0.0]
    sampler = system.SystemSampler(0, lambda: clock[0])
    lines(tmp_path / "system.jsonl", sampler.sample())
    for _ in range(rounds):
        clock[0] += 1
        lines(tmp_path / "system.jsonl", sampler.sample())
    lines(tmp_path / "spans.jsonl", process(), facts(grid=GRID), end(clock[0]))
    found = account_of(tmp_path).energy
    assert (found.joules, found.parts[0].covered_seconds) == (joules, covered)
    assert found.co2e_grams == pytest.approx(joules / 3_600_000 * 400, rel=1e-12)
    assert sampler.joules == joules


@pytest.fixture
def priced(tmp_path):
    """An hour: 12 minutes of imports, 36 of a step with 18 of evaluation and 9 of checkpointing, 12 of nobody's."""
    lines(tmp_path / "spans.jsonl", process(), span(0.0, imports=720.0), train(0, 720.0), end(3600.0))
    lines(
        tmp_path / "steps.jsonl",
        step(1, 0.0, 2160.0, forward=540.0, evaluation=1080.0, checkpointing=540.0, tokens=(3_000_000, 2_000_000, 1)),
    )
    return tmp_path


def test_money_by_hand(priced):
    lines(priced / "spans.jsonl", facts(price=price(2.5)))
    assert account_of(priced).money == MoneyAccount(
        cost_usd=2.5,
        usd_per_million_non_padding_tokens=1.25,
        phase_usd={"imports": 0.5, "forward": 0.375, "evaluation": 0.75, "checkpointing": 0.375, "unattributed": 0.5},
        price_usd_per_hour=2.5,
        price_source="by hand",
        estimated=False,
    )


def test_an_estimate_says_so_and_a_free_machine_costs_nothing(priced):
    lines(priced / "spans.jsonl", facts(price=price(2.5, "median", estimated=True)))
    assert account_of(priced).money.estimated
    lines(priced / "spans.jsonl", facts(price=price(0.0)))
    found = account_of(priced).money
    assert (found.cost_usd, found.usd_per_million_non_padding_tokens, found.estimated) == (0.0, 0.0, False)
    assert set(found.phase_usd.values()) == {0.0}


def test_each_process_is_paid_at_its_own_price(priced):
    """3600 s at 2.50, 1800 s at 4: 2.50 + 2.00; the phases sum up to it."""
    second = [process(1), facts(1, price=price(4.0, "another")), span(0.0, 1, imports=900.0), end(1800.0, 1)]
    lines(priced / "spans.jsonl", facts(price=price(2.5)), *second)
    found = account_of(priced).money
    assert found.cost_usd == 4.5
    assert found.phase_usd["imports"] == 1.5
    assert round(math.fsum(found.phase_usd.values()), 2) == 4.5
    assert (found.price_usd_per_hour, found.price_source) == (4.0, "another")
    assert (found.lowest_price_usd_per_hour, found.highest_price_usd_per_hour) == (2.5, 4.0)


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_process_that_died_before_it_stated_a_price_is_paid_like_its_neighbour(tmp_path, silent):
    """Half an hour each at 1, 2 and 4; the silent one at the price of the next, the last at that of the one before."""
    stated = [1.0, 2.0, 4.0]
    for number, usd in enumerate(stated):
        lines(tmp_path / "spans.jsonl", process(number), end(1800.0, number))
        if number != silent:
            lines(tmp_path / "spans.jsonl", facts(number, price=price(usd)))
    assert account_of(tmp_path).money.cost_usd == [4.0, 4.5, 2.5][silent]


def test_no_price_is_no_cost_and_says_why(priced):
    found = account_of(priced)
    assert (found.money, gaps(found)["cost"]) == (MoneyAccount(), "the records state no price")
    lines(priced / "spans.jsonl", facts(price=price(None, None, reason="nobody knows; set it")))
    found = account_of(priced)
    assert (found.money, gaps(found)["cost"]) == (MoneyAccount(), "nobody knows; set it")


@pytest.fixture
def restarted(tmp_path):
    """Steps 1 to 5 of 10 s each, from second 100 on; the process is killed in step 6."""
    lines(tmp_path / "spans.jsonl", process(), facts(price=price(3600.0)), span(0.0, imports=100.0), train(0, 100.0))
    lines(tmp_path / "steps.jsonl", *(step(one, 10.0 * (one - 1), 10.0, forward=10.0) for one in range(1, 6)))
    return tmp_path


def seconds_of_ten(numbers, start, **more):
    """These steps of 10 s each, from ``start`` on."""
    return [step(one, start + 10.0 * place, 10.0, forward=10.0, **more) for place, one in enumerate(numbers)]


def test_steps_beyond_the_checkpoint_are_done_again(restarted):
    """From checkpoint-3: steps 4 and 5, 20 s, and 80 s until the first step begins: 100 s at a dollar a second."""
    lines(restarted / "steps.jsonl", *seconds_of_ten(range(4, 9), 5.0, segment=1))
    second = [process(1), facts(1, price=price(3600.0)), span(0.0, 1, imports=75.0), train(1, 75.0, 1), end(130.0, 1)]
    lines(restarted / "spans.jsonl", *second)
    found = account_of(restarted)
    assert found.restarts == [RestartAccount(1, 5, 3, 2, 20.0, 80.0, 100.0)]
    assert [one.steps for one in found.time.processes] == [5, 5]
    assert found.time.wall_seconds == 150.0 + 130.0  # each second once


def test_a_start_that_never_came_to_train_and_one_from_the_beginning(restarted):
    """The second lives 30 s; the third begins anew after 40: 50 s of steps are lost."""
    lines(restarted / "spans.jsonl", process(1), facts(1, price=price(3600.0)), end(30.0, 1, ended="error", error="x"))
    lines(restarted / "steps.jsonl", *seconds_of_ten(range(1, 8), 0.0, segment=1))
    lines(restarted / "spans.jsonl", process(2), train(1, 40.0, 2), end(110.0, 2))
    assert account_of(restarted).restarts == [
        RestartAccount(1, 5, None, 0, 0.0, 30.0, 30.0),
        RestartAccount(2, 5, 0, 5, 50.0, 40.0, None),
    ]


def test_what_a_killed_rank_did_not_write_is_missed(restarted):
    """Of five steps before the restart rank 1 left two; of those after it, all."""
    lines(restarted / "steps.jsonl", *seconds_of_ten((6, 7), 0.0, segment=1))
    lines(restarted / "spans.jsonl", process(1), train(1, 50.0, 1), end(70.0, 1))
    theirs = seconds_of_ten((1, 2), 0.0, rank=1) + seconds_of_ten((6, 7), 0.0, segment=1, rank=1)
    lines(restarted / "steps.rank1.jsonl", *theirs)
    (gap,) = [one for one in account_of(restarted).not_measured if "of rank 1" in one.what]
    assert gap.what == "3 steps of rank 1"
    assert gap.why.startswith("its records end before those of rank 0")
