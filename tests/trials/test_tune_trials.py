"""The journal, knobs, goals, and the files of a tuning."""

import json
from types import SimpleNamespace

import pytest
import torch
import yaml

from hf_efficient.errors import OutputError, SetupError
from hf_efficient.launch.command import Layout
from hf_efficient.recipe.load import load_recipe
from hf_efficient.records.tuning import Gain, TriedChange, Tuning
from hf_efficient.trials import tune as module
from hf_efficient.trials.goal import Goal, Wanted, goal_of
from hf_efficient.trials.process import RunFailed
from hf_efficient.trials.trial_run import TrialClock
from hf_efficient.trials.tune import Trials, tuned_recipe

WANTED = Wanted(5, 1.0, 60.0)
RUN = {
    "step_seconds": [1.0], "step_tokens": [10], "step_positions": [20], "row_tokens": 10.0, "device": "cpu",
    "fast_bfloat16": True, "weights": "float32",
}  # fmt: skip


@pytest.fixture
def counted(monkeypatch):
    """Trials that measure at once; how often each did."""
    asked = []

    def run_to_end(command, folder, threads):
        changes = json.loads((folder / "job.json").read_bytes())["options"]["changes"]
        asked.append(changes)
        if "train.seed" in changes:
            raise RunFailed("out of memory")
        if "train.optim" in changes and len(asked) == 1:
            raise RunFailed("1 s passed", "no_time")
        return {**RUN, "step_seconds": [float(len(asked))]}

    monkeypatch.setattr(module, "run_to_end", run_to_end)
    return asked


class OneBatch:
    """A trainer whose steps have one batch each, of so many tokens."""

    args = SimpleNamespace(device=torch.device("cpu"), world_size=1)

    def __init__(self, *tokens):
        self._tokens = iter(tokens)

    def get_batch_samples(self):
        return [{"input_ids": torch.ones(1, next(self._tokens), dtype=torch.long)}], None

    def add_callback(self, clock):
        self.clock = clock


@pytest.mark.parametrize(
    ("tokens", "losses", "expected"),
    [
        ((30, 40, 40), (2.0, 1.0), 1.25),  # after 70 and 110 tokens, and 100 are wanted
        ((50, 50), (2.0, 1.0), 1.0),
        ((120,), (3.0,), 3.0),
    ],
)
def test_the_loss_is_of_exactly_as_many_tokens(tokens, losses, expected):
    trainer, held_out = OneBatch(*tokens), iter(losses)
    clock = TrialClock(trainer, Wanted(1, 0.0, 60.0, tokens=100), lambda: next(held_out))
    for step in range(1, len(tokens) + 1):
        trainer.get_batch_samples()
        clock.on_step_end(None, SimpleNamespace(global_step=step), SimpleNamespace())
    assert (clock.figures()["loss"], clock.figures()["loss_tokens"]) == (expected, 100)
    assert next(held_out, None) is None


def test_several_ranks_count_the_tokens_of_all_and_the_seconds_of_the_slowest():
    trainer = OneBatch(30, 50)
    other = torch.tensor([[20, 40, 1, 500.0, 70.0]])  # tokens, positions, rows, seconds of the step and since the start
    trainer.args = SimpleNamespace(device=torch.device("cpu"), world_size=2)
    trainer.accelerator = SimpleNamespace(gather=lambda own: torch.cat([own, other]))
    control = SimpleNamespace()
    clock = TrialClock(trainer, Wanted(5, 0.0, most_seconds=60.0, warm_up=1, tokens=80), lambda: 2.0)
    for step in (1, 2):
        trainer.get_batch_samples()
        clock.on_step_end(None, SimpleNamespace(global_step=step), control)
    found = clock.figures()
    assert (found["step_seconds"], found["step_tokens"], found["step_positions"]) == ([500.0], [70], [90])
    assert found["loss_tokens"] == 80
    assert control.should_training_stop  # the other rank is late


def trials(folder, **about):
    return Trials("r.yaml", [], folder, about, Layout(nodes=1, processes=1, cores=1))


