import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_efficient.data.docstrings import build_docstring_chats, docstring_pairs, docstring_split, split_of

TREE = {
    "alpha.py": '''
"""A module's own docstring is nobody's answer."""

def area(width: float, height: float = 1.0, *, unit: str = "m") -> float:
    """Return the area of a rectangle.

    >>> area(2, 3)
    6

    The unit is only for show.
    """

async def fetch(url):
    """Fetch one page and return its text."""

def _hidden(a):
    """This one is private and left out."""

def short(a):
    """Too short."""

def again(width):
    """Return the AREA of a   rectangle!

    The unit is only for show.
    """

def announces(a):
    """Do one of several things at once.

    The things are:
    """

def foreign():
    """Gibt die Größe zurück, für ältere Geräte übrigens öfter ungültig: äöüß."""

class Shape(Base, metaclass=Meta):
    """A figure with corners and edges."""

    def __init__(self, corners, *, closed=True):
        self.corners = corners

    @property
    def edges(self):
        """How many edges the figure has."""

    class Inner:
        @staticmethod
        def helper(x):
            """Help the shape with its corners."""

if True:
    def conditional():
        """Exist only under a condition."""
''',
    "pkg/__init__.py": 'def top():\n    """Live in the package itself."""\n',
    "pkg/mod.py": 'def deep():\n    """Live one level further down."""\n',
    "pkg/tests/case.py": 'def deep():\n    """Belong to the tests and be skipped."""\n',
    "config-3.11/x.py": 'def f():\n    """Belong to the build and be skipped."""\n',
    "site-packages/x.py": 'def f():\n    """Belong to others and be skipped."""\n',
    "broken.py": "def f(:\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "lib"


def test_a_made_up_tree_gives_exactly_these_examples(tree):
    chats = build_docstring_chats(tree)
    assert all(chat["prompt"][0]["role"] == "user" and chat["completion"][0]["role"] == "assistant" for chat in chats)
    head = "def area(width: float, height: float=1.0, *, unit: str='m') -> float:"
    helper = "@staticmethod\ndef helper(x):"
    shape = "class Shape(Base, metaclass=Meta):\n    def __init__(self, corners, *, closed=True)"
    expected = [
        ("function", "alpha", "area", head, "Return the area of a rectangle.\n\nThe unit is only for show."),
        ("function", "alpha", "fetch", "async def fetch(url):", "Fetch one page and return its text."),
        ("function", "alpha", "announces", "def announces(a):", "Do one of several things at once."),
        ("class", "alpha", "Shape", shape, "A figure with corners and edges."),
        ("method of the class Shape", "alpha", "Shape.edges", "@property\ndef edges(self):", "How many edges the "),
        ("method of the class Shape.Inner", "alpha", "Shape.Inner.helper", helper, "Help the shape"),
        ("function", "alpha", "conditional", "def conditional():", "Exist only under a condition."),
        ("function", "pkg", "top", "def top():", "Live in the package itself."),
        ("function", "pkg.mod", "deep", "def deep():", "Live one level further down."),
    ]
    for chat, (kind, module, name, head, answer) in zip(chats, expected, strict=True):
        assert (chat["module"], chat["qualname"]) == (module, name)
        request = f"Write the docstring of this {kind} in the Python module {module}:\n\n{head}"
        assert chat["prompt"][0]["content"] == request
        assert chat["completion"][0]["content"].startswith(answer)


def test_the_split_is_by_full_name_alone():
    # first 16 digits of `printf m:f23 | sha256sum`, modulo 100: 4; likewise 5, 0 and 45
    assert [split_of("m", name) for name in ("f23", "f102", "f191", "f0")] == ["eval", "train", "eval", "train"]


def test_the_standard_library_gives_thousands_of_distinct_examples():
    chats = docstring_split("train") + docstring_split("eval")
    answers = [chat["completion"][0]["content"] for chat in chats]
    assert len(chats) > 2000
    assert len({answer.casefold() for answer in answers}) == len(chats)
    assert all(20 <= len(answer) <= 600 and ">>>" not in answer for answer in answers)
    assert json.loads(json.dumps(chats[:5])) == chats[:5]
    train, evaluation = docstring_split("train"), docstring_split("eval")
    assert 0.03 < len(evaluation) / (len(train) + len(evaluation)) < 0.07
    for name in (lambda chat: (chat["module"], chat["qualname"]), lambda chat: chat["completion"][0]["content"]):
        assert {name(chat) for chat in train} & {name(chat) for chat in evaluation} == set()


def test_every_answer_is_once_the_better_and_once_the_worse_one():
    pairs = docstring_pairs("train")
    better, worse = (sorted(pair[side][0]["content"] for pair in pairs) for side in ("chosen", "rejected"))
    assert len(better) == len(set(better)) == len(docstring_split("train"))
    assert len(set(better) ^ set(worse)) <= 1  # of an odd number
    assert all(pair["chosen"] != pair["rejected"] for pair in pairs)
    apart = [abs(len(pair["chosen"][0]["content"]) - len(pair["rejected"][0]["content"])) for pair in pairs]
    assert sorted(apart)[len(apart) // 2] <= 1


@pytest.mark.slow
def test_the_same_in_every_process():
    script = (
        "import hashlib, json; from hf_efficient.data.docstrings import build_docstring_chats as b;"
        "print(hashlib.sha256(json.dumps(b()).encode()).hexdigest())"
    )
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    command = [sys.executable, "-c", script]
    first, second = (subprocess.check_output(command, env=one, text=True) for one in environments)
    assert first == second
    assert len(first.strip()) == 64
