"""What a recipe reads from this machine's disk and the machines of a cluster would not find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hf_efficient.cluster.description import Cluster
from hf_efficient.errors import Problem
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from hf_efficient.cluster.job import Target

__all__ = ["unreachable_inputs"]


def unreachable_inputs(target: Target, recipe: Recipe, cluster: Cluster, directory: str) -> Iterator[Problem]:
    """Local files and folders that a job on ``target`` names and its machines do not have.

    Slurm's machines see the files of the machine that submits. SkyPilot copies the current folder. A pod sees the
    shared storage alone.

    Args:
        target: which kind of cluster.
        recipe: resolved.
        cluster: where the shared storage is mounted.
        directory: the current folder.
    """
    if target == "slurm":
        return
    for key, text in _inputs(recipe):
        path = Path(directory, Path(text).expanduser())
        if not path.exists() or (cluster.shared is not None and Path(text).is_relative_to(cluster.shared)):
            continue
        copied = target == "skypilot" and not Path(text).is_absolute() and path.resolve().is_relative_to(directory)
        if not copied:
            origin = recipe.provenance.get(key)
            others = "SkyPilot copies the current folder alone" if target == "skypilot" else "no pod sees it"
            message = f"is {text}, which lies on this machine's disk; {others}."
            remedy = f"Copy it to {cluster.shared or 'the shared storage'}, and write the path that it has there."
            yield Problem(str(origin or recipe.path or recipe.name), key, message, remedy)


def _inputs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    yield "model.id", recipe.model.id
    if recipe.model.tokenizer:
        yield "model.tokenizer", recipe.model.tokenizer
    for name in ("chat_template_path", "resume_from_checkpoint"):
        if value := recipe.train.get(name):
            yield f"train.{name}", str(value)
    for name, sources in (("train", recipe.data.train), ("eval", recipe.data.eval)):
        yield from ((f"data.{name}.{index}.path", source.path) for index, source in enumerate(sources))
