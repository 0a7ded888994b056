"""The order of the rooms, read from the map in ``hf_efficient/__init__.py`` and held against the imports."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hf_efficient

PACKAGE = "hf_efficient"
ROOT = Path(hf_efficient.__file__).parent
# The package itself and the version's one line lie below every room and import none.
BELOW_ALL = frozenset({"version"})
# Installed wheels carry the recipes inside the package; they hold no Python.
NO_ROOMS = frozenset({"shipped_recipes", "__pycache__"})

LIBRARIES = frozenset({"torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "evaluate"})
HUGGING_FACE = LIBRARIES - {"torch"}
# What a room must not import while it is itself imported; None: nowhere, functions included.
NOT_AT_IMPORT = dict.fromkeys(
    ("errors", "text", "facts", "records", "run_dir", "recipe", "accounting", "trace", "diagnosis", "reporting", "cli"),
    LIBRARIES,
)
NOWHERE = {
    "errors": LIBRARIES,
    "text": LIBRARIES,
    "records": LIBRARIES,
    "estimate": LIBRARIES,
    "run_dir": LIBRARIES,
    "accounting": LIBRARIES,
    "trace": LIBRARIES,
    "diagnosis": LIBRARIES,
    "reporting": LIBRARIES,
    "recording": HUGGING_FACE,
    "profilers": HUGGING_FACE,
}


def rooms_of(docstring: str) -> list[str]:
    """The rooms in the order of the map: lines such as ``recipe/   the YAML contract``."""
    return [found[1] for found in re.finditer(r"^    (\w+)(?:/|\.py)\s{2,}\S", docstring, re.MULTILINE)]


def room_of(path: Path, root: Path) -> str:
    """``recipe`` for ``root/recipe/load.py``, ``errors`` for ``root/errors.py``."""
    first = path.relative_to(root).parts[0]
    return first.removesuffix(".py")


def modules_imported(path: Path, root: Path, *, at_import: bool = False) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import of a file.

    Args:
        path: the file.
        root: the package's folder, which relative imports are counted from.
        at_import: only those that run when the file is imported: not in functions or under ``TYPE_CHECKING``.
    """
    package = [PACKAGE, *path.relative_to(root).parts[:-1]]
    for node in _nodes(ast.parse(path.read_text(encoding="utf-8")), at_import):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{name}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((node.lineno, str(arg.value)) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def _nodes(tree: ast.AST, at_import: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if at_import and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if at_import and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _nodes(node, at_import)


def violations(root: Path, rooms: list[str]) -> list[str]:
    """What breaks the order: ``recipe/load.py:3: recipe imports cli, which is printed below it``."""
    found = []
    for path in python_files(root):
        shown = path.relative_to(root).as_posix()
        room = room_of(path, root)
        if room not in {*rooms, *BELOW_ALL}:
            found.append(f"{shown}: {room} is no room of the map")
            continue
        for line, name in modules_imported(path, root):
            parts = name.split(".")
            if parts[0] == PACKAGE and (told := _judge(room, parts[1:], rooms)):
                found.append(f"{shown}:{line}: {told}")
    return found


def _judge(room: str, imported: list[str], rooms: list[str]) -> str | None:
    other = imported[0] if imported else ""
    if other == room or other in {"__version__", *BELOW_ALL}:
        return None
    if other not in rooms:
        return f"{room} imports {other or PACKAGE} from the package itself; import it from its room"
    if room in BELOW_ALL or rooms.index(other) > rooms.index(room):
        return f"{room} imports {other}, which is printed below it"
    return None


def python_files(root: Path) -> list[Path]:
    """Every module but the package's own ``__init__``, which names all rooms to import them lazily."""
    files = [path for path in sorted(root.rglob("*.py")) if room_of(path, root) not in NO_ROOMS]
    return [path for path in files if path != root / "__init__.py"]


def library_violations(root: Path) -> list[str]:
    """Imports of libraries that a room promises to do without."""
    found = []
    for path in python_files(root):
        room = room_of(path, root)
        for banned, at_import in ((NOWHERE, False), (NOT_AT_IMPORT, True)):
            for line, name in modules_imported(path, root, at_import=at_import):
                if name.split(".")[0] in banned.get(room, frozenset()):
                    found.append(f"{path.relative_to(root).as_posix()}:{line}: {room} imports {name.split('.')[0]}")
    return sorted(set(found))


def circles(root: Path) -> list[list[str]]:
    """Groups of files that import one another, in functions too; each file by its dotted path below the package."""
    files = {".".join(path.relative_to(root).with_suffix("").parts): path for path in python_files(root)}
    imports = {name: {found for _, found in modules_imported(path, root)} for name, path in files.items()}
    graph = {
        name: [
            one for one in files if one != name and any(f"{found}.".startswith(f"{PACKAGE}.{one}.") for found in founds)
        ]
        for name, founds in imports.items()
    }
    reached: dict[str, set[str]] = {}
    for name in graph:
        seen, left = set[str](), [name]
        while left:
            new = [one for one in graph[left.pop()] if one not in seen]
            seen.update(new)
            left.extend(new)
        reached[name] = seen
    groups = {
        tuple(sorted(one for one in reached[name] if name in reached[one])) for name in graph if name in reached[name]
    }
    return [list(group) for group in sorted(groups)]


def test_the_map_names_the_rooms_in_order():
    rooms = rooms_of(hf_efficient.__doc__ or "")
    assert rooms[0] == "errors"
    assert rooms[-1] == "cli"
    assert len(rooms) == len(set(rooms))
    assert rooms.index("recipe") < rooms.index("recording") < rooms.index("trainer") < rooms.index("launch")
    assert [room for room in rooms if not (ROOT / room).is_dir() and not (ROOT / f"{room}.py").is_file()] == []


def test_rooms_import_only_rooms_printed_above_them():
    assert violations(ROOT, rooms_of(hf_efficient.__doc__ or "")) == []


def test_no_files_import_one_another_in_a_circle():
    assert circles(ROOT) == []


def test_a_planted_circle_is_found(house):
    root = house(
        **{"recipe/a": "from hf_efficient.recipe.b import x", "recipe/b": "def f(): from hf_efficient.recipe import a"}
    )
    assert circles(root) == [["recipe.a", "recipe.b"]]


@pytest.mark.parametrize(
    ("code", "most"),
    [
        ("hf_efficient.EfficientTrainer", 90),
        ("hf_efficient.plan(hf_efficient.load_recipe('llama3.2-1b/qlora'), ['H100 SXM'])", 200),
    ],
    ids=["trainer", "plan"],
)
def test_it_imports_few_files_of_the_package(code, most):
    count = "print(sum(name.startswith('hf_efficient') for name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, hf_efficient; {code}; {count}"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout.splitlines()[-1]) <= most


def test_rooms_do_without_the_libraries_that_they_promise_to():
    assert library_violations(ROOT) == []


def test_importing_loads_no_torch():
    modules = (
        "recipe.load facts.environment facts.tables facts.prices facts.models estimate.flops estimate.statistics "
        "estimate.roofline cli.app accounting.account accounting.series diagnosis.engine reporting.console "
        "cli.diagnose reporting.html.compare_page recording.timeline"
    )
    imports = "\n".join(f"import hf_efficient.{name}" for name in modules.split())
    code = f"import sys\n{imports}\nprint(sorted({set(LIBRARIES)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.fixture
def house(tmp_path: Path):
    """A small package whose order is ``errors, recipe, recording, cli``; ``house(**files)`` adds to it."""

    def build(**files: str) -> Path:
        base = {
            "__init__": "",
            "version": "__version__ = '1'",
            "errors": "",
            "recipe/load": "",
            "recording/clock": "",
            "cli/app": "",
        }
        for name, text in {**base, **files}.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return build


ORDER = ["errors", "recipe", "recording", "cli"]


def test_the_map_is_parsed():
    text = "What it is.\n\n    errors.py   the tree\n    recipe/     the contract\n\n"
    text += "      a detail/  no room\n    cli/  commands\nEnd."
    assert rooms_of(text) == ["errors", "recipe", "cli"]


def test_a_good_house_passes(house):
    root = house(
        **{
            "recipe/load": "from hf_efficient.errors import X\nfrom . import other\nfrom .other import y",
            "recipe/other": "from hf_efficient import __version__\nfrom hf_efficient.version import x",
            "cli/app": "from ..recipe import load\nimport hf_efficient.recording.clock\nfrom .. import errors",
            "recording/clock": "def f():\n    import torch\n",
        }
    )
    assert violations(root, ORDER) == []
    assert library_violations(root) == []


BELOW = "recipe imports cli, which is printed below it"


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("recipe/load", "import hf_efficient.cli.app", BELOW),
        ("recipe/load", "from hf_efficient import cli", BELOW),
        ("recipe/load", "from ..cli import app", BELOW),
        ("recipe/load", "from .. import cli", BELOW),
        ("recipe/deep/a", "from ...cli.app import x", BELOW),
        ("recipe/load", "if TYPE_CHECKING: import hf_efficient.cli", BELOW),
        ("recipe/load", "def f(): import hf_efficient.cli", BELOW),
        ("recipe/load", "import importlib; importlib.import_module('hf_efficient.cli')", BELOW),
        ("version", "import hf_efficient.errors", "version imports errors, which is printed below it"),
        ("cli/app", "import hf_efficient", "cli imports hf_efficient from the package itself; import it from its room"),
    ],
)
def test_a_planted_violation_is_found(house, file, text, told):
    assert violations(house(**{file: text}), ORDER) == [f"{file}.py:1: {told}"]


def test_an_unknown_room_is_found(house):
    assert violations(house(**{"attic/box": "", "shed": ""}), ORDER) == [
        "attic/box.py: attic is no room of the map",
        "shed.py: shed is no room of the map",
    ]


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("recipe/load", "import torch.nn", "recipe imports torch"),
        ("recipe/load", "try:\n    from trl import SFTConfig\nexcept ImportError: pass", "recipe imports trl"),
        ("recipe/load", "class A:\n    import transformers", "recipe imports transformers"),
        ("errors", "def f():\n    import torch", "errors imports torch"),
        ("recording/clock", "def f():\n    import transformers", "recording imports transformers"),
    ],
)
def test_a_planted_library_is_found(house, file, text, told):
    (found,) = library_violations(house(**{file: text}))
    assert re.fullmatch(rf"{file}\.py:\d: {told}", found)
