"""What a recipe is built of, in words: remarks on the data, instruments, weights that DDP waits for; the terminal."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import Dataset
from rich.console import Console
from torch import nn

from hf_efficient import load_run, run_recipe
from hf_efficient.data.build import PreferenceData, SftData
from hf_efficient.data.cache import Entry
from hf_efficient.data.stats import DataStats, LeftOut
from hf_efficient.errors import SetupError
from hf_efficient.launch.build import data_lines, expect_gradients, few_steps, instrument_callbacks, remarks
from hf_efficient.launch.listener import RunResult, TerminalListener
from hf_efficient.metrics.answers import Answer
from hf_efficient.recipe.schema import ProfileSection, Recipe

NOTHING = dict.fromkeys(("dropped_overlong", "truncated", "dropped_masked", "masked"), 0)
PLAIN = DataStats(examples=40, tokens_total=400, target_tokens=300, longest=12, **NOTHING)

ODD = {
    "3 examples have no target token: they cost time and teach nothing": {"masked": 3},
    "1 example has no target token: it costs time and teaches nothing": {"masked": 1},
    "2 examples are empty: a blank text, completion or last answer": {"empty": 2},
    "data.train.2 contributes only 1 example": {"small_sources": {"data.train.2": 1}},
}


def test_what_preparation_found_odd():
    assert remarks(PLAIN, 64) == []
    assert [remarks(replace(PLAIN, **changes), 64) for changes in ODD.values()] == [[line] for line in ODD]


def test_a_training_of_few_steps_is_a_remark():
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "world_size": 1}
    args = SimpleNamespace(**sizes, num_train_epochs=1, max_steps=-1)
    assert few_steps(1, args)[0].startswith(
        "1 row in batches of 16 give 1 optimizer step, too few to learn from: write"
    )
    assert few_steps(145, args) == []
    args.num_train_epochs = 10
    assert few_steps(1, args) == []
    args.num_train_epochs, args.max_steps = 1, 3
    assert few_steps(1, args) == []


def test_the_share_of_the_targets():
    entry = Entry(Dataset.from_list([{}]), None, PLAIN, None, [])
    data = SftData(**vars(entry), collator=None, cached=False)
    assert data_lines(data, 64)[1] == "the loss covers 300 target tokens, 75% of all"


def test_evaluation_rows_that_are_packed_examples():
    held_out = replace(PLAIN, examples=8)
    parts = ((held_out, "8 to evaluate on"), (replace(held_out, packs=1), "8 in 1 packed row to evaluate on"))
    for stats, told in parts:
        data = SftData(Dataset.from_list([{}]), Dataset.from_list([{}]), PLAIN, stats, [], collator=None, cached=False)
        assert data_lines(data, 64)[0] == f"40 examples, 400 tokens, {told}"


def test_preference_pairs():
    nothing = Dataset.from_list([])
    assert data_lines(PreferenceData(nothing, None, (), None, 3), 8) == ["0 preference pairs"]
    labelled = PreferenceData(Dataset.from_list([{"a": 1}] * 3), None, (), None, 3, good=2)
    assert data_lines(labelled, 8) == ["3 answers: 2 good, 1 bad"]
    one = LeftOut("the prompt alone fills train.max_length 8", 1, "pairs.jsonl:3")
    left_out = "1 row is left out: the prompt alone fills train.max_length 8 (first: pairs.jsonl:3)"
    found = data_lines(PreferenceData(nothing, None, (one,), {"data.train.1": 2}, 3), 8)
    assert found[1:] == [left_out, "data.train.1 contributes only 2 examples"]


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(2, 2)])


def test_a_model_without_experts_uses_all_its_weights():
    dense = nn.Linear(2, 2)
    cases = ((dense, None, False), (dense, True, True), (Mixture(), None, None), (Mixture(), False, False))
    for model, given, expected in cases:
        args = SimpleNamespace(ddp_find_unused_parameters=given)
        expect_gradients(args, model)
        assert args.ddp_find_unused_parameters is expected


def profiled(model, source, output, profile):
    sections = {"model": {"id": str(model)}, "adapter": {"r": 4}, "data": {"train": [{"path": str(source)}]}}
    train = {"max_steps": 5, "max_length": 96, "per_device_train_batch_size": 2, "use_cpu": True, "bf16": False}
    sections |= {"efficiency": {"plan": False}, "profile": profile}
    return Recipe(name="tiny", **sections, train=train, output_dir=str(output))


def test_a_callback_per_instrument_that_is_switched_on():
    assert instrument_callbacks(ProfileSection()) == []
    functions = {"lines": ["json:dumps"], "host_memory": ["json:dumps"]}
    section = ProfileSection(trace={}, memory={}, python={}, nvtx=True, capture={}, synchronisations={}, **functions)
    assert " ".join(type(callback).__name__ for callback in instrument_callbacks(section)) == (
        "TorchTraceCallback MemoryHistoryCallback PythonProfileCallback LineTimesCallback HostMemoryCallback "
        "NvtxCallback CaptureCallback SynchronisationsCallback"
    )


def test_a_run_with_instruments(tiny_llama_dir, chats_jsonl, tmp_path):
    trace = {"wait": 1, "warmup": 1, "active": 2, "stacks": False}
    run_recipe(profiled(tiny_llama_dir, chats_jsonl, tmp_path / "out", {"trace": trace, "memory": {"at_end": True}}))
    profile = load_run(tmp_path / "out").profile
    notes = {one.name: (one.steps, one.note) for one in profile.instruments}
    assert notes["memory"] == (0, "needs a CUDA device, and there is none")
    assert profile.operators.steps == 2
    assert "Profile" in (tmp_path / "out" / "efficiency" / "report.html").read_text()


def test_a_training_that_raises_still_leaves_its_profile(tiny_llama_dir, chats_jsonl, tmp_path, monkeypatch):
    def breaks(self, *args, **kwargs):
        raise RuntimeError("a fault in the middle")

    monkeypatch.setattr("hf_efficient.trainer.EfficientTrainerMixin._around_floating_point_ops", breaks)
    with pytest.raises(RuntimeError, match="in the middle"):
        run_recipe(profiled(tiny_llama_dir, chats_jsonl, tmp_path / "out", {"python": {"after_step": 0}}))
    profile = load_run(tmp_path / "out").profile
    assert profile.functions[0].process == "main"
    assert sorted(profile.instruments[0].files) == ["profile/python.rank0.json", "profile/python.rank0.pstats"]


def test_a_function_that_is_not_there_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(SetupError, match=r"profile.lines: json:dump_all: there is no dump_all in it"):
        run_recipe(profiled("no model", "no data", tmp_path / "out", {"lines": ["json:dump_all"]}))


@pytest.fixture
def terminal():
    file = io.StringIO()
    return TerminalListener(Console(file=file, width=70, highlight=False)), file


def test_a_stage_and_an_answer_on_the_terminal(terminal):
    shown, file = terminal
    shown.stage("Data", "[bold]" + "x" * 100)
    assert file.getvalue() == f"Data        [bold]{'x' * 100}\n"
    shown.answers(0, [Answer("1+1?", "<user>1+1?", "2", "[red]three", match=False)])
    shown.answers(7, [Answer("1+1?", "<user>1+1?", "2", "two\nlines " + "a" * 1000, match=False)])
    assert file.getvalue().count("\n") == 1
    shown.finished(RunResult(Path("out"), 7, {}, {}, 61.0))
    asked, expected, before, after = file.getvalue().splitlines()[2:6]
    rows = [["asked", "1+1?"], ["expected", "2"], ["before", "[red]three"]]
    assert [asked.split(), expected.split(), before.split()] == rows
    assert after.startswith("after     two lines aaa")
    assert len(after.rstrip()) <= 70


def test_the_results_on_the_terminal(terminal):
    shown, file = terminal
    after = {"loss": 3.0, "exact_match": 0.5}
    shown.finished(RunResult(Path("out"), 50, {"loss": 4.0}, after, 61.0, training_loss=(5.0, 2.0)))
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert lines[2:4] == [["loss", "4", "3", "-25.0%"], ["exact_match", "0.5"]]
    assert lines[4] == ["training", "loss", "5", "2", "-60.0%"]
    assert ["50", "steps", "done,", "in", "1", "min", "01", "s."] in lines
    assert lines[-1] == ["model", "out"]
