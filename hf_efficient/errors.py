"""The exception tree: every error that a user can cause, and what it exits with.

    HfEfficientError            a user can correct it; the message names the remedy; exit code 2
    ├── RecipeError             the recipe: syntax, unknown keys, types, contradictions, extends
    ├── DataError               sources, formats, rows, lengths, labels
    ├── ModelError              model, tokenizer, adapter or quantization that cannot be built
    ├── OutputError             the output directory: occupied, unwritable, no such checkpoint
    ├── SetupError              this machine or its packages lack what the recipe asks for
    │   └── MissingPackageError a package of an extra, an ImportError as well; names the command that installs it
    ├── TrainingCheckError      a check of the running training failed (no gradient, for instance)
    └── PreflightError          a preflight check failed: the answer is no; exit code 1

Anything else that is raised is a defect of ours, and keeps its traceback.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


def first_line(error: BaseException) -> str:
    """The first line of a library's message, or the kind of error where it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


_LONGEST_CAUSE = 400


def cause(error: BaseException) -> str:
    """A library's message on one line, cut after 400 characters, without the C++ frames that torch adds; the kind of
    error where it has none."""
    text = " ".join(str(error).partition("Exception raised from")[0].split()) or type(error).__name__
    return text if len(text) <= _LONGEST_CAUSE else f"{text[:_LONGEST_CAUSE]} ..."


@contextmanager
def writing(what: str, path: object) -> Iterator[None]:
    """Raise ``OutputError`` for an ``OSError`` inside; ``what`` is the key or flag that names the path."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{what}: {path} cannot be written: {error.strerror or error}.") from error


class HfEfficientError(Exception):
    """An error that the user can correct; ``str(error)`` says what was wrong and what to write instead."""

    exit_code: int = 2


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a recipe. ``where``: file and line (``qlora.yaml:7``), or the flag (``command line:
    train.max_length=x``). ``key``: dotted path of the key, ``""`` where no single key is to blame."""

    where: str
    key: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        subject = f"{self.key}: " if self.key else ""
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{self.where}: {subject}{self.message}{remedy}"


class RecipeError(HfEfficientError):
    """A recipe that does not resolve; carries all of its problems at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class DataError(HfEfficientError):
    """A data source that cannot be read or trained on; names the file and the row."""


class ModelError(HfEfficientError):
    """A model, tokenizer, adapter or quantization that cannot be built."""


class OutputError(HfEfficientError):
    """An output directory that is occupied, unwritable, or lacks the checkpoint asked for."""


class SetupError(HfEfficientError):
    """This machine, or an installed package, lacks what the recipe asks for."""


class MissingPackageError(SetupError, ImportError):
    """A package that an extra of this one brings is not installed."""


class TrainingCheckError(HfEfficientError):
    """A check of the running training failed, so that continuing would waste the run."""


class PreflightError(HfEfficientError):
    """What a run would fail in later failed in a check before it."""

    exit_code = 1
