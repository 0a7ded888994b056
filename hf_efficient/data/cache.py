"""The tokenised cache: one folder per key, written in one piece, read back without a tokenizer.

An unreadable entry is made again; a cache that cannot be written is done without.
"""

import hashlib
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from transformers import PreTrainedTokenizerBase
from trl import SFTConfig

from hf_efficient.data import docstrings
from hf_efficient.data.prepare import progress_bars
from hf_efficient.data.sources import Source, open_bytes
from hf_efficient.data.stats import DataStats
from hf_efficient.facts.tables import cache_dir
from hf_efficient.recipe.schema import Recipe
from hf_efficient.run_dir.json_file import published
from hf_efficient.version import __version__

FORMAT_VERSION = 4  # raised whenever the same inputs would be prepared, or an entry laid out, differently

_LOGGER = logging.getLogger(__name__)
_MANIFEST = "entry.json"
_ARGS = (
    "assistant_only_loss", "completion_only_loss", "dataset_num_proc", "dataset_text_field", "eval_packing",
    "max_length", "packing", "packing_strategy", "seed", "shuffle_dataset", "truncation_mode",
)  # fmt: skip
_LIBRARIES = ("datasets", "tokenizers", "transformers", "trl")
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, pa.ArrowException)


@dataclass(frozen=True)
class Entry:
    """The prepared data of a run: what the cache holds under one key. ``train``: rows with ``input_ids`` and ``labels``
    (and ``seq_lengths`` where packed), lists of int. ``eval``: likewise; None, as ``eval_stats``, where the recipe has
    no evaluation data. ``eval_examples``: at most ``evaluate.generate.examples`` of ``{"prompt": messages or string,
    "answer": string}``, drawn with the seed; empty for plain text."""

    train: datasets.Dataset
    eval: datasets.Dataset | None
    stats: DataStats
    eval_stats: DataStats | None
    eval_examples: list[dict[str, Any]]


def cache_folder(named: str | None) -> Path:
    return Path(named).expanduser() if named else cache_dir() / "tokenized"


def cache_key(
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerBase,
    args: SFTConfig,
    sources: tuple[Sequence[Source], Sequence[Source]],
) -> str:
    """64 hexadecimal digits over all that decides what is prepared: contents of sources and tokenizer, not paths."""
    return hash_of({
        "format": FORMAT_VERSION,
        "versions": {"hf_efficient": __version__, **{name: version(name) for name in _LIBRARIES}},
        "train": [source_identity(source) for source in sources[0]],
        "eval": [source_identity(source) for source in sources[1]],
        "data": recipe.data.model_dump(mode="json", exclude={"cache_dir", "train", "eval", "pipeline", "prepared_dir"}),
        "generated": recipe.evaluate.generate.examples,
        "args": {name: getattr(args, name) for name in _ARGS},
        "as_trl": "assistant_only_loss" in recipe.train,
        "tokenizer": tokenizer_identity(tokenizer),
    })  # fmt: skip


def hash_of(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def source_identity(source: Source) -> dict[str, Any]:
    section = source.section
    settings = section.model_dump(mode="json", exclude={"path", "name"})
    if source.files:
        root = Path(section.path).expanduser()
        below = [path != root and path.is_relative_to(root) for path in source.files]
        named = zip(source.files, below, strict=True)
        names = [str(path.relative_to(root)) if is_below else path.suffix.lower() for path, is_below in named]
        digests = [[name, digest_of(path)] for name, path in zip(names, source.files, strict=True)]
        return {**settings, "files": digests}
    if source.dataset is not None:
        return {**settings, "hub": section.path, "name": section.name, "fingerprint": source.dataset._fingerprint}
    made_by = {"python": sys.version, "algorithm": docstrings.ALGORITHM_VERSION}
    return {**settings, "builtin": section.path, "made_by": made_by}


def tokenizer_identity(tokenizer: PreTrainedTokenizerBase) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules: Any = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    else:
        rules = json.loads(backend.to_str())
        for state in ("truncation", "padding"):  # left behind by the last call, not part of what it is
            rules.pop(state, None)
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if name != "pad_token"}
    names = ("add_bos_token", "add_eos_token", "split_special_tokens")
    flags = {name: getattr(tokenizer, name, None) for name in names}
    return hash_of([rules, special, flags, tokenizer.chat_template])


def load_entry(folder: Path, key: str) -> Entry | None:
    place = folder / key
    if not (place / _MANIFEST).is_file():
        return None
    try:
        manifest = json.loads((place / _MANIFEST).read_text(encoding="utf-8"))
        has_eval = manifest["eval_stats"] is not None
        return Entry(
            train=datasets.load_from_disk(str(place / "train")),
            eval=datasets.load_from_disk(str(place / "eval")) if has_eval else None,
            stats=DataStats(**manifest["stats"]),
            eval_stats=DataStats(**manifest["eval_stats"]) if has_eval else None,
            eval_examples=list(manifest["eval_examples"]),
        )
    except _UNREADABLE as error:
        _LOGGER.warning("The cached data in %s cannot be read (%s); they are made again.", place, error)
        return None


def save_entry(folder: Path, key: str, entry: Entry) -> None:
    manifest = {
        "stats": asdict(entry.stats),
        "eval_stats": None if entry.eval_stats is None else asdict(entry.eval_stats),
        "eval_examples": entry.eval_examples,
    }
    try:
        with published(folder / key) as draft, progress_bars(len(entry.train)):
            entry.train.save_to_disk(str(draft / "train"))
            if entry.eval is not None:
                entry.eval.save_to_disk(str(draft / "eval"))
            (draft / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    except OSError as error:
        _warn_once(f"The tokenised data cannot be cached in {folder}: {error}.")


def kept_on_disk(dataset: datasets.Dataset, folder: Path, settings: Sequence[Any]) -> datasets.Dataset:
    """The rows from a folder of their own, by their contents and ``settings``: beside rows on the disk TRL keeps the
    log-probabilities of the reference for the next start (trl issue 3985). As they are where it cannot be written."""
    digest = hashlib.sha256(json.dumps([__version__, *settings], default=str).encode())
    for table in dataset.with_format("arrow").iter(10_000):
        for batch in table.combine_chunks().to_batches():
            digest.update(batch.serialize())
    home = folder / "references" / digest.hexdigest()[:32]
    try:
        if not (home / "state.json").is_file():
            with published(home) as draft, progress_bars(len(dataset)):
                dataset.save_to_disk(str(draft))
        held = datasets.load_from_disk(str(home))
    except _UNREADABLE as error:
        _warn_once(f"The log-probabilities of the reference cannot be kept in {folder}: {error}.")
        return dataset
    held._fingerprint = home.name
    return held


@cache
def _warn_once(message: str) -> None:
    _LOGGER.warning(message)


def digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open_bytes(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
