"""Progress: what stands beside the bar, how often it is rewritten, that it can fail, and the lines of the logs."""

import io
import sys
from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM, ProgressCallback, Trainer, TrainerState, TrainingArguments

from hf_efficient.callbacks import progress as figure_bars
from hf_efficient.estimate.forecast import Schedule, Spent
from hf_efficient.recording import timeline as timelines
from hf_efficient.recording.live import LiveRun, Outlook, RunningFigures
from hf_efficient.recording.meters import ProcessStart
from hf_efficient.recording.timeline import Timeline
from hf_efficient.records.steps import StepRecord, StepWork, TokenCounts

SECOND = 1_000_000_000


class Terminal(io.StringIO):
    isatty = staticmethod(lambda: True)


@pytest.fixture
def live(monkeypatch):
    """Twelve steps of 2 s have been recorded; 100 s are spent, at a cent per second."""
    timeline = Timeline(lambda: 100 * SECOND, lambda: ProcessStart(0, "kernel"))
    monkeypatch.setattr(timelines, "_timeline", timeline)
    timeline.state("price", {"price_usd_per_hour": 36.0})
    timeline.state("work", {"peak_flops_per_second": 1000.0})
    timeline.live = LiveRun(timeline, RunningFigures())
    timeline.live.schedule = Schedule(max_steps=50, evaluate_every=25)
    for number in range(1, 13):
        tokens, work = TokenCounts(3000, 2469, 100), StepWork(500, 600)
        timeline.live.figures.add(StepRecord(0, 0, number, None, 2.0, 0.0, {"forward": 2.0}, 1, tokens, work=work))
    timeline.live.figures.evaluations.add(0, 6.0)
    return timeline.live


class Bar:
    """A bar that draws on a terminal of so many columns."""

    def __init__(self, monkeypatch, columns, kind):
        self.seconds = 0.0
        self.terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", self.terminal)
        monkeypatch.setattr("tqdm.utils._screen_shape_wrapper", lambda: lambda fp: (columns - 1, 30))
        monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda: lambda fp: (columns - 1, 30))
        self.callback = kind(now=lambda: self.seconds)
        self.args = TrainingArguments("out", use_cpu=True, report_to=[])
        self.state = TrainerState(max_steps=50)
        self.callback.on_train_begin(self.args, self.state, None)
        self.callback.training_bar.mininterval = 0.0

    def step(self, number, after_seconds=2.0):
        self.seconds += after_seconds
        self.state.global_step = number
        self.callback.on_step_end(self.args, self.state, None)

    @property
    def lines(self):
        return [line for line in self.terminal.getvalue().replace("\n", "\r").split("\r") if line.strip()]


@pytest.fixture
def draw(monkeypatch):
    """Makes bars, and closes them: tqdm counts the open ones."""
    bars = []

    def make(columns, kind=figure_bars.FigureBar):
        bars.append(Bar(monkeypatch, columns, kind))
        return bars[-1]

    yield make
    for bar in bars:
        if bar.callback.training_bar is not None:
            bar.callback.training_bar.close()


@pytest.mark.parametrize(("columns", "world_size", "tokens"), [(80, 1, "1.23k"), (120, 8, "9.88k")])
def test_it_fits_beside_the_bar(live, draw, columns, world_size, tokens):
    live.world_size = world_size
    bar = draw(columns)
    bar.step(6)
    # 44 steps of 2 s, and the evaluations after 25 and 50 of 6 s: 100 s; as much again as is spent.
    assert bar.lines[-1].endswith(f", 1:40 left, {tokens} tok/s, 25% MFU, $1.00 of $2.00]")
    assert " 6/50 [" in bar.lines[-1]
    assert all(len(line) < columns for line in bar.lines)
    bar.callback.on_train_end(bar.args, bar.state, None)
    assert bar.lines[-1].endswith(f", {tokens} tok/s, 25% MFU, $1.00]")


def test_it_is_rewritten_once_a_second_at_most(live, draw, monkeypatch):
    asked = []
    outlook = LiveRun.outlook
    monkeypatch.setattr(LiveRun, "outlook", lambda self, step: asked.append(step) or outlook(self, step))
    bar = draw(80)
    for number in range(1, 11):
        bar.step(number, after_seconds=0.25)
    assert asked == [1, 5, 9]


def test_without_records_it_is_the_bar_of_transformers(draw, monkeypatch):
    monkeypatch.setattr(timelines, "_timeline", None)
    bar = draw(80)
    bar.step(6)
    assert bar.lines[-1].rstrip().endswith("it/s]")


def test_a_fault_is_told_once_and_the_bar_goes_on(live, draw, monkeypatch, caplog):
    monkeypatch.setattr(figure_bars, "progress_text", lambda *args: 1 / 0)
    bar = draw(80)
    for number in range(1, 4):
        bar.step(number)
    bar.callback.on_train_end(bar.args, bar.state, None)
    assert [one.message for one in caplog.records] == ["The progress bar shows no figures, because of a fault."]
    assert " 3/50 [" in bar.lines[-1]


