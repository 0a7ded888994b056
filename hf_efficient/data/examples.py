"""From the sources of a recipe to two canonical data sets: which examples, how often, for training and evaluation.

Before a run, or before there is a recipe, the first rows of a file tell what it holds. Where a recipe has
``data.pipeline``, its examples are those that ``hf-efficient prepare`` wrote.
"""

import random
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pyarrow as pa

from hf_efficient.data import formats
from hf_efficient.data.cache import hash_of, source_identity
from hf_efficient.data.sources import Piece, Row, Source, open_source
from hf_efficient.errors import DataError, Problem, RecipeError
from hf_efficient.recipe.load import looks_local
from hf_efficient.recipe.objectives import OBJECTIVES, ObjectiveName
from hf_efficient.recipe.schema import DataSection, PipelineSection, Recipe, SourceSection
from hf_efficient.records.prepared import MANIFEST_JSON

_FEW = 10  # examples; fewer of one source are reported
_CHUNK = 5000
_FIRST_ROWS = 1000  # that are read of a source before a run
_MOST_FAULTS = 5  # of these rows, that are named


@dataclass(frozen=True)
class RawData:
    """Canonical examples before tokenisation, each with its ``where``. ``kind`` is that of the training examples, and
    ``sizes`` their number by source (``data.train.0``), in the order in which they lie in ``train``."""

    train: datasets.Dataset
    eval: datasets.Dataset | None
    kind: formats.Kind
    sizes: dict[str, int]

    @property
    def small_sources(self) -> dict[str, int] | None:
        return {key: size for key, size in self.sizes.items() if size < _FEW} or None


@dataclass(frozen=True)
class Opened:
    """A source with its first row read, so that its layout is known."""

    source: Source
    format: str
    kind: formats.Kind
    rows: Iterator[Row]
    columns: Mapping[str, str]

    def piece(self, piece: Piece) -> Iterator[Row]:
        return (formats.rename(row, self.columns) for row in self.source.piece(piece))

    @property
    def name(self) -> str:
        return f"{self.source.key} ({self.source.section.path})"


def open_sources(data: DataSection) -> tuple[list[Source], list[Source]]:
    train = [open_source(section, f"data.train.{index}") for index, section in enumerate(data.train)]
    return train, [open_source(section, f"data.eval.{index}") for index, section in enumerate(data.eval)]


def build_raw(
    data: DataSection,
    sources: tuple[Sequence[Source], Sequence[Source]],
    seed: int,
    objective: ObjectiveName = "sft",
    completion_only: bool = False,
    text_column: str = "text",
) -> RawData:
    """Read, check, convert, split, weigh and cap; ``DataError`` for any fault of the data, with source and row. The
    held-out share is taken before the weights, so that no copy of an example is on both sides. ``completion_only``: the
    loss is on completions alone: chats are cut before the last answer, other layouts refused."""
    train = [peek(source, objective, text_column) for source in sources[0]]
    evaluation = [peek(source, objective, text_column) for source in sources[1]]
    kind = _target(train, completion_only, data.targets)
    for one in [*train, *evaluation]:
        if data.system is not None and one.kind not in formats.CHAT_KINDS:
            raise DataError(f"data.system: {one.name} has strings, not chats, so a system message cannot be put first.")
    parts = [_dataset(opened, kind, data.system) for opened in train]
    held: list[list[int]] = [[] for _ in parts]
    kept = [list(range(len(part))) for part in parts]
    if data.eval_fraction is not None and not evaluation:
        sizes = [len(part) for part in parts]
        sides = held_out(sum(sizes), data.eval_fraction, f"{seed}:eval_fraction")
        kept, held = (_divided(side, sizes) for side in sides)
    kept = _capped(_weighted(train, kept, f"{seed}:train"), data.max_train_examples, f"{seed}:max_train")
    trained = _joined(parts, kept)
    if evaluation:
        own = formats.common_kind({opened.name: opened.kind for opened in evaluation})
        # The training kind where the evaluation data can take it, so that both losses mean the same.
        own = kind if {own, kind} == {"messages", "chat_pair"} else own
        parts = [_dataset(opened, own, data.system) for opened in evaluation]
        held = _weighted(evaluation, [range(len(part)) for part in parts], f"{seed}:eval")
    held = _capped(held, data.max_eval_examples, f"{seed}:max_eval")
    by_source = {one.source.key: len(rows) for one, rows in zip(train, kept, strict=True)}
    return RawData(trained, _joined(parts, held) if any(held) else None, kind, by_source)


