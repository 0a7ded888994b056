"""The room's door: a recipe with `data.pipeline` in, a version of its data set out, written whole or not at all.

First come the stages that judge each row by itself, part by part (``parts.py``); each later one reads the rows of the
one before from a file. A run that was killed goes on at the part or stage that it did not finish. Stages decide by
rows and seed alone, so the rows that stay are the same.
"""

import functools
import heapq
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from filelock import FileLock

from hf_efficient.curation import parts
from hf_efficient.curation.asked import Kept
from hf_efficient.curation.funnel import StageCount
from hf_efficient.curation.rows import (
    Gone,
    Row,
    chunks,
    count_tokens,
    encoded,
    order_of,
    read_rows,
    source_rows,
    write_parquet,
)
from hf_efficient.curation.stages import Judge, Rows, Stage, contamination, stages_of
from hf_efficient.data.examples import Opened, Version, named_sets, open_sources, peek, version_of
from hf_efficient.data.formats import Kind, common_kind
from hf_efficient.data.sources import Source
from hf_efficient.errors import DataError, writing
from hf_efficient.facts.environment import is_installed
from hf_efficient.recipe import schema
from hf_efficient.recipe.schema import PipelineSection, Recipe, SyntheticSection
from hf_efficient.records import prepared
from hf_efficient.records.prepared import SYNTHETIC, PreparedSource, StageFunnel
from hf_efficient.run_dir.json_file import read_record, strict_json, write_whole
from hf_efficient.version import __version__

KEPT_FILE = ".models.sqlite"  # what models answered and scored, beside the versions: other options ask again for less
_PACKAGES = ("datasets", "datatrove", "ftfy", "py3langid", "pyarrow", "tokenizers", "trafilatura", "transformers")
_TOLD_ROWS = 500
_BUCKET_BYTES = 64 << 20  # of rows that are sorted in memory together
_MOST_BUCKETS = 500  # files that are open together
_ORDERS = 1 << 64

Progress = Callable[[str, int, int | None, StageFunnel | None], object]
"""Told the stage, its rows so far and in all, None while they are read, and what it did, once it is done."""


class Prepared(NamedTuple):
    """A version of a data set; ``fresh``: it was there already."""

    folder: Path
    manifest: prepared.PreparedSet
    fresh: bool


def prepare(recipe: Recipe, tokenizer: Any, progress: Progress) -> Prepared:
    """Run the recipe's pipeline, or find what it made of the same sources, options and tokenizer. Of several processes
    one works, and the others wait. Raises ``DataError``: a fault of the data, no pipeline, nothing that stays."""
    pipeline = recipe.data.pipeline
    if pipeline is None:
        raise DataError("data.pipeline: is not set. Write `data.pipeline: {}` for the stages by default.")
    sources = open_sources(recipe.data)
    found = version_of(recipe, pipeline, sources)
    root = found.folder.parent
    with writing("data.prepared_dir", root):
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / ".lock"):
            fresh = found.is_there
            if not fresh:
                _Run(recipe, pipeline, tokenizer, found, progress).write(sources[1])
    path = found.folder / prepared.MANIFEST_JSON
    manifest = read_record(path, prepared.PreparedSet, prepared.MANIFEST_VERSION, "the manifest of a data set")
    return Prepared(found.folder, manifest, fresh)


