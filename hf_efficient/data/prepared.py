"""The data set that `hf-efficient prepare` wrote for a recipe with `data.pipeline`: which version fits it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hf_efficient.data.cache import hash_of, source_identity
from hf_efficient.data.examples import open_sources
from hf_efficient.data.sources import Source, open_source
from hf_efficient.errors import DataError
from hf_efficient.recipe.schema import PipelineSection, Recipe, SourceSection
from hf_efficient.records.prepared import MANIFEST_JSON

FORMAT_VERSION = 1  # raised whenever the same sources and options would give another data set

_BY_CONTENT: Any = {  # sources by what they hold, not by their paths; and not how the work is cut
    "contamination": {"against"}, "quality": {"classifier": {"good", "bad"}}, "executor": True,
}  # fmt: skip


class NotPreparedError(DataError):
    """The recipe's data set is missing, or its sources or options have changed since."""


class Version(NamedTuple):
    """A version of a data set: its folder, which is there once it is whole, and the hash of the ``facts`` that decide
    what is in it."""

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
