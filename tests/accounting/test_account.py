"""The account of hand-made records, worked out by hand; its file."""

import dataclasses
import json
import os

import jsonschema
import pytest
from made_records import alive, end, lines, process, span, step, train, train_end

import hf_efficient
from hf_efficient.accounting.account import (
    SCHEMA,
    account_of,
    account_run,
    load_run,
    read_account,
    run_schema,
    write_account,
)
from hf_efficient.errors import OutputError
from hf_efficient.records.account import NotMeasured, ProcessAccount, StepTimes, TimeAccount, TrainingAccount
from hf_efficient.records.amounts import MemoryAccount
from hf_efficient.run_dir.json_file import strict_json
from hf_efficient.run_dir.paths import records_folder


@pytest.fixture
def run(tmp_path):
    """Ten seconds: two of imports, one of set-up, four steps from 3.5 to 9, an end at 10."""
    spans = [span(0.0, imports=2.0), span(2.5, trainer_setup=1.0)]
    lines(tmp_path / "spans.jsonl", process(), *spans, train(0, 2.5), end(10.0))
    lines(
        tmp_path / "steps.jsonl",
        step(1, 1.0, 2.0, forward=1.0, backward=0.5),
        step(2, 3.0, 1.0, forward=0.25, evaluation=0.5),
        step(3, 4.0, 0.5, forward=0.5),
        step(4, 4.5, 1.0, forward=0.25, checkpointing=0.25, evaluation=0.25),
    )
    return tmp_path


def test_an_account_by_hand(run):
    found = account_of(run)
    phases = {"imports": 2.0, "trainer_setup": 1.0, "forward": 2.0, "backward": 0.5}
    phases |= {"evaluation": 0.75, "checkpointing": 0.25}
    one = ProcessAccount(
        process=0, began_at_seconds=0.0, wall_seconds=10.0, phase_seconds=phases, unattributed_seconds=3.5,
        time_to_first_step_seconds=5.5,  # train() at 2.5, the first record from 1.0 to 3.0 after it
        steps=4, first_step=1, last_step=4, ended="done", error=None, open_phase=None, last_sign_at_seconds=10.0,
        process_start_from="kernel",
        trainings=[TrainingAccount(0, 2.5, 5.5, 4, 1, 4, 3.0, None, None)],  # to the end of its last step
    )  # fmt: skip
    assert found.time == TimeAccount(10.0, phases, 3.5, 3.5, 5.5, [one])
    assert list(found.time.phase_seconds) == list(phases)
    # Without evaluation and checkpointing: 2, 0.5 (warm-up, half of four steps), 0.5, 0.5.
    rule = "the first 3 steps of each train() call, or half its steps where it did fewer than 6"
    assert found.steps == StepTimes(4, 2, rule, 0.5, 0.5, 0.5, 0.5, 2.0)
    assert dataclasses.astuple(found.tokens) == (40, 32, 16, pytest.approx(0.2), 32 / 3.5, 40 / 3.5)
    assert found.memory == MemoryAccount(1000, None, None, None)
    assert [gap.what for gap in found.not_measured] == [
        "the launcher", "the interpreter's own end", "sequences and their lengths", "FLOPs, MFU and HFU", "energy",
        "cost",
    ]  # fmt: skip


def test_a_resumed_run_adds_up_and_what_lies_between_is_nobodys(run):
    ended = end(104.0, 1, ended="error", error="ValueError: no", device_allocation_retries=3, peak_rss_bytes=4000)
    lines(run / "spans.jsonl", process(1, began=100.0), span(100.0, 1, imports=1.0), train(1, 101.0, 1), ended)
    lines(run / "steps.jsonl", step(3, 0.0, 2.0, segment=1, forward=1.5, tokens=(10, None, 4)))
    found = account_of(run)
    seconds = [(one.wall_seconds, one.unattributed_seconds, one.steps) for one in found.time.processes]
    assert seconds == [(10.0, 3.5, 4), (4.0, 1.5, 1)]
    assert (found.time.wall_seconds, found.time.unattributed_seconds) == (14.0, 5.0)
    assert (found.time.phase_seconds["imports"], found.time.phase_seconds["forward"]) == (3.0, 3.5)
    assert found.time.processes[1].time_to_first_step_seconds == 3.0
    assert (found.ended, found.error) == ("error", "ValueError: no")
    assert (found.steps.count, found.steps.warm_up_count) == (5, 2)
    assert (found.tokens.processed, found.tokens.non_padding, found.tokens.target) == (50, None, 20)
    assert found.tokens.non_padding_tokens_per_second is None
    assert (found.memory.peak_rss_bytes, found.memory.device_allocation_retries) == (4000, 3)
    assert "tokens of some kinds" in [gap.what for gap in found.not_measured]


