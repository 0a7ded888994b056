"""The data of a recipe as its model will see them: examples token by token, and their counts."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase
from trl import DPOConfig, SFTConfig

from hf_efficient.data.build import prepare_both, read_raw
from hf_efficient.data.examples import RawData, recipe_sources
from hf_efficient.data.stats import answer_lengths, lengths
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import is_packed


@dataclass(frozen=True)
class Span:
    """Neighbouring tokens as text; ``target``: the loss covers them."""

    text: str
    target: bool


@dataclass(frozen=True)
class ShownExample:
    """One example of a file and line, cut as the run cuts it; ``part``: ``chosen`` or ``rejected``, or a good or bad
    answer. Of its ``tokens`` ``cut_tokens`` are lost at ``train.max_length``, all where it is left out."""

    where: str
    part: str
    tokens: int
    cut_tokens: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class SourceCount:
    """Training examples and tokens of one source, weighted; the tokens before anything is cut."""

    key: str
    path: str
    examples: int
    tokens: int


@dataclass(frozen=True)
class Packing:
    """How the examples are joined into rows of ``train.max_length``; ``fill_rate``: the share that holds a token."""

    rows: int
    examples_per_row: float
    fill_rate: float


@dataclass(frozen=True)
class DataLook:
    """What a run would train on, after everything is cut and left out. A preference pair is one example; its prompt
    counts with each of its two answers. ``lengths``: tokens of an example before it is cut, at p50, p95 and max.
    ``dropped``: for their length, or without a target token; ``without_target``: trained on, and teach nothing.
    ``generations``: completions of each prompt, of at most ``completion_tokens`` each; 0 without prompts."""

    name: str
    max_length: int | None
    examples: int
    tokens: int
    target_tokens: int
    lengths: Mapping[str, int]
    sources: tuple[SourceCount, ...]
    evaluation_examples: int
    shown: tuple[ShownExample, ...]
    truncated: int = 0
    truncated_tokens: int = 0
    dropped: int = 0
    without_target: int = 0
    packing: Packing | None = None
    generations: int = 0
    completion_tokens: int = 0

    @property
    def target_share(self) -> float:
        return self.target_tokens / self.tokens if self.tokens else 0.0


def look_at(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, args: SFTConfig | DPOConfig, show: int) -> DataLook:
    """The data as a run prepares them, and ``show`` examples, from each source in turn; raises ``DataError`` too."""
    raw = read_raw(recipe, args, recipe_sources(recipe))
    if isinstance(args, SFTConfig):
        return _of_examples(recipe, raw, tokenizer, args, show)
    if OBJECTIVES[recipe.objective].generates:
        return _of_prompts(recipe, raw, tokenizer, args, show)
    return _of_preferences(recipe, raw, tokenizer, args, show)


def _of_examples(
    recipe: Recipe, raw: RawData, tokenizer: PreTrainedTokenizerBase, args: SFTConfig, show: int
) -> DataLook:
    (_, stats, whole), evaluation = prepare_both(recipe, raw, tokenizer, args)
    sizes, limit, overlong = lengths(whole), args.max_length, recipe.data.overlong
    cuts = not (is_packed(args, "train") and args.packing_strategy != "bfd")
    lost = sizes - limit if limit is not None and cuts and overlong == "truncate" else np.zeros_like(sizes)
    packs, rate = stats.packs, stats.fill_rate
    return DataLook(
        name=recipe.name,
        max_length=limit,
        examples=stats.examples,
        tokens=stats.tokens_total,
        target_tokens=stats.target_tokens,
        lengths=_percentiles(sizes),
        truncated=int((lost > 0).sum()),
        truncated_tokens=int(lost[lost > 0].sum()),
        dropped=stats.dropped_overlong + stats.dropped_masked,
        without_target=stats.masked,
        packing=None if packs is None or rate is None else Packing(packs, stats.examples / packs, rate),
        sources=_sources(recipe, raw, sizes),
        evaluation_examples=0 if evaluation is None else evaluation.stats.examples,
        shown=tuple(
            _shown(whole[row], tokenizer, limit if cuts else None, drops=overlong == "drop")
            for row in _spread(list(raw.sizes.values()), show)
        ),
    )


def _of_preferences(
    recipe: Recipe, raw: RawData, tokenizer: PreTrainedTokenizerBase, args: DPOConfig, show: int
) -> DataLook:
    from hf_efficient.data.objectives import prepare_preferences, shown_answers, target_tokens  # loads trainers

    objective = recipe.objective
    kept, *evaluation = prepare_preferences(raw, tokenizer, args, objective)
    rows = kept.dataset
    sizes, cut = answer_lengths(rows, None), answer_lengths(rows, args.max_length)
    tokens, first, places = Counter[str](), dict[str, int](), list(raw.train["where"])
    for index, (where, size) in enumerate(zip(rows["where"], sizes.sum(axis=1).tolist(), strict=True)):
        tokens[where] += size
        first.setdefault(where, index)
    times = Counter(places)
    shown = [first[places[row]] for row in _spread(list(raw.sizes.values()), show) if places[row] in first]
    return DataLook(
        name=recipe.name,
        max_length=args.max_length,
        examples=len(rows),
        tokens=int(cut.sum()),
        target_tokens=target_tokens(rows, cut, objective),
        lengths=_percentiles(sizes.max(axis=1)),
        truncated=int((sizes > cut).any(axis=1).sum()),
        truncated_tokens=int((sizes - cut).sum()),
        dropped=sum(one.rows for one in kept.left_out),
        sources=_sources(recipe, raw, np.array([tokens[where] // times[where] for where in places])),
        evaluation_examples=sum(len(one.dataset) for one in evaluation),
        shown=tuple(
            _shown(answer, tokenizer, args.max_length, part=part)
            for row in shown
            for part, answer in shown_answers(rows[row], objective)
        ),
    )


def _of_prompts(recipe: Recipe, raw: RawData, tokenizer: PreTrainedTokenizerBase, args: Any, show: int) -> DataLook:
    """Of the prompts alone: the completions, which are the targets, are not there yet."""
    from hf_efficient.data.objectives import completions_of_each, prompt_data, prompt_ids

    data = prompt_data(recipe, raw, tokenizer, args)
    shown = _spread(list(raw.sizes.values()), show)
    return DataLook(
        name=recipe.name,
        max_length=None,
        examples=len(data.train),
        tokens=int(data.lengths.sum()),
        target_tokens=0,
        lengths=_percentiles(data.lengths),
        sources=_sources(recipe, raw, data.lengths),
        evaluation_examples=0 if data.eval is None else len(data.eval),
        shown=tuple(
            _shown({**raw.train[row], "input_ids": ids, "labels": [-100] * len(ids)}, tokenizer, None, part="prompt")
            for row in shown
            for ids in [prompt_ids(raw.train[row], tokenizer, args)]
        ),
        generations=completions_of_each(args),
        completion_tokens=args.max_completion_length,
    )


def _percentiles(sizes: npt.NDArray[np.int64]) -> dict[str, int]:
    p50, p95 = np.percentile(sizes, [50, 95])
    return {"p50": round(float(p50)), "p95": round(float(p95)), "max": int(sizes.max())}


def _sources(recipe: Recipe, raw: RawData, sizes: npt.NDArray[np.int64]) -> tuple[SourceCount, ...]:
    ends = np.cumsum(list(raw.sizes.values()))
    parts = np.split(sizes, ends[:-1])
    named = zip(raw.sizes.items(), recipe.data.train, parts, strict=True)
    return tuple(SourceCount(key, source.path, count, int(own.sum())) for (key, count), source, own in named)


def _spread(sizes: Sequence[int], show: int) -> list[int]:
    starts = np.cumsum([0, *sizes[:-1]])
    each = zip(starts.tolist(), sizes, strict=True)
    turns = [(place, start + place) for start, size in each for place in range(min(size, show))]
    return [row for _, row in sorted(turns, key=lambda turn: turn[0])[:show]]


def _shown(
    row: Mapping[str, object],
    tokenizer: PreTrainedTokenizerBase,
    limit: int | None,
    *,
    drops: bool = False,
    part: str = "",
) -> ShownExample:
    ids, labels = list(row["input_ids"]), list(row["labels"])  # type: ignore[call-overload]
    kept = len(ids) if limit is None else min(limit, len(ids))
    lost = len(ids) if drops and kept < len(ids) else len(ids) - kept
    spans = () if lost == len(ids) else tuple(_spans(ids[:kept], labels[:kept], tokenizer))
    return ShownExample(str(row["where"]), part, len(ids), lost, spans)


def _spans(ids: list[int], labels: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> Iterator[Span]:
    """The text that each run of tokens adds to what stands before it: a token alone may lose its leading space.
    Nothing predicts the first token, so it is no target."""
    told, place = "", 0
    for target, run in groupby(label != -100 and index > 0 for index, label in enumerate(labels)):
        place += len(list(run))
        text = str(tokenizer.decode(ids[:place], skip_special_tokens=False, clean_up_tokenization_spaces=False))
        added = text[len(told) :] if text.startswith(told) else text[len(told.rstrip("\ufffd")) :]
        told = text
        yield Span(added, target)
