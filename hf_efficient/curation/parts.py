"""The stages that judge each row by itself, over parts of the sources: one part after the other in this process, or in
tasks that an executor of datatrove starts on this machine, on Slurm or on Ray. A finished part is not done again."""

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hf_efficient.curation.funnel import StageCount
from hf_efficient.curation.private_data import replace_private
from hf_efficient.curation.rows import LARGEST, Gone, Row, chunks, count_tokens, encoded, source_rows
from hf_efficient.curation.stages import Judge, Rows, Stage, stages_of
from hf_efficient.data.documents import needed
from hf_efficient.data.examples import Opened, open_sources, peek
from hf_efficient.data.formats import common_kind
from hf_efficient.data.sources import Piece
from hf_efficient.errors import DataError, HfEfficientError, SetupError, cause
from hf_efficient.facts.environment import end_with_parent
from hf_efficient.recipe.schema import ExecutorSection, Recipe
from hf_efficient.run_dir.json_file import write_whole

_PART_BYTES, _FEWEST_PARTS, _MOST_PARTS = 32 << 20, 20, 10_000
_ROWS, _COUNTS, _FAULT = "rows.jsonl", "counts.json", "fault.txt"
_EXECUTORS = {"local": "LocalPipelineExecutor", "slurm": "SlurmPipelineExecutor", "ray": "RayPipelineExecutor"}
_SECONDS_BETWEEN_LOOKS = {"local": 0.2, "slurm": 10.0, "ray": 0.5}

Part = list[tuple[int, Piece]]
"""Pieces of sources, each with the number of its source."""
Told = Callable[[int, int | None], object]
"""Told how much is done, and of how much where that is known."""
Public = Callable[[str], str]
"""Takes private data out of samples, where the recipe takes them out of rows."""


def open_train(recipe: Recipe) -> list[Opened]:
    """The training sources, each with its first row read."""
    column = recipe.train.get("dataset_text_field", "text")
    return [peek(one, recipe.objective, column) for one in open_sources(recipe.data)[0]]