@dataclass
class _Run:
    recipe: Recipe
    pipeline: PipelineSection
    tokenizer: Any
    version: Version
    progress: Progress
    stages: list[StageFunnel] = field(default_factory=list)

    @property
    def work(self) -> Path:
        return self.version.folder.with_name(f".work-{self.version.folder.name}")

    def write(self, evaluation: Sequence[Source]) -> None:
        for other in self.work.parent.glob(".work-*"):  # of sources or options that have changed since
            if other != self.work:
                shutil.rmtree(other, ignore_errors=True)
        self.work.mkdir(exist_ok=True)
        opened = parts.open_train(self.recipe)
        kind = common_kind({one.name: one.kind for one in opened})
        stages = stages_of(self.pipeline)
        by_row = list(itertools.takewhile(lambda one: one.by_row, stages))
        rows = self._by_row(opened, ["read", *(one.name for one in by_row)])
        last = self._quality()
        for stage in [*stages[len(by_row) :], *last]:
            rows = self._staged(stage, rows)
        held = self.work / "held_out.jsonl"
        if not evaluation and self.recipe.data.eval_fraction is not None:
            rows = self._staged(Stage(prepared.HELD_OUT, self._draw(self.recipe.data.eval_fraction)), rows, held)
        if evaluation or held.is_file() or self.pipeline.contamination.against:
            texts = functools.partial(self._evaluation_texts, evaluation, held)
            last.append(contamination(self.pipeline.contamination, texts))
            rows = self._staged(last[-1], rows)
        epochs, written = self._epochs(rows, opened), list[Path]()
        if self.pipeline.synthetic is not None:
            written = self._synthesised(self.pipeline.synthetic, rows, epochs, kind, [*stages, *last])
        self._publish(rows, written, epochs, held if held.is_file() else None, opened, kind)

    def _epochs(self, rows: Sequence[Path], opened: Sequence[Opened]) -> list[float]:
        tokens = [0] * len(opened)
        for row in self._told("blend, first look", read_rows(rows), self.stages[-1].rows_out):
            tokens[row.source] += row.tokens
        return epochs_of(self.pipeline.blend, [one.source.section.weight for one in opened], tokens)

    def _synthesised(
        self, section: SyntheticSection, real: Sequence[Path], epochs: Sequence[float], kind: Kind, stages: list[Stage]
    ) -> list[Path]:
        """The file of the synthetic rows that all stages left; they are trained on once. Copies go in any case."""
        from hf_efficient.curation.synthetic import Writer, after, diversity

        count, seed = self.stages[-1].rows_out, self.pipeline.seed
        trained = sum(copies(row, epochs, seed) for row in read_rows(real))
        room = int(section.max_share / (1 - section.max_share) * trained + 1e-9)
        writer = Writer(self.recipe, section, self.kept, kind, len(epochs), seed, room)
        drafts = functools.partial(self._told, "synthetic, written", total=writer.count, every=1)
        out = [self._ran(SYNTHETIC, lambda: self._tokenised(drafts(writer.rows(real))), writer.judge)]
        near = self.pipeline.near_duplicates or schema.NearDuplicatesSection(shingle_words=3, bands=20, rows=5)
        always = PipelineSection(
            normalise=None,
            exact_duplicates=self.pipeline.exact_duplicates or schema.ExactDuplicatesSection(),
            near_duplicates=near.model_copy(update={"keep": "first"}),  # which is always the real one
        )
        copies_go = {one.name: one for one in stages_of(always)}
        for stage in [*(copies_go.pop(one.name, one) for one in stages), *copies_go.values()]:
            out = self._staged(after(stage, real, count), out)
        return self._staged(diversity(section, real, seed), out)

    @functools.cached_property
    def kept(self) -> Kept:
        return Kept(self.version.folder.with_name(KEPT_FILE))

    def _quality(self) -> list[Stage]:
        if self.pipeline.quality is None:
            return []
        from hf_efficient.curation.quality import quality_stages

        named = named_sets(self.pipeline)
        return quality_stages(self.recipe, self.pipeline.quality, self.kept, lambda key: self._texts_of(named[key]))

    def _by_row(self, opened: Sequence[Opened], names: list[str]) -> Sequence[Path]:
        (self.work / "parts").mkdir(exist_ok=True)
        work = parts.RowWork(self.recipe, self.tokenizer, self.work / "parts", parts.parts_of(opened), names)
        label = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        self.progress(label, 0, None, None)
        if self.pipeline.executor is None:
            parts.run_here(work, lambda rows, total: self.progress(label, rows, total, None))
        else:
            name = f"prepare-{self.version.key[:16]}"
            tell = functools.partial(self.progress, f"parts, {label}")
            parts.run_by_executor(work, self.pipeline.executor, name, lambda done, total: tell(done, total, None))
        paths, counts = work.result()
        for count in counts:
            self._done(count.funnel())
        return paths

    def _evaluation_texts(self, evaluation: Sequence[Source], held: Path) -> Iterator[str]:
        yield from self._texts_of([*evaluation, *named_sets(self.pipeline)["contamination.against"]])
        if held.is_file():
            yield from (row.text for row in read_rows([held]))

    def _texts_of(self, sources: Iterable[Source]) -> Iterator[str]:
        for source in sources:
            opened = peek(source, self.recipe.objective, self.recipe.train.get("dataset_text_field", "text"))
            yield from (row.text for row in source_rows(0, opened, opened.rows, opened.kind))

    def _count(self, rows: Sequence[Row]) -> None:
        count_tokens(rows, self.tokenizer, self.recipe.data.system)

    def _draw(self, fraction: float) -> Callable[[Rows], Judge]:
        def judge_of(rows: Rows) -> Judge:
            orders = [order_of(self.pipeline.seed, "held out", text) for text in rows.texts()]
            if len(orders) < 2:
                raise DataError("data.eval_fraction: of one row nothing can be held out. Name a data.eval source.")
            count = min(max(round(fraction * len(orders)), 1), len(orders) - 1)
            chosen = set(heapq.nsmallest(count, range(len(orders)), key=orders.__getitem__))
            return lambda index, row: Gone("held out for evaluation") if index in chosen else row

        return judge_of

    def _tokenised(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self._count([row])
            yield row

    def _staged(self, stage: Stage, before: Sequence[Path], removed: Path | None = None) -> list[Path]:
        out = self._ran(stage.name, lambda: read_rows(before), stage.judge, removed)
        for path in before:
            path.unlink(missing_ok=True)
        return [out]

    def _ran(
        self,
        name: str,
        rows: Callable[[], Iterator[Row]],
        judge_of: Callable[[Rows], Judge],
        removed: Path | None = None,
    ) -> Path:
        """The file of the rows that stay, by an earlier start or now; the others go to ``removed``, if any."""
        out = self.work / f"{len(self.stages):02}-{name}.jsonl"
        done = out.with_suffix(".json")
        if done.is_file():
            funnel = msgspec.json.decode(done.read_bytes(), type=StageFunnel)
        else:
            total = self.stages[-1].rows_out
            begun, count, public = time.perf_counter(), StageCount(name), parts.public_of(self.recipe)
            arriving = Rows(lambda: self._told(f"{name}, first look", rows(), total))
            judge = judge_of(arriving)
            self.progress(name, 0, total, None)
            with out.open("wb") as file, (removed or Path(os.devnull)).open("wb") as others:
                for chunk in chunks(rows()):
                    judged = parts.judged_chunk(count, judge, chunk, self._count, public)
                    file.write(encoded(one for one in judged if isinstance(one, Row)))
                    others.write(encoded(row for row, one in zip(chunk, judged, strict=True) if isinstance(one, Gone)))
                    self.progress(name, count.rows_in, total, None)
            count.seconds, count.notes, count.usd = time.perf_counter() - begun, arriving.notes, arriving.usd
            funnel = count.funnel()
            write_whole(done, strict_json(funnel))
        self._done(funnel)
        return out

    def _done(self, funnel: StageFunnel) -> None:
        self.stages.append(funnel)
        self.progress(funnel.name, funnel.rows_in, funnel.rows_in, funnel)

    def _told(self, label: str, rows: Iterable[Row], total: int, every: int = _TOLD_ROWS) -> Iterator[Row]:
        self.progress(label, 0, total, None)
        for number, row in enumerate(rows, start=1):
            if number % every == 0:
                self.progress(label, number, total, None)
            yield row

    def _publish(
        self,
        real: Sequence[Path],
        written: Sequence[Path],
        epochs: Sequence[float],
        held: Path | None,
        opened: Sequence[Opened],
        kind: Kind,
    ) -> None:
        begun, draft = time.perf_counter(), self.work / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        before = [next(one for one in reversed(self.stages) if not one.is_synthetic), *self.stages[-1:] * len(written)]
        named = [(one.name, one.source.key, one.source.section.path) for one in opened]
        if (section := self.pipeline.synthetic) is not None:
            model, key = section.by.model or section.by.url or self.recipe.model.id, f"data.pipeline.{SYNTHETIC}"
            named.append((f"{key} ({model})", key, model))
            epochs = [*epochs, 1.0]
        names, rows_in = [name for name, _, _ in named], sum(one.rows_out for one in before)
        rows = self._told("blend", blended([*real, *written], epochs, self.pipeline.seed), rows_in)
        sums = write_parquet(draft / "train" / "rows.parquet", rows, kind, names)
        if held is not None:
            write_parquet(draft / "eval" / "rows.parquet", read_rows([held]), kind, names)
        sources = [PreparedSource(*one[1:], *sums[number], epochs[number]) for number, one in enumerate(named)]
        out = (sum(one.rows for one in sources), sum(one.tokens for one in sources))
        seconds, tokens_in = round(time.perf_counter() - begun, 3), sum(one.tokens_out for one in before)
        self._done(StageFunnel("blend", rows_in, out[0], tokens_in, out[1], seconds))
        write_whole(draft / prepared.MANIFEST_JSON, strict_json(self._manifest(sources)))
        shutil.rmtree(self.version.folder, ignore_errors=True)  # without a manifest
        draft.replace(self.version.folder)
        shutil.rmtree(self.work, ignore_errors=True)  # a task of an executor that was killed may still write

    def _manifest(self, sources: list[PreparedSource]) -> prepared.PreparedSet:
        return prepared.PreparedSet(
            schema_version=prepared.MANIFEST_VERSION,
            key=self.version.key,
            recipe=self.recipe.name,
            written=datetime.now().astimezone().isoformat(timespec="seconds"),
            rows=self.stages[-1].rows_out,
            tokens=self.stages[-1].tokens_out,
            seconds=round(sum(one.seconds for one in self.stages), 3),
            sources=sources,
            stages=self.stages,
            versions={"hf_efficient": __version__, **{name: version(name) for name in _PACKAGES if is_installed(name)}},
            facts=self.version.facts,
        )


def epochs_of(blend: schema.BlendSection, weights: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """How often each row of a source is seen. By temperature T the share of a source with n tokens is n^(1/T) of the
    sum of all, and the data set has as many tokens as without it."""
    if blend.temperature is None:
        return list(weights)
    scaled = [count ** (1 / blend.temperature) for count in tokens]
    total, whole = sum(tokens), sum(scaled)
    return [total * one / whole / count if count else 0.0 for one, count in zip(scaled, tokens, strict=True)]


def copies(row: Row, epochs: Sequence[float], seed: int) -> int:
    """How often a row is in the data set: whole epochs, and for the rest of one the rows with the lowest hashes."""
    whole, rest = divmod(epochs[row.source], 1)
    return int(whole) + (order_of(seed, "part", row.id) / _ORDERS < rest)


def blended(rows: Sequence[Path], epochs: Sequence[float], seed: int) -> Iterator[Row]:
    """All copies of each row, in the order of a hash of seed, row and copy, by buckets that fit into memory."""
    count = min(-(-sum(path.stat().st_size for path in rows) // _BUCKET_BYTES), _MOST_BUCKETS)
    encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(tuple[int, Row])
    with tempfile.TemporaryDirectory(dir=rows[0].parent) as folder, ExitStack() as opened:
        paths = [Path(folder) / str(number) for number in range(count)]
        files = [opened.enter_context(path.open("wb")) for path in paths]
        for row in read_rows(rows):
            for copy in range(copies(row, epochs, seed)):
                order = order_of(seed, "order", row.id, copy)
                files[order * count // _ORDERS].write(encoder.encode((order, row)) + b"\n")
        opened.close()
        for path in paths:
            with path.open("rb") as file:
                placed = sorted(map(decoder.decode, file), key=lambda one: one[0])
            yield from (row for _, row in placed)