def test_a_log_above_it_leaves_the_figures_to_it(live, draw, capsys):
    bar = draw(100, figure_bars.ProgressLines)
    bar.state.global_step = 5
    logs = {"loss": 3.5, "efficiency/mfu": 0.25, "efficiency/step_seconds_p50": 2.0}
    bar.callback.on_log(bar.args, bar.state, None, logs=logs)
    said = capsys.readouterr().out + bar.terminal.getvalue()
    assert "step  5/50  loss 3.5\n" in said
    assert "efficiency" not in said
    assert set(logs) == {"loss", "efficiency/mfu", "efficiency/step_seconds_p50"}  # others have them still


def test_there_is_none_on_other_ranks():
    bar = figure_bars.FigureBar()
    state = TrainerState(max_steps=5, is_world_process_zero=False)
    args = TrainingArguments("out", use_cpu=True, report_to=[])
    bar.on_train_begin(args, state, None)
    bar.on_step_end(args, state, None)
    bar.on_log(args, state, None, logs={"loss": 1.0})
    bar.on_train_end(args, state, None)
    assert bar.training_bar is None


def test_the_time_left_waits_until_the_steps_are_steady(live, draw):
    live.figures = RunningFigures()
    bar = draw(80)
    shown = []
    for number, took in enumerate([9.0, 5.0, 4.0, 1.0, 3.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], 1):
        live.figures.add(StepRecord(0, 0, number, None, took, 0.0, {"forward": took}, 1, TokenCounts(1, 1, 1)))
        bar.step(number)
        shown.append("left" in bar.lines[-1])
    assert shown[0] is shown[3] is shown[5] is False
    assert shown[-1] is True


def test_nothing_is_guessed_of_the_time_left_before_it_is_known(live, draw):
    live.figures = RunningFigures()
    bar = draw(80)
    bar.step(1)
    bar.step(2, after_seconds=0.1)  # within a second: the figures are not asked for again
    assert " 1/50 [" in bar.lines[-2]
    assert " 2/50 [" in bar.lines[-1]
    assert not any("it/s" in line or "s/it" in line or "<" in line for line in bar.lines[1:])


def test_a_log_is_one_line_and_leaves_its_speed_out():
    logs = {"loss": 3.85617, "grad_norm": 0.82361, "learning_rate": 0.0008, "epoch": 0.0075, "total_flos": 1e12}
    assert figure_bars.log_line(5, 50, logs) == "step  5/50  loss 3.856  grad_norm 0.8236  learning_rate 0.0008"

    speed = {"eval_runtime": 57.5, "eval_samples_per_second": 0.1, "epoch": 0}
    logs = {"eval_loss": 3.57, "eval_perplexity": 35.53, **speed}
    assert figure_bars.log_line(0, 6, logs) == "step 0/6  evaluation:  loss 3.57  perplexity 35.53"

    logs = {"eval_completions/mean_length": 11.5, "eval_completions/max_length": 12.0, "eval_clip_ratio/low_min": 0.0}
    logs |= {"eval_rewards/number_match/mean": 0.25, "eval_rewards/number_match/std": 0.1, "eval_reward": 0.25}
    shown = "step 0/6  evaluation:  completions/mean_length 11.5  rewards/number_match/mean 0.25  reward 0.25"
    assert figure_bars.log_line(0, 6, logs) == shown


def test_it_takes_the_place_of_the_trainers_bar(tiny_llama_dir, tmp_path):
    def trainer(**options):
        args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **options)
        return Trainer(AutoModelForCausalLM.from_pretrained(tiny_llama_dir), args)

    shown = trainer(disable_tqdm=False)
    figure_bars.show_figures(shown, figure_bars.ProgressLines)
    bars = [type(one) for one in shown.callback_handler.callbacks if isinstance(one, ProgressCallback)]
    assert bars == [figure_bars.ProgressLines]
    silent = trainer(disable_tqdm=True)
    figure_bars.show_figures(silent, figure_bars.ProgressLines)
    assert not any(isinstance(one, ProgressCallback) for one in silent.callback_handler.callbacks)


RECENT = SimpleNamespace(steps=2, training_seconds=1.0, non_padding=12_345.6 / 2, model_flops=314.0)
ALL = SimpleNamespace(
    figures=SimpleNamespace(recent=lambda: RECENT),
    world_size=2,
    peak_flops_per_second=1000.0,
    spent=lambda: Spent(100.0, 1.2, None),
)


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (None, "2:31:05 left, 12.3k tok/s, 31% MFU, $1.20 of $4.80"),
        (51, "2:31:05 left, 12.3k tok/s, 31% MFU, $1.20 of $4.80"),
        (49, "2:31:05 left, 12.3k tok/s, 31% MFU, $1.20"),
        (40, "2:31:05 left, 12.3k tok/s, $1.20"),
        (30, "2:31:05 left, $1.20"),
        (15, "2:31:05 left"),
        (11, ""),
    ],
)
def test_as_much_as_there_is_room_for(room, text):
    assert figure_bars.progress_text(ALL, Outlook(9065.0, Spent(9165.0, 4.8, None), False), room) == text