def parts_of(opened: Sequence[Opened]) -> list[Part]:
    """All rows in order, cut alike in every process; a part is at most some 32 MB of a file, or several small files."""
    total = sum(path.stat().st_size for one in opened for path in one.source.files)
    size = max(min(_PART_BYTES, max(total // _FEWEST_PARTS, 1 << 20)), total // _MOST_PARTS)
    parts: list[Part] = []
    held = size
    for number, one in enumerate(opened):
        for piece in one.source.pieces(size):
            if held >= size:
                parts.append([])
                held = 0
            parts[-1].append((number, piece))
            held += piece.size
    return parts


def judged_chunk(
    stage: StageCount, judge: Judge, rows: Sequence[Row], tokenise: Callable[[Sequence[Row]], object], public: Public
) -> list[Row | Gone]:
    """What a stage makes of rows that come together, counted; a changed row gets its new count of tokens."""
    judged = [judge(stage.rows_in + index, row) for index, row in enumerate(rows)]
    tokenise([one for one, row in zip(judged, rows, strict=True) if isinstance(one, Row) and one is not row])
    judged = [one if isinstance(one, Gone) or one.text.strip() else Gone("nothing is left") for one in judged]
    stage.add(rows, judged, public)
    return judged


class RowWork:
    """What becomes of each part, in a folder of its own: the rows that stay, and what each stage did. It is pickled to
    other processes, and is a step of a datatrove pipeline."""

    def __init__(self, recipe: Recipe, tokenizer: Any, folder: Path, parts: list[Part], stages: list[str]) -> None:
        self.recipe, self.tokenizer, self.folder, self.parts, self.stages = recipe, tokenizer, folder, parts, stages

    def __repr__(self) -> str:
        return f"hf-efficient prepare: {', '.join(self.stages)}"

    def __call__(self, data: object = None, rank: int = 0, world_size: int = 1) -> None:
        """The parts of one task, as datatrove calls it."""
        try:
            for _ in self.run(range(rank, len(self.parts), world_size)):
                pass
        except HfEfficientError as error:
            write_whole(self.folder / _FAULT, str(error))
            raise

    @property
    def done(self) -> list[Path]:
        """The finished parts, in order."""
        return sorted(self.folder.glob(f"[0-9]*/{_COUNTS}"))

    def result(self) -> tuple[list[Path], list[StageCount]]:
        """The rows that stay, in order, and what each stage did to all."""
        sums, *others = self.counts()
        for counts in others:
            for whole, own in zip(sums, counts, strict=True):
                whole.join(own)
        return [path.with_name(_ROWS) for path in self.done], sums

    def counts(self) -> Iterator[list[StageCount]]:
        return (msgspec.json.decode(path.read_bytes(), type=list[StageCount]) for path in self.done)

    def run(self, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Work on the parts that are not done; tell part and count of rows after each chunk."""
        assert self.recipe.data.pipeline is not None
        left = [number for number in numbers if not (self.folder / f"{number:05}" / _COUNTS).is_file()]
        opened = open_train(self.recipe) if left else []
        stages = [Stage("read", lambda _: _read), *stages_of(self.recipe.data.pipeline)] if left else []
        judges = [(one.name, one.judge(Rows(lambda: iter(())))) for one in stages if one.name in self.stages]
        for number in left:
            yield from ((number, told) for told in self._part(number, opened, judges))

    def _part(self, number: int, opened: Sequence[Opened], judges: Sequence[tuple[str, Judge]]) -> Iterator[int]:
        folder = self.folder / f"{number:05}"
        folder.mkdir(exist_ok=True)
        counts, public = [StageCount(name) for name, _ in judges], public_of(self.recipe)
        draft = folder / f".{_ROWS}.{os.getpid()}"
        with draft.open("wb") as file:
            for rows in self._chunks(number, opened, counts[0]):
                told = len(rows)
                for count, (_, judge) in zip(counts, judges, strict=True):
                    began = time.perf_counter()
                    judged = judged_chunk(count, judge, rows, self._tokenise, public)
                    count.seconds += time.perf_counter() - began
                    rows = [one for one in judged if isinstance(one, Row)]
                file.write(encoded(rows))
                yield told
        draft.replace(folder / _ROWS)
        write_whole(folder / _COUNTS, msgspec.json.encode(counts).decode())

    def _chunks(self, number: int, opened: Sequence[Opened], count: StageCount) -> Iterator[list[Row]]:
        kind = common_kind({one.name: one.kind for one in opened})
        for source, piece in self.parts[number]:
            found = chunks(source_rows(source, opened[source], opened[source].piece(piece), kind))
            began = time.perf_counter()
            for rows in found:
                self._tokenise(rows)
                count.seconds += time.perf_counter() - began
                yield rows
                began = time.perf_counter()

    def _tokenise(self, rows: Sequence[Row]) -> None:
        count_tokens(rows, self.tokenizer, self.recipe.data.system)


def public_of(recipe: Recipe) -> Public:
    section = recipe.data.pipeline.private_data if recipe.data.pipeline else None
    if section is None:
        return str
    options = section.model_dump(exclude={"action"})
    return lambda text: replace_private(text, **options)[0]


def _read(_: int, row: Row) -> Row | Gone:
    if len(row.text) > LARGEST:
        return Gone(f"more than {LARGEST:,} characters")
    return row if row.text else Gone("empty")


def run_here(work: RowWork, tell: Told) -> None:
    """One part after the other; all rows are guessed from the parts that are done."""
    rows = sum(counts[0].rows_in for counts in work.counts())
    for number, told in work.run(range(len(work.parts))):
        rows += told
        tell(rows, rows * len(work.parts) // number if number else None)


def run_by_executor(work: RowWork, section: ExecutorSection, name: str, tell: Told) -> None:
    """In tasks of a datatrove executor, which a process of its own starts, since it logs much; waits for all parts.
    Raises ``SetupError``: datatrove refuses its options; ``DataError``: what a task said, or tasks ended without parts.
    """
    tasks = min(section.tasks or len(work.parts), len(work.parts))
    log = work.folder / f"{section.kind}-{tasks}"
    log.mkdir(parents=True, exist_ok=True)
    (work.folder / _FAULT).unlink(missing_ok=True)
    executor = _executor(work, section, tasks, name, log)
    pickled = log / "launch.pik"
    with pickled.open("wb") as file:
        needed("dill").dump(executor, file)
    command = [sys.executable, "-m", "datatrove.tools.launch_pickled_pipeline", str(pickled)]
    queued = section.kind == "slurm" and _is_queued(name)
    with (log / "launch.log").open("wb") as out:
        own: Any = {"preexec_fn": functools.partial(end_with_parent, signal.SIGTERM)}  # which ends its own helpers
        process = None if queued else subprocess.Popen(command, stdout=out, stderr=out, **own)
        try:
            while not _is_done(work, process, section.kind, name, log, tell):
                time.sleep(_SECONDS_BETWEEN_LOOKS[section.kind])
            if process is not None:
                process.wait()  # it ends its own helpers
        finally:
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait()


def _is_done(
    work: RowWork, process: "subprocess.Popen[bytes] | None", kind: str, name: str, log: Path, tell: Told
) -> bool:
    works = (process is not None and process.poll() is None) or (kind == "slurm" and _is_queued(name))
    done = len(work.done)
    tell(done, len(work.parts))
    if done == len(work.parts) or works:
        return done == len(work.parts)
    fault = work.folder / _FAULT
    if fault.is_file():
        raise DataError(fault.read_text(encoding="utf-8"))
    missing = f"{len(work.parts) - done} of {len(work.parts)} parts are not done, and no task works on them"
    told = (log / "launch.log").read_text(encoding="utf-8", errors="replace").splitlines()
    said = next((f" ({line.strip()})" for line in told if "error: " in line), "")
    raise DataError(f"data.pipeline.executor: {missing}{said}. Read {log}/launch.log and {log}/logs, and start again.")


def _executor(work: RowWork, section: ExecutorSection, tasks: int, name: str, log: Path) -> Any:
    kind = getattr(needed(f"datatrove.executor.{section.kind}"), _EXECUTORS[section.kind])
    workers = section.workers or (os.cpu_count() or 1 if section.kind == "local" else -1)
    options = {"job_name": name} if section.kind == "slurm" else {}
    try:
        return kind([work], tasks=tasks, workers=workers, logging_dir=str(log), **{**options, **section.options})
    except TypeError as error:
        raise SetupError(f"data.pipeline.executor.options: datatrove's {kind.__name__}: {cause(error)}.") from error


def _is_queued(name: str) -> bool:
    """Whether a job of this name waits or runs, other than one whose dependency can never be satisfied."""
    command = ["squeue", "--noheader", f"--name={name}", "--format=%r"]
    try:
        reasons = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    except FileNotFoundError as error:
        raise SetupError(
            "data.pipeline.executor.kind: slurm: there is no squeue here. Start this on a login node."
        ) from error
    except subprocess.CalledProcessError:  # a controller that does not answer now
        return True
    return any(one != "DependencyNeverSatisfied" for one in reasons)