def test_each_call_of_train_is_told_and_no_second_counts_twice(tmp_path):
    """Twenty seconds: calls from 2 to 6, from 9 to 12 (which raises before a step), and from 13 to 19."""
    lines(
        tmp_path / "spans.jsonl", process(way="trainer"), span(0.0, before_trainer=2.0), train(0, 2.0),
        span(2.0, trainer_setup=0.5), span(5.5, shutdown=0.5), train_end(0, 6.0), end(6.0),
        span(6.0, outside_trainer=3.0), train(1, 9.0), span(9.0, trainer_setup=3.0),
        train_end(1, 12.0, error="ValueError: no"), end(12.0, ended="error", error="ValueError: no"),
        span(12.0, outside_trainer=1.0), train(2, 13.0), train_end(2, 19.0), end(20.0),
    )  # fmt: skip
    again = step(1, 1.0, 4.0, segment=2, forward=4.0)
    lines(tmp_path / "steps.jsonl", step(1, 0.5, 2.0, forward=2.0), step(2, 2.5, 1.0, forward=0.5), again)
    found = account_of(tmp_path)
    (one,) = found.time.processes
    assert one.trainings == [
        TrainingAccount(0, 2.0, 4.0, 2, 1, 2, 2.5, "done", None),
        TrainingAccount(1, 9.0, 3.0, 0, None, None, None, "error", "ValueError: no"),
        TrainingAccount(2, 13.0, 6.0, 1, 1, 1, 5.0, "done", None),
    ]
    assert (one.wall_seconds, one.steps, one.ended) == (20.0, 3, "done")
    outside = {"before_trainer": 2.0, "trainer_setup": 3.5, "outside_trainer": 4.0, "shutdown": 0.5}
    assert one.phase_seconds == {**outside, "forward": 6.5}
    assert one.unattributed_seconds == 20.0 - 16.5


def test_a_call_that_was_under_way_when_its_process_died(tmp_path):
    lines(tmp_path / "spans.jsonl", process(), train(0, 2.0), train_end(0, 4.0), train(1, 5.0))
    lines(tmp_path / "steps.jsonl", step(1, 0.0, 1.0, segment=1, forward=1.0))
    lines(tmp_path / "spans.jsonl", alive(9.0, 6.0, phase="evaluation", evaluation=3.0))
    (one,) = account_of(tmp_path).time.processes
    assert one.trainings == [
        TrainingAccount(0, 2.0, 2.0, 0, None, None, None, "done", None),
        TrainingAccount(1, 5.0, 4.0, 1, 1, 1, 1.0, "died", None),
    ]


def test_the_environment_is_that_of_the_last_process_that_told_it(run):
    assert account_of(run).environment is None
    for number, version in ((0, "3.10.1"), (1, "3.11.7")):
        facts = {"environment": {"python": version, "missing": []}}
        lines(run / "spans.jsonl", {"kind": "facts", "process": number, "facts": facts})
    lines(run / "spans.jsonl", process(2, began=5.0), end(6.0, 2))
    assert account_of(run).environment == {"python": "3.11.7"}


