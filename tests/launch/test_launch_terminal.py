from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from hf_efficient.launch.listener import RunResult, TerminalListener
from hf_efficient.metrics.answers import Answer


def listener() -> tuple[TerminalListener, io.StringIO]:
    file = io.StringIO()
    return TerminalListener(Console(file=file, width=70, highlight=False)), file


def test_a_stage_is_one_line_even_where_it_is_long():
    shown, file = listener()
    shown.stage("Data", "[bold]" + "x" * 100)
    assert file.getvalue() == f"Data        [bold]{'x' * 100}\n"


def test_an_answer_shows_question_reference_and_answer():
    shown, file = listener()
    shown.answers(0, [Answer("1+1?", "<user>1+1?", "2", "[red]three", match=False)])
    text = file.getvalue()
    assert "Answer before training" in text
    for part in ("asked     1+1?", "expected  2", "answered  [red]three"):
        assert part in text
    shown.answers(7, [Answer("q", "q", "e", "a" * 1000, match=False)])
    assert "Answer after 7 steps" in file.getvalue()
    assert file.getvalue().count("a" * 20) < 1000 / 20  # cut


def test_the_results_are_before_after_and_change():
    shown, file = listener()
    result = RunResult(
        output_dir=Path("out"),
        steps=50,
        before={"loss": 4.0},
        after={"loss": 3.0, "exact_match": 0.5},
        train_seconds=61.0,
        written={"out": "the adapter"},
    )
    shown.finished(result)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in file.getvalue().splitlines() if "│" in line]
    assert ["loss", "4", "3", "-25.0%"] in rows
    assert ["exact_match", "", "0.5", ""] in rows
    took = "50 steps are done; this training took 1 min 01 s, its evaluations and checkpoints included."
    assert took in file.getvalue()
    assert "  out  the adapter" in file.getvalue()


def test_without_an_evaluation_before_there_is_one_column():
    shown, file = listener()
    shown.finished(RunResult(output_dir=Path("out"), steps=1, before={}, after={"loss": 3.0}, train_seconds=1.0))
    lines = file.getvalue().splitlines()
    assert [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line] == [["loss", "3"]]
    assert "after training" in file.getvalue()
    assert "change" not in file.getvalue()
