"""What a data file holds, from its first rows, before there is a recipe for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from hf_efficient.data.formats import convert, formats_of, recognise, rename
from hf_efficient.data.sources import Row, open_source
from hf_efficient.errors import DataError
from hf_efficient.recipe.load import looks_local
from hf_efficient.recipe.objectives import ObjectiveName
from hf_efficient.recipe.schema import SourceSection

_MOST_ROWS = 1000

# Names of columns that stand for a question and its answer where no format fits.
_PAIRS = (
    ("question", "answer"), ("question", "response"), ("query", "response"), ("query", "answer"),
    ("prompt", "response"), ("prompt", "answer"), ("instruction", "response"), ("instruction", "answer"),
    ("input", "output"),
)  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Of a data file: a ``format`` of ``formats.FORMATS``; the ``rows`` that were read, of which 1000 stands for 1000
    or more; renames that make the ``columns`` fit, empty where they do."""

    format: str
    objective: ObjectiveName
    rows: int
    columns: Mapping[str, str] = field(default_factory=dict)


def layout_of(path: str, key: str) -> Layout | None:
    """Read up to 1000 rows of a file, a folder or a builtin; None for a name on the hub, which is not read. ``key`` is
    what the errors begin with. Raises ``DataError``: no such file, no rows, a row that does not fit."""
    if not path.startswith("builtin:") and not Path(path).expanduser().exists() and not looks_local(path):
        return None
    try:
        rows = list(islice(open_source(SourceSection(path=path), key).rows(), _MOST_ROWS))
    except DataError as error:
        raise DataError(str(error).replace(f"{key}.path: ", f"{key}: ", 1)) from error
    name, objective, columns = _recognised(rows[0], key)
    for row in rows:
        convert(rename(row, columns), name)
    return Layout(name, objective, len(rows), columns)


def _recognised(row: Row, key: str) -> tuple[str, ObjectiveName, dict[str, str]]:
    held = set(row.value)
    objective: ObjectiveName = "dpo" if {"chosen", "rejected"} <= held else "sft"
    if isinstance(row.value.get("label"), bool) and {"prompt", "completion"} <= held:
        objective = "kto"
    fits = any(set(one.required) <= held for one in formats_of(objective).values())
    pair = next((pair for pair in _PAIRS if set(pair) <= held), None)
    if pair is not None and not fits:
        renamed = {ours: theirs for ours, theirs in zip(("prompt", "completion"), pair, strict=True) if ours != theirs}
        return "prompt_completion", objective, renamed
    try:
        return recognise(held, objective, f"{key} ({row.where})"), objective, {}
    except DataError as error:
        found = str(error).partition(" Rename with")[0]
        raise DataError(f"{found} Rename the columns of the file.") from error