def test_a_process_that_died_counts_to_its_last_sign(tmp_path):
    lines(tmp_path / "spans.jsonl", process(), span(0.0, imports=2.0), train(0, 2.0))
    lines(tmp_path / "steps.jsonl", step(1, 0.0, 1.0, forward=1.0))
    lines(tmp_path / "spans.jsonl", alive(7.0, 3.0, phase="evaluation", forward=0.5, evaluation=3.0))
    found = account_of(tmp_path)
    (one,) = found.time.processes
    assert (one.ended, one.open_phase, one.last_sign_at_seconds, one.wall_seconds) == ("died", "evaluation", 7.0, 7.0)
    assert one.phase_seconds == {"imports": 2.0, "forward": 1.5, "evaluation": 3.0}
    assert one.unattributed_seconds == 0.5
    assert "the process left no end: it was killed, or it is still running" in [gap.why for gap in found.not_measured]


def test_a_heartbeat_of_a_span_that_was_recorded_is_not_counted_again(tmp_path):
    lines(tmp_path / "spans.jsonl", process(), train(0, 2.0), alive(4.0, 2.0, phase="forward", forward=2.0))
    lines(tmp_path / "steps.jsonl", step(1, 0.0, 3.0, forward=2.5))
    (one,) = account_of(tmp_path).time.processes
    assert one.phase_seconds == {"forward": 2.5}
    assert (one.wall_seconds, one.unattributed_seconds) == (5.0, 2.5)  # the step ended at 5


def test_steps_that_are_written_before_the_call_that_does_them(tmp_path):
    """Two threads write the two files; until the call is known, it is taken to be after all that is."""
    lines(tmp_path / "spans.jsonl", process(), span(0.0, imports=2.0))
    lines(tmp_path / "steps.jsonl", step(1, 0.5, 1.0, forward=1.0))
    (one,) = account_of(tmp_path).time.processes
    assert (one.wall_seconds, one.unattributed_seconds) == (3.5, 0.5)
    assert (one.steps, one.time_to_first_step_seconds) == (1, None)
    assert account_run(tmp_path).series.steps.started_at_seconds == [2.5]


def test_other_ranks_give_tokens_and_the_slowest_gives_the_denominator(run):
    slow = [step(number, 0.0, 2.0, rank=1) for number in (1, 2, 3)]
    lines(run / "steps.rank1.jsonl", *slow)
    found = account_of(run)
    assert found.tokens.non_padding == 32 + 24
    assert found.tokens.non_padding_tokens_per_second == 56 / 6.0
    assert [(rank.rank, rank.steps, rank.last_step, rank.training_seconds) for rank in found.ranks] == [
        (0, 4, 4, 3.5),
        (1, 3, 3, 6.0),
    ]
    assert found.time.training_seconds == 3.5
    assert "1 step of rank 1" in [gap.what for gap in found.not_measured]
    told = {gap.what: gap.why for gap in found.not_measured}
    assert told["communication between the ranks, by itself"] == "it happens inside other phases, `backward` above all"


def test_a_process_whose_first_line_is_lost(run):
    before = account_of(run)
    path = run / "spans.jsonl"
    path.write_text("\0" * 64 + "\n" + path.read_text().split("\n", 1)[1])
    found = account_of(run)
    assert (found.time.phase_seconds, found.steps) == (before.time.phase_seconds, before.steps)
    assert (found.recorded_by, found.time.processes[0].process_start_from) == ("unknown", "records")
    assert found.not_measured[0].what == "where the run began in its process"


def test_kinds_of_a_later_version_are_left_out(run):
    before = account_of(run)
    lines(run / "spans.jsonl", {"kind": "energy", "process": 0, "joules": 3})
    assert account_of(run) == before


BROKEN = {
    "zeros of a power cut": ("steps", "\0" * 4096),
    "not an object": ("system", "[3]"),
    "nested too deep": ("steps", "[" * 100_000),
    "no process": ("spans", '{"kind": "train", "segment": 3, "at_seconds": 1.0}'),
    "not finite": ("spans", json.dumps(span(3.0, forward=float("nan")))),
    "facts": ("spans", '{"kind": "facts", "process": 0, "facts": {"price": 3}}'),
    "an end": ("spans", json.dumps(end(500.0) | {"at_seconds": None})),
    "a step without tokens": ("steps", json.dumps(step(9, 0.0, 1.0) | {"tokens": None})),
    "a version that is none": ("steps.rank1", json.dumps(step(9, 0.0, 1.0) | {"schema_version": "one"})),
}


