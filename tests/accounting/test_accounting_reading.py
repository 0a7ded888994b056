"""Records read while they grow."""

import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_records import alive, end, facts, full_step, lines, price, process, reading, span, step, train

from hf_efficient.accounting.account import account_run
from hf_efficient.accounting.run_records import RunReader
from hf_efficient.errors import OutputError
from hf_efficient.run_dir.jsonl import JsonlFile


def now(read, *arguments):
    try:
        return read(*arguments)
    except OutputError as error:
        return str(error)


def both(directory, reader=None):
    run = account_run(directory, reader)
    return run.account, run.series


def same(follower, directory):
    found = now(both, directory, follower)
    assert found == now(both, directory)
    return found


def text(*records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def sample(at):
    meters = {"GPU 0": {"id": "a", "machine": "b", "source": "nvml", "unit": "joules", "note": ""}}
    read = {"joules": {"GPU 0": 1000.0 + at}, "watts": {"GPU 0": 2.125}, "faults": {"GPU 1": "is lost"}}
    return reading(0, at / 2, rss_bytes=100 + at, **read, **({"meters": meters} if at == 0 else {}))


WRITTEN = {
    "spans.jsonl": text(
        process(), span(0.0, imports=2.0),
        facts(price=price(2.0)), train(0, 2.0),
        {"kind": "evaluation", "at_seconds": 3.0, "step": 1, "metrics": {"loss": 2.5}, "seconds": 0.5, "process": 0},
        span(5.0, evaluation=1.0), alive(8.0, 6.0, phase="forward", forward=0.5), process(1, began=20.0),
        span(20.0, 1, imports=1.0), train(1, 21.0, 1), end(40.0, 1),
    ),
    "steps.jsonl": text(
        full_step(1, 0.0, 1.0, loss=2.0),
        full_step(2, 1.0, 1.5),
        full_step(3, 2.5, 0.75, loss=float("nan")),
        *[step(number, number - 3.0, 0.5, segment=1, forward=0.25) for number in range(3, 12)],
    ),
    "steps.rank1.jsonl": text(*[step(number, number - 1.0, 1.0, rank=1, forward=0.5) for number in range(1, 8)]),
    "system.jsonl": text(*[sample(at) for at in range(8)], reading(1, 25.0, rss_bytes=7)),
    "system.rank1.jsonl": text(sample(0), reading(0, 1.0, joules={"GPU 0": -5.0}), sample(7)),
}  # fmt: skip
APPENDING = st.tuples(st.sampled_from(sorted(WRITTEN)), st.integers(1, 900))
STARTING_ANEW = st.just(("anew", 0))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(happenings=st.lists(st.one_of(*[APPENDING] * 12, STARTING_ANEW), min_size=1, max_size=40))
def test_the_account_at_every_moment(happenings, tmp_path_factory):
    """Files grow by any number of bytes, in any order, and are now and then removed and begun again."""
    directory = tmp_path_factory.mktemp("run")
    follower = RunReader(directory)
    begun = dict.fromkeys(WRITTEN, 0)
    for name, length in happenings:
        if name == "anew":
            shutil.rmtree(directory)
            directory.mkdir()
            begun = dict.fromkeys(WRITTEN, 0)
        else:
            with (directory / name).open("ab") as file:
                file.write(WRITTEN[name][begun[name] : begun[name] + length])
            begun[name] += length
        same(follower, directory)
    for name, whole in WRITTEN.items():
        (directory / name).write_bytes(whole)
    account, series = same(follower, directory)
    assert (account.time.wall_seconds, account.steps.count, len(series.system)) == (8.0 + 20.0, 12, 9)
    assert account.energy.joules == 7.0


def test_a_heartbeat_that_is_written_over(tmp_path):
    follower, file = RunReader(tmp_path), JsonlFile(tmp_path / "spans.jsonl")
    file.append(text(process()), text(alive(1.5, 1.0, phase="forward", forward=0.25)))
    assert same(follower, tmp_path)[0].time.processes[0].open_phase == "forward"
    file.append(text(span(1.0, logging=1.0)), text(alive(2.5, 2.0, phase="a_phase_with_a_long_name", forward=0.5)))
    account, _ = same(follower, tmp_path)
    assert (account.time.processes[0].open_phase, account.ended) == ("a_phase_with_a_long_name", "died")
    file.append(text(end(3.0)))
    account, _ = same(follower, tmp_path)
    assert (account.ended, account.time.phase_seconds) == ("done", {"logging": 1.0})


def test_a_fault_is_told_at_every_look_until_it_is_corrected(tmp_path):
    lines(tmp_path / "spans.jsonl", process())
    lines(tmp_path / "steps.jsonl", step(1, 0.0, 1.0), {"schema_version": 7})
    follower = RunReader(tmp_path)
    for _ in range(2):
        assert "steps.jsonl:2: schema_version 7 is newer" in same(follower, tmp_path)
    (tmp_path / "steps.jsonl").write_bytes(text(step(1, 0.0, 1.0), step(2, 1.0, 1.0)))
    account, _ = same(follower, tmp_path)
    assert account.steps.count == 2


def test_a_folder_that_is_not_there_yet(tmp_path):
    follower = RunReader(tmp_path / "later")
    with pytest.raises(OutputError, match="holds no records of a run"):
        account_run(tmp_path / "later", follower)
    lines(tmp_path / "later" / "spans.jsonl", process())
    lines(tmp_path / "later" / "steps.jsonl", step(1, 0.0, 1.0))
    assert account_run(tmp_path / "later", follower).account.steps.count == 1


def test_another_run_with_files_as_long(tmp_path):
    lines(tmp_path / "spans.jsonl", process(), span(0.0, imports=2.0))
    lines(tmp_path / "steps.jsonl", step(1, 0.0, 1.0))
    lines(tmp_path / "system.jsonl", sample(0), sample(4))
    follower = RunReader(tmp_path)
    same(follower, tmp_path)
    (tmp_path / "spans.jsonl").write_bytes(text(process(), span(0.0, imports=3.0)))
    (tmp_path / "steps.jsonl").write_bytes(text(step(1, 0.0, 2.0), step(2, 2.0, 2.0)))
    (tmp_path / "system.jsonl").write_bytes(text(sample(0), sample(6)))
    account, _ = same(follower, tmp_path)
    assert account.time.phase_seconds == {"imports": 3.0}
    assert (account.steps.count, account.energy.joules) == (2, 6.0)