def test_a_killed_tuning_takes_its_runs_from_the_journal_in_their_order(tmp_path, counted):
    first = trials(tmp_path, recipe="a")
    before = [first.run({}, WANTED), first.run({"train.bf16": True}, WANTED), first.run({}, WANTED)]
    with pytest.raises(RunFailed, match="out of memory"):
        first.run({"train.seed": 1}, WANTED)
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"changes": {}, "ru')  # killed while it wrote
    again = trials(tmp_path, recipe="a")
    assert [again.run({}, WANTED), again.run({"train.bf16": True}, WANTED), again.run({}, WANTED)] == before
    with pytest.raises(RunFailed, match="out of memory"):
        again.run({"train.seed": 1}, WANTED)
    assert len(counted) == 4
    assert again.run({}, WANTED).step_seconds == [5.0]


def test_what_had_too_little_time_is_run_again_by_a_later_call(tmp_path, counted):
    slow = {"train.optim": "adamw_torch"}
    with pytest.raises(RunFailed, match="1 s passed"):
        trials(tmp_path, recipe="a").run(slow, WANTED)
    assert trials(tmp_path, recipe="a").run(slow, WANTED).step_seconds == [2.0]


def test_another_recipe_in_the_folder_is_refused(tmp_path, counted):
    trials(tmp_path, recipe="a")
    with pytest.raises(OutputError, match="holds trials of another recipe"):
        trials(tmp_path, recipe="b")


@pytest.mark.parametrize(
    ("goal", "told"),
    [
        ({"without": frozenset({"pack"})}, "--without: pack is no knob. They are cadence, padding, packing"),
        ({"objective": "speed"}, "--objective: speed is unknown. Write tokens_per_second"),
        ({"minutes": 0.0}, "--minutes: 0 is not above zero"),
        ({"most_p95_seconds": -1.0}, "--p95-step-seconds: -1 is not above zero"),
        ({"tolerance": 5.0}, "--eval-tolerance: 500 is not from 0 to 100. Write 2 for 2%."),
    ],
)
def test_goals_that_are_none(goal, told):
    with pytest.raises(SetupError, match=told):
        Goal(**goal)


def test_presets():
    assert goal_of("mixed").keeps_p95
    assert goal_of("interactive").objective == "p95_step_seconds"
    assert goal_of("bulk") == goal_of("tokens_per_second")


def test_the_tuned_recipe_extends_the_original_and_each_line_says_what_it_gave(tmp_path):
    file = tmp_path / "slow.yaml"
    values = {"model": {"id": "m"}, "data": {"train": "x.jsonl"}, "train": {"bf16": False, "eval_steps": 5}}
    file.write_text(yaml.safe_dump(values))
    tried = [
        TriedChange("precision", "", {"train.bf16": True}, "accepted", gain=Gain(1.5, 1.4, 1.6, "measured: 2 pairs")),
        TriedChange("cadence", "", {"train.eval_steps": 40}, "accepted", gain=Gain(1.2, None, None, "computed: x")),
        TriedChange("packing", "", {"train.packing": True}, "no_gain"),
    ]
    changes = {"train.bf16": True, "train.eval_steps": 40}
    found = Tuning(
        2, "0", "slow.yaml", "tokens_per_second", "", {}, {}, [], tried, changes, 60.0, Gain(1.8, None, None, "")
    )
    text = tuned_recipe(load_recipe(file, ["train.seed=7"]), found, tmp_path / "tuned.yaml")
    lines = text.splitlines()
    assert "1.80 times in all" in lines[0]
    assert "  bf16: true  # precision: 1.50 times [1.40, 1.60] tokens per second, measured" in lines
    assert "  eval_steps: 40  # cadence: 1.20 times tokens per second, computed" in lines
    (tmp_path / "tuned.yaml").write_text(text)
    tuned = load_recipe(tmp_path / "tuned.yaml")
    assert (tuned.train["bf16"], tuned.train["eval_steps"], tuned.train["seed"]) == (True, 40, 7)
    assert tuned.output_dir == "outputs/slow-tuned"
    assert json.loads(json.dumps(yaml.safe_load(text)))["extends"] == "slow.yaml"
