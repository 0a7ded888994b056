"""The embedded data sets ``builtin:python-docstrings``, this Python's own documentation as chats, and
``builtin:docstring-pairs``, preference pairs of it.

The standard library's sources are parsed, never imported. The user asks with module, class and signature; the docstring
is the answer. The same Python gives the same examples in the same order.
"""

import ast
import hashlib
import inspect
import re
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

ALGORITHM_VERSION = 2  # raised whenever the same sources would give other examples; part of the cache key

SPLITS = ("train", "eval")
EVAL_PERCENT = 5

_SKIPPED_FOLDERS = frozenset(
    ["__pycache__", "ensurepip", "idlelib", "lib2to3", "site-packages", "dist-packages", "test", "tests", "turtledemo"]
)
_SHORTEST, _LONGEST, _PARAGRAPHS = 20, 600, 3
_BOILERPLATE = frozenset(["internal", "not implemented", "see base class", "deprecated", "todo", "docstring"])

_Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def build_docstring_chats(root: Path | None = None) -> list[dict[str, Any]]:
    """In the order of the sorted module paths, then of the source lines: dicts with ``prompt`` (a user message),
    ``completion`` (an assistant message), ``module``, ``qualname`` and ``split``. No two have the same docstring,
    compared without case, punctuation and white space."""
    root = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    chats: dict[str, dict[str, Any]] = {}
    for path in _sources(root):
        for chat in _documented(path, root):
            chats.setdefault(re.sub(r"[\W_]+", "", chat["completion"][0]["content"]).lower(), chat)
    return list(chats.values())


def docstring_split(split: str) -> list[dict[str, Any]]:
    return [chat for chat in build_docstring_chats() if chat["split"] == split]


def docstring_pairs(split: str) -> list[dict[str, Any]]:
    """The same examples as preference pairs: the worse answer is the docstring of another definition that is about as
    long. Every answer is once the better and once the worse one: only the question separates them."""

    def by_length(chat: dict[str, Any]) -> tuple[int, str, str]:
        return len(chat["completion"][0]["content"]), chat["module"], chat["qualname"]

    chats = sorted(docstring_split(split), key=by_length)
    last = len(chats) - 1
    others = (chats[place ^ 1 if place ^ 1 <= last else place - 1] for place in range(len(chats)))
    return [
        {"prompt": one["prompt"], "chosen": one["completion"], "rejected": other["completion"]}
        for one, other in zip(chats, others, strict=True)
    ]


def split_of(module: str, qualname: str) -> Literal["train", "eval"]:
    """5 in 100 are ``eval``, by a hash of the full name. With no docstring twice, the two sides share neither."""
    digest = hashlib.sha256(f"{module}:{qualname}".encode()).digest()
    return "eval" if int.from_bytes(digest[:8], "big") % 100 < EVAL_PERCENT else "train"


def _sources(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir(), key=lambda entry: entry.name):
        if path.is_dir():
            if path.name not in _SKIPPED_FOLDERS and not path.name.startswith("config-"):
                yield from _sources(path)
        elif path.suffix == ".py":
            yield path


def _documented(path: Path, root: Path) -> Iterator[dict[str, Any]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in somebody else's sources
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return  # a template or a file for another Python: not a source of ours
    parts = path.relative_to(root).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
    yield from _visit(tree, module, ())


def _visit(node: ast.AST, module: str, owners: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Documented):
            raw = ast.get_docstring(child, clean=False) if re.fullmatch("[^_].*|__.+__", child.name) else None
            if docstring := _clean(raw or ""):
                yield _chat(child, module, owners, docstring)
            if isinstance(child, ast.ClassDef):
                yield from _visit(child, module, (*owners, child.name))
        elif isinstance(child, ast.If | ast.Try):
            yield from _visit(child, module, owners)


def _head(node: _Documented) -> str:
    lines = [f"@{ast.unparse(decorator)}" for decorator in node.decorator_list]
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in [*node.bases, *node.keywords])
        lines.append(f"class {node.name}({bases}):" if bases else f"class {node.name}:")
        init = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
        lines += [f"    def __init__({ast.unparse(init.args)})"] if init else []
    else:
        keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        lines.append(f"{keyword} {node.name}({ast.unparse(node.args)}){returns}:")
    return "\n".join(line for line in lines if len(line) <= 400)


def _clean(raw: str) -> str:
    """As it is learnt: no doctest sessions, at most three paragraphs of 600 characters in all; perhaps empty."""
    kept: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(raw)):
        paragraph = paragraph.strip("\n").rstrip()
        if ">>>" in paragraph or not paragraph.strip():
            continue
        if len(kept) == _PARAGRAPHS or (kept and len("\n\n".join([*kept, paragraph])) > _LONGEST):
            break
        kept.append(paragraph)
    while kept and kept[-1].endswith(":"):  # announces something that was left out
        kept.pop()
    text = "\n\n".join(kept).strip()
    letters = sum(character.isalpha() for character in text)
    is_ascii = text.isascii() or sum(character.isascii() for character in text) >= 0.98 * len(text)
    plain = re.sub(r"[^a-z ]", "", text.lower()).strip()
    if not _SHORTEST <= len(text) <= _LONGEST or not is_ascii or plain in _BOILERPLATE:
        return ""
    return text if letters >= len(text) / 2 else ""


def _chat(node: _Documented, module: str, owners: tuple[str, ...], docstring: str) -> dict[str, Any]:
    kind = "class" if isinstance(node, ast.ClassDef) else "method" if owners else "function"
    owner = f" of the class {'.'.join(owners)}" if owners else ""
    request = f"Write the docstring of this {kind}{owner} in the Python module {module}:\n\n{_head(node)}"
    qualname = ".".join((*owners, node.name))
    return {
        "prompt": [{"role": "user", "content": request}],
        "completion": [{"role": "assistant", "content": docstring}],
        "module": module,
        "qualname": qualname,
        "split": split_of(module, qualname),
    }