@dataclass(frozen=True)
class FirstRows:
    """The first ``rows`` of a source; ``whole``: there are no more. Those of the hub are not read: no ``format``."""

    path: str
    format: str | None = None
    rows: int = 0
    whole: bool = False


def check_first_rows(recipe: Recipe) -> dict[str, FirstRows]:
    """By source (``data.train.0``). Raises ``RecipeError``: of each source the faulty rows, the first five by name."""
    found: dict[str, FirstRows] = {}
    problems: list[Problem] = []
    for key, section in recipe.data.sources().items():
        faults: list[DataError] = []
        try:
            found[key] = _first_rows(section, key, recipe, faults)
        except DataError as error:
            faults.append(error)
        where = str(recipe.provenance.get(f"{key}.path", ""))
        problems += [Problem(where, "", str(one)) for one in faults[:_MOST_FAULTS]]
        if len(faults) > _MOST_FAULTS:
            problems.append(Problem(where, key, f"and {len(faults) - _MOST_FAULTS} more rows like these."))
    if problems:
        raise RecipeError(problems)
    return found


def _first_rows(section: SourceSection, key: str, recipe: Recipe, faults: list[DataError]) -> FirstRows:
    if not (section.path.startswith("builtin:") or Path(section.path).expanduser().exists()):
        return FirstRows(section.path)
    opened = peek(open_source(section, key), recipe.objective, recipe.train.get("dataset_text_field", "text"))
    rows = 0
    for row in islice(opened.rows, _FIRST_ROWS):
        try:
            formats.convert(row, opened.format)
        except DataError as error:
            faults.append(error)
        rows += 1
    return FirstRows(section.path, opened.format, rows, next(opened.rows, None) is None)


def peek(source: Source, objective: ObjectiveName, text_column: str) -> Opened:
    section, fitting = source.section, formats.formats_of(objective)
    formats.check_columns(section.columns, section.format, f"{source.key}.columns")
    if section.format != "auto" and section.format not in fitting:
        does_not = f"{section.format} does not go with `objective: {objective}`"
        raise DataError(f"{source.key}.format: {does_not}, which reads {', '.join(fitting)}.")
    rows = source.rows()
    first = next(rows)
    columns = dict(section.columns)
    if "text" not in columns and section.format in ("text", "auto") and text_column in first.value:
        columns |= {"text": text_column} if text_column != "text" else {}
    renamed = formats.rename(first, columns)
    name: str = section.format
    if name == "auto":
        name = formats.recognise(renamed.value, objective, f"{source.key} ({first.where})")
    all_rows = (formats.rename(row, columns) for row in chain([first], rows))
    kind = formats.kind_of(formats.convert(renamed, name))
    if OBJECTIVES[objective].generates:
        kind = formats.without_answer(kind)
    return Opened(source, name, kind, all_rows, columns)


def _target(train: Sequence[Opened], completion_only: bool, targets: str | None) -> formats.Kind:
    kind = formats.common_kind({opened.name: opened.kind for opened in train})
    if targets == "assistant" and kind == "chat_pair":
        return "messages"
    if not completion_only and targets != "last":
        return kind
    if kind == "text":
        key = "data.targets: last" if targets == "last" else "train.completion_only_loss"
        raise DataError(
            f"{key}: {train[0].name} is plain text, which has no completion. Leave it out, or use a layout with prompt "
            "and completion."
        )
    return "chat_pair" if kind == "messages" else kind


def _dataset(opened: Opened, kind: formats.Kind, system: str | None) -> datasets.Dataset:
    """All rows in one Arrow table, built in chunks: several gigabytes of text would overflow one."""
    schema, tables = formats.features_of(kind).arrow_schema, []

    def canonical(row: Row) -> dict[str, Any]:
        held = formats.recast(formats.convert(row, opened.format), kind, row.where)
        return {**(held if system is None else formats.add_system(held, system)), "where": row.where}

    rows = map(canonical, opened.rows)
    while chunk := list(islice(rows, _CHUNK)):
        tables.append(pa.Table.from_pylist(chunk, schema=schema))
    return datasets.Dataset(pa.concat_tables(tables))


