"""Files of others that a command is told to write, and terminals that cannot show what it prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_efficient.cli.output import PAGE, write_page, write_text
from hf_efficient.errors import OutputError
from hf_efficient.reporting.terminal import Console, last_streams
from hf_efficient.text import printable

COMMANDS = ["schema --output {}", "submit r.yaml --on slurm --output {}", "bench r.yaml --markdown {}"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["recipe", "link", "fifo", "device"])
def test_what_no_command_wrote_stays(run, recipe, command, kind):
    path = {"recipe": recipe, "device": Path("/dev/null")}.get(kind, Path(kind))
    if kind == "link":
        path.symlink_to(recipe)
    elif kind == "fifo":
        os.mkfifo(path)
    before = recipe.read_text()
    ended = run(*command.format(path).split())
    assert (ended.code, f"{path} exists already, and this command did not write it. Name an" in ended.err) == (2, True)
    assert recipe.read_text() == before
    assert path.is_symlink() == (kind == "link")


@pytest.mark.parametrize("command", COMMANDS[:2])
def test_what_the_command_wrote_is_written_again_through_its_link(run, recipe, command):
    Path("link").symlink_to("held")
    words = command.format("link").split()
    assert run(*words).code == 0
    first = Path("held").read_text()
    Path("held").write_text(first + "# more\n")
    assert run(*words).code == 0
    assert (Path("held").read_text(), Path("link").is_symlink()) == (first, True)


def test_a_page_replaces_pages_alone(tmp_path, capsys):
    page, mine = tmp_path / "page.html", tmp_path / "comparison.html"
    for _ in range(2):
        write_page(page, page, lambda: f'<!doctype html>{PAGE} 1">')
    mine.write_text("<!doctype html>mine")
    with pytest.raises(OutputError, match=r"^--html: .*comparison\.html exists already"):
        write_page(mine, mine, lambda: "page")
    write_page(None, mine, lambda: "page")
    assert mine.read_text() == "<!doctype html>mine"
    assert "The page is not written: " in capsys.readouterr().err


def test_a_disk_that_fills_up_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "s.json").write_text("MARK old")

    whole = Path.open

    def full(self, mode="r", **how):
        if "w" in mode:
            raise OSError(28, "No space left on device")
        return whole(self, mode, **how)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OutputError, match=r"^--output: .*s\.json cannot be written: No space left on device"):
        write_text("--output", tmp_path / "s.json", "MARK new", "MARK")
    assert (tmp_path / "s.json").read_bytes() == b"MARK old"


PRINTS = """
import sys
from hf_efficient.reporting.terminal import last_streams, lost_output
last_streams()
from hf_efficient.reporting.terminal import show
show(["█ bar"] * 20000)
sys.stderr.write(f"went on {lost_output()}")
"""


@pytest.mark.parametrize(
    ("shell", "out", "err"),
    [
        ('"$0" -c "$1" | head -n 1', "█ bar\n", "went on "),
        ('"$0" -c "$1" > /dev/full', "", "went on No space left on device"),
        ('PYTHONIOENCODING=latin-1 "$0" -c "$1" | tail -n 1', "? bar\n", "went on "),
        ('COLUMNS=0 "$0" -c "$1" | tail -n 1', "█ bar\n", "went on "),
    ],
)
def test_no_terminal_ends_a_run(shell, out, err):
    command = ["bash", "-o", "pipefail", "-c", shell, sys.executable, PRINTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, out, err)


def test_a_table_is_no_wider_than_any_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100000000")
    last_streams()
    assert Console().width == 80


def test_a_full_standard_output_is_said():
    program = "from hf_efficient.cli.app import main; main(['recipes'])"
    done = subprocess.run(
        ["bash", "-c", '"$0" -c "$1" > /dev/full', sys.executable, program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (2, "error: standard output cannot be written: No space left on device.\n")


def test_names_cannot_drive_the_terminal(run, recipe, capsys):
    Console(width=60).print("a\x1b[31m\x9bb", soft_wrap=True)
    assert capsys.readouterr().out == "a\\x1b[31m\\x9bb\n"
    assert printable("a\tb\nc\x07") == "a\tb\nc\\x07"
    ended = run("validate", "\x1b]0;gone\x07.yaml")
    assert (ended.code, "\x1b" in ended.err) == (2, False)
    ended = run("validate", "r.yaml", 'name="\\e[2Jgone"')
    assert (ended.code, "holds the character U+001B, which is no text. Remove it" in ended.err) == (2, True)