@pytest.mark.parametrize(("name", "broken"), BROKEN.values(), ids=BROKEN)
def test_a_broken_line_in_the_middle_is_skipped_and_counted(run, name, broken, caplog):
    path = run / f"{name}.jsonl"
    (run / "steps.rank1.jsonl").write_text((run / "steps.jsonl").read_text())
    lines(run / "system.jsonl", {"process": 0, "at_seconds": 0.0}, {"process": 0, "at_seconds": 10.0})
    before = account_of(run)
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text(first + broken + "\n" + "".join(rest) + '{"half')
    gap = NotMeasured(f"a part of {path.name}", f"1 unreadable line in {path.name} was skipped")
    assert account_of(run) == dataclasses.replace(before, not_measured=[*before.not_measured, gap])
    (entry,) = caplog.records
    assert entry.getMessage().startswith(f"{path}:2 is not a")


def test_the_shipped_schema_is_the_one_of_the_records():
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == run_schema()


def test_written_whole_read_back_and_valid(run):
    (run / "run.json").write_text("{")
    write_account(run, account_of(run))
    assert sorted(path.name for path in run.iterdir()) == ["run.json", "spans.jsonl", "steps.jsonl"]
    text = (run / "run.json").read_text(encoding="utf-8")
    assert text == strict_json(account_of(run))
    assert read_account(run / "run.json") == account_of(run)
    jsonschema.validate(json.loads(text), run_schema())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "run.json: cannot be read: Input data was truncated"),
        ('{"schema_version": 4}', "run.json: schema_version 4 is newer than 3, which is read here: upgrade"),
        ('{"schema_version": 2}', "run.json: is not the account of a run: Object missing required"),
    ],
)
def test_what_is_no_account(tmp_path, text, told):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(OutputError) as caught:
        read_account(tmp_path / "run.json")
    assert str(caught.value).startswith(f"{tmp_path}/{told}")


def begun(path, ended=3.5):
    path.unlink(missing_ok=True)
    lines(path, process(began=1.0, way="trainer"), end(ended))


@pytest.fixture
def run_dir(tmp_path):
    begun(tmp_path / "run/efficiency/spans.jsonl")
    return tmp_path / "run"


def test_by_output_directory_or_records_before_run_json(run_dir):
    assert load_run(run_dir) == load_run(str(run_dir / "efficiency"))
    assert load_run(run_dir).time.wall_seconds == 2.5
    assert hf_efficient.load_run is load_run
    write_account(run_dir / "efficiency", account_of(run_dir / "efficiency"))
    spans = run_dir / "efficiency/spans.jsonl"
    begun(spans, 4.5)
    assert load_run(run_dir).time.wall_seconds == 3.5
    spans.unlink()
    assert load_run(run_dir).time.wall_seconds == 2.5


def test_no_run(tmp_path):
    with pytest.raises(OutputError, match="no such folder; name the OUTPUT_DIR of a run"):
        records_folder(tmp_path / "none")
    with pytest.raises(OutputError, match="holds no records of a run"):
        load_run(tmp_path)


def test_a_start_is_shown_where_there_is_nothing_else(run_dir):
    own, start = run_dir / "efficiency", run_dir / "efficiency/starting"
    start.mkdir()
    spans = own / "spans.jsonl"
    spans.rename(start / "spans.jsonl")
    os.utime(start / "spans.jsonl", (1000, 1000))
    assert records_folder(run_dir) == records_folder(own) == start
    assert load_run(run_dir).time.wall_seconds == 2.5
    for written, latest in ((999, start), (1001, own)):
        begun(spans)
        os.utime(spans, (written, written))
        assert (records_folder(run_dir), records_folder(run_dir, latest=True)) == (own, latest)
    spans.unlink()
    (own / "run.json").touch()  # of a run whose records are gone
    assert records_folder(run_dir) == own