def _weighted(opened: Sequence[Opened], rows: Sequence[Sequence[int]], seed: str) -> list[list[int]]:
    both = enumerate(zip(opened, rows, strict=True))
    return [weighted(own, one.source.section.weight, f"{seed}:{index}") if own else [] for index, (one, own) in both]


def _capped(rows: list[list[int]], most: int | None, seed: str) -> list[list[int]]:
    total = sum(map(len, rows))
    if most is None or most >= total:
        return rows
    chosen = _divided(_drawn(range(total), most, seed), list(map(len, rows)))
    return [[own[index] for index in part] for own, part in zip(rows, chosen, strict=True)]


def _divided(indices: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    starts = list(accumulate(sizes, initial=0))
    places = [bisect_left(indices, start) for start in starts]
    bounds = zip(starts, places, places[1:], strict=False)
    return [[index - start for index in indices[first:last]] for start, first, last in bounds]


def _joined(parts: Sequence[datasets.Dataset], indices: Sequence[Sequence[int]]) -> datasets.Dataset:
    return datasets.concatenate_datasets([part.select(rows) for part, rows in zip(parts, indices, strict=True) if rows])


def weighted(indices: Sequence[int], weight: float, seed: str) -> list[int]:
    """The indices of an epoch: ``floor(weight)`` copies, then a random ``weight % 1`` of them; at least one in all."""
    copies = int(weight)
    rest = round((weight - copies) * len(indices))
    return list(indices) * copies + _drawn(indices, rest if copies else max(rest, 1), seed)


def held_out(count: int, fraction: float, seed: str) -> tuple[list[int], list[int]]:
    """A random split of ``range(count)`` into training and evaluation indices, both at least one, each in order."""
    if count < 2:
        raise DataError(
            f"data.eval_fraction: {fraction} of {count} example cannot be held out: both sides need at least one. "
            "Name a data.eval source, or give more data."
        )
    evaluation = _drawn(range(count), min(max(round(fraction * count), 1), count - 1), seed)
    chosen = set(evaluation)
    return [index for index in range(count) if index not in chosen], evaluation


def _drawn(indices: Sequence[int], count: int, seed: str) -> list[int]:
    positions = random.Random(f"hf_efficient:{seed}").sample(range(len(indices)), count)
    return [indices[position] for position in sorted(positions)]


# Names of columns that stand for a question and its answer where no format fits.
_PAIRS = (
    ("question", "answer"), ("question", "response"), ("query", "response"), ("query", "answer"),
    ("prompt", "response"), ("prompt", "answer"), ("instruction", "response"), ("instruction", "answer"),
    ("input", "output"),
)  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Of a data file. ``rows``: that were read; 1000 stands for 1000 or more. ``columns``: renames that make it fit."""

    format: str
    objective: ObjectiveName
    rows: int
    columns: Mapping[str, str] = field(default_factory=dict)


def layout_of(path: str, key: str, columns: Mapping[str, str] | None = None) -> Layout | None:
    """Read up to 1000 rows of a file, a folder or a builtin; None for a name on the hub, which is not read. ``key`` is
    what the errors begin with. ``columns``: the file's names by ours, where known. Raises ``DataError``: no such file,
    no rows, a row that does not fit."""
    if not path.startswith("builtin:") and not Path(path).expanduser().exists() and not looks_local(path):
        return None
    try:
        rows = list(islice(open_source(SourceSection(path=path), key).rows(), _FIRST_ROWS))
    except DataError as error:
        raise DataError(str(error).replace(f"{key}.path: ", f"{key}: ", 1)) from error
    formats.check_columns(columns or {}, "auto", "--columns")
    name, objective, found = _recognised(formats.rename(rows[0], columns or {}), key)
    columns = columns or found
    for row in rows:
        formats.convert(formats.rename(row, columns), name)
    return Layout(name, objective, len(rows), columns)


def _recognised(row: Row, key: str) -> tuple[str, ObjectiveName, dict[str, str]]:
    held = set(row.value)
    objective: ObjectiveName = "dpo" if {"chosen", "rejected"} <= held else "sft"
    if isinstance(row.value.get("label"), bool) and {"prompt", "completion"} <= held:
        objective = "kto"
    fits = any(set(one.required) <= held for one in formats.formats_of(objective).values())
    pair = next((pair for pair in _PAIRS if set(pair) <= held), None)
    if pair is not None and not fits:
        renamed = {ours: theirs for ours, theirs in zip(("prompt", "completion"), pair, strict=True) if ours != theirs}
        return "prompt_completion", objective, renamed
    try:
        return formats.recognise(row.value, objective, f"{key} ({row.where})"), objective, {}
    except DataError as error:
        found, _, hint = str(error).partition(" Rename with")
        pairs = hint.partition("{")[2].partition("}")[0].replace(": ", "=").replace(", ", ",")
        raise DataError(f"{found} Write, for instance, --columns {pairs}.") from error


FORMAT_VERSION = 1  # raised whenever the same sources and options would give another data set

_BY_CONTENT: Any = {  # sources by what they hold, not by their paths; and not how the work is cut
    "contamination": {"against"}, "quality": {"classifier": {"good", "bad"}}, "executor": True,
}  # fmt: skip


class NotPreparedError(DataError):
    """The recipe's data set is missing, or its sources or options have changed since."""


class Version(NamedTuple):
    """Of a data set: its folder, there once it is whole, and the hash of the ``facts`` that decide what is in it."""

    folder: Path
    key: str
    facts: dict[str, Any]

    @property
    def is_there(self) -> bool:
        return (self.folder / MANIFEST_JSON).is_file()


def recipe_sources(recipe: Recipe) -> tuple[list[Source], list[Source]]:
    """The sources to train and evaluate on: with `data.pipeline` the prepared set. Raises ``NotPreparedError``."""
    sources = open_sources(recipe.data)
    if recipe.data.pipeline is None:
        return sources
    version = version_of(recipe, recipe.data.pipeline, sources)
    if not version.is_there:
        root = version.folder.parent
        why = f"{root} holds no data set of these sources and options" if root.is_dir() else f"there is no {root} yet"
        raise NotPreparedError(f"data.pipeline: {why}. Run `hf-efficient prepare {recipe.path or 'RECIPE'}` first.")
    train, held_out = version.folder / "train", version.folder / "eval"
    own = [open_source(SourceSection(path=str(held_out)), "data.eval.0")] if held_out.is_dir() else sources[1]
    return [open_source(SourceSection(path=str(train)), "data.train.0")], own


def version_of(
    recipe: Recipe, pipeline: PipelineSection, sources: tuple[Sequence[Source], Sequence[Source]]
) -> Version:
    """The version that these contents of the sources, these options and this tokenizer's name make."""
    named = named_sets(pipeline)
    asks = pipeline.quality is not None or pipeline.synthetic is not None
    facts = {
        "format": FORMAT_VERSION,
        "sources": [[source_identity(one) for one in side] for side in (*sources, *named.values())],
        "model": [recipe.model.id, recipe.model.revision] if asks else None,
        "pipeline": pipeline.model_dump(mode="json", exclude=_BY_CONTENT),
        "eval_fraction": recipe.data.eval_fraction,
        "objective": recipe.objective,
        "text": recipe.train.get("dataset_text_field", "text"),
        "tokenizer": [recipe.model.tokenizer or recipe.model.id, recipe.model.revision],
        "template": [recipe.train.get("chat_template_path"), recipe.data.system],
    }
    root = Path(recipe.data.prepared_dir or f"prepared/{recipe.name}").expanduser()
    key = hash_of(facts)
    return Version(root / key[:16], key, facts)


def named_sets(pipeline: PipelineSection) -> dict[str, list[Source]]:
    """Further sources that stages read, by their key below ``data.pipeline``."""
    named = {"contamination.against": pipeline.contamination.against}
    if pipeline.quality is not None and (classifier := pipeline.quality.classifier) is not None:
        named |= {"quality.classifier.good": classifier.good, "quality.classifier.bad": classifier.bad}
    return {
        key: [open_source(one, f"data.pipeline.{key}.{number}") for number, one in enumerate(sections)]
        for key, sections in named.items()
    }
