"""What ``hf-efficient report`` writes: the page of a run, and of several runs side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "reporting"))
from sample_run import write_records


@pytest.fixture
def output(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    write_records(Path("out"), steps=8)
    return Path("out")


@pytest.fixture
def other(output):
    write_records(Path("other"), steps=8, name="other", speed=2.0)
    return Path("other")


def test_the_page_is_written_beside_the_records(run, output):
    done = run("report", str(output))
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "The page is out/efficiency/report.html"
    assert (output / "efficiency/report.html").read_text().startswith("<!doctype html>")


def test_a_file_of_ones_own(run, output):
    assert run("report", str(output), "--html", "page.html").out.endswith("The page is page.html\n")
    assert Path("page.html").is_file()
    assert not (output / "efficiency/report.html").exists()


def test_print_only(run, output):
    done = run("report", str(output), "--no-html")
    assert "The page" not in done.out
    assert done.out.startswith("The run took")
    run("report", str(output), "--json")
    assert not (output / "efficiency/report.html").exists()


def test_a_folder_that_cannot_be_written_is_said_and_the_account_printed(run, output):
    (output / "efficiency/report.html").mkdir()
    done = run("report", str(output))
    assert done.code == 0
    assert done.out.startswith("The run took")
    assert done.err == (
        "out/efficiency/report.html cannot be written: Is a directory; --html FILE puts the page elsewhere.\n"
    )


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ("--html", "gone/page.html"),
            "--html: gone/page.html cannot be written: No such file or directory; name a file",
        ),
        (("--html", "a.html", "--no-html"), "--html names a file and --no-html says that there is none"),
    ],
)
def test_flags_that_cannot_be(run, output, flags, told):
    done = run("report", str(output), *flags)
    assert done.code == 2
    assert done.err.startswith(f"error: {told}")


def test_two_runs_side_by_side(run, output, other):
    done = run("report", "out", "other")
    assert (done.code, done.err) == (0, "")
    lines = [line.rstrip() for line in done.out.splitlines()]
    assert lines[:2] == ["A  llama3.1-8b-lora  out", "B  other             other"]
    wall = next(line for line in lines if line.startswith("wall time"))
    # 14 s until train(), 26.5 until the first step, the steps, 2.1 after them; forward and backward twice as fast in B.
    assert wall.split() == ["wall", "time", "51.7", "s", "48.2", "s", "-6.8%"]
    assert lines[-1] == "The page is comparison.html"
    assert Path("comparison.html").read_text().startswith("<!doctype html>")
    run("report", "out", "other", "--html", "two.html")
    assert Path("two.html").is_file()


def test_several_runs_as_json_are_a_list(run, output, other):
    found = json.loads(run("report", "out", "other", "--json").out)
    assert [one["steps"]["count"] for one in found] == [8, 8]
    one = json.loads(run("report", "out", "--json").out)
    assert one == found[0]


@pytest.mark.parametrize("dirs", [["out"], ["out", "other"]])
def test_json_beside_a_page_that_is_named(run, output, other, dirs):
    done = run("report", *dirs, "--json", "--html", "page.html")
    assert done.out == run("report", *dirs, "--json").out
    assert done.err == "The page is page.html\n"
    assert Path("page.html").read_text().startswith("<!doctype html>")


def test_a_run_that_is_none_among_several(run, output):
    done = run("report", "out", "gone")
    assert (done.code, done.err) == (2, "error: gone: no such folder; name the OUTPUT_DIR of a run\n")
