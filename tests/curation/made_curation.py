"""Recipes with a pipeline, and what became of their rows."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hf_efficient.curation.pipeline import Prepared
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.prepared import StageFunnel

PLAIN = {"normalise": {"fix_encoding": False}}
"""Stages that need no package of the extra."""


class Heard:
    """What a progress was told."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[StageFunnel] = []

    def __call__(self, stage: str, rows: int, total: int | None, done: StageFunnel | None) -> None:
        self.begun += [stage] * (rows == 0)
        self.ended += [done] if done else []


class Curated:
    """A data set made from rows of text; ``texts`` in the order in which they are trained on."""

    def __init__(self, done: Prepared, heard: Heard) -> None:
        self.done, self.heard, self.manifest = done, heard, done.manifest
        self.stages = {one.name: one for one in done.manifest.stages}

    def column(self, name: str, part: str = "train") -> list[Any]:
        return pq.read_table(self.done.folder / part / "rows.parquet")[name].to_pylist()

    @property
    def texts(self) -> list[str]:
        return self.column("text")

    @property
    def kept(self) -> list[str]:
        """The texts in the order in which they were read."""
        places = [(where.rpartition(":")[0], int(where.rpartition(":")[2])) for where in self.column("where")]
        return [text for _, text in sorted(zip(places, self.texts, strict=True))]


def lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def recipe_of(
    folder: Path, sources: list[dict], pipeline: dict, model: str = "m", objective: str = "sft", **data: Any
) -> Recipe:
    held = {"train": sources, "pipeline": {**PLAIN, **pipeline}, "prepared_dir": str(folder / "prepared"), **data}
    top = {"name": "r", "model": {"id": model}, "objective": objective, "output_dir": "o"}
    return Recipe.model_validate({**top, "data": held})
