"""Rows that a language model writes after training rows, as Self-Instruct does (Wang et al. 2022): drafted, criticised,
revised (Madaan et al. 2023: Self-Refine), and then sent through the stages of all rows."""

import heapq
import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from hf_efficient.curation.asked import Asked, Kept, Sampling, asked_model
from hf_efficient.curation.duplicates import shingles, words
from hf_efficient.curation.quality import points
from hf_efficient.curation.rows import Gone, Row, order_of, read_rows, text_of
from hf_efficient.curation.stages import Judge, Rows, Stage
from hf_efficient.data import formats
from hf_efficient.data.formats import Kind
from hf_efficient.errors import DataError
from hf_efficient.recipe.schema import Recipe, SyntheticSection

SOURCE_KEY = "data.pipeline.synthetic"

_CHAT = ("User", "Assistant")
_LABELS = {"messages": _CHAT, "chat_pair": _CHAT, "string_pair": ("Prompt", "Completion")}
_SEED_CHARACTERS = 2000  # a longer row is no example to show
_POOL = 5000  # training rows that may be shown, at most
_FEWEST = 10  # synthetic rows, below which a share says nothing
_CRITIQUE, _CRITIQUE_CHARACTERS = Sampling(0.0, 256), 200  # the last ones are shown
_CRITIC = (
    "Criticise the following example for training a language model: is it correct, complete, clear and natural? Write "
    "at most three sentences. End with a line `Score: N`, from 0 (of no use) to 5 (excellent)."
)
_REVISE = "Revise the example by the criticism. Answer with the example alone, in the same form."


@dataclass
class Writer:
    """``most``: rows that ``max_share`` leaves room for; ``source``: the number of the synthetic rows' source."""

    recipe: Recipe
    section: SyntheticSection
    kept: Kept
    kind: Kind
    source: int
    seed: int
    most: int
    _refused: dict[str, Gone] = field(default_factory=dict)
    _told: Rows = field(default_factory=lambda: Rows(lambda: iter(())))

    @property
    def count(self) -> int:
        return min(self.section.rows, self.most)

    def judge(self, told: Rows) -> Judge:
        """Does not read ``told``: each row is judged as it was written."""
        self._told = told
        return lambda _, row: self._refused.pop(row.id, row)

    def rows(self, real: Sequence[Path]) -> Iterator[Row]:
        """All that was written, of which ``judge`` refuses some, until the budget may not suffice for more."""
        if self.kind != "text" and self.kind not in _LABELS:
            raise DataError(f"{SOURCE_KEY}: writes chats, prompts with completions, and texts, no {self.kind}.")
        if self.count < 1:
            raise DataError(f"{SOURCE_KEY}.max_share: leaves room for no row. Write more, or `synthetic: null`.")
        pool = seeds_of(real, self.section, self.seed)
        if not pool:
            raise DataError(f"{SOURCE_KEY}: no row is below {_SEED_CHARACTERS:,} characters, so none can be shown.")
        sampling = Sampling(self.section.temperature, self.section.max_new_tokens)
        writer = asked_model(self.section.by, f"{SOURCE_KEY}.by", self.recipe, self.kept)
        named = self.section.critic
        critic = writer if named is None else asked_model(named, f"{SOURCE_KEY}.critic", self.recipe, self.kept)
        made, block = 0, self.section.by.at_a_time
        for start in range(0, self.count, block):
            shown = [self._shown(pool, number) for number in range(start, min(start + block, self.count))]
            prompts = [self._prompt(start + number, seeds) for number, seeds in enumerate(shown)]
            drafts = writer.replies(prompts, sampling, start)
            if drafts is None:
                break
            for number, (text, why) in enumerate(self._improved(drafts, writer, critic, sampling)):
                yield self._row(start + number, shown[number], text, why)
            made += len(drafts)
            self._told.usd = writer.usd + (critic.usd if critic is not writer else 0.0)
        if self.count < self.section.rows:
            self._told.notes.append(f"max_share leaves room for {self.count:,} of {self.section.rows:,} rows")
        if made < self.count:
            self._told.notes.append(f"the budget sufficed for {made:,} of {self.count:,} rows")
        self._told.notes += [one.spent for one in ([writer] if critic is writer else [writer, critic])]

    def _shown(self, pool: Sequence[Row], number: int) -> list[Row]:
        drawn = random.Random(order_of(self.seed, "shown", number))
        return drawn.sample(pool, min(self.section.seeds, len(pool)))

    def _prompt(self, number: int, seeds: Sequence[Row]) -> str:
        template = self.section.templates[number % len(self.section.templates)]
        shown = "\n\n".join(f"### Example {place}\n{as_form(row.example)}" for place, row in enumerate(seeds, 1))
        labels = _LABELS.get(self.kind, ())
        lines = " and then ".join(f"a line that begins with `{label}:`" for label in labels)
        form = f"Answer in exactly this form, {lines}, with nothing else." if labels else "Answer with the text alone."
        return f"{template}\n\n{shown}\n\n{form}"

    def _improved(
        self, drafts: Sequence[str], writer: Asked, critic: Asked, sampling: Sampling
    ) -> list[tuple[str, Gone | None]]:
        """Each text as it is in the end, and why it goes."""
        least, late = self.section.min_score, Gone("not criticised within the budget")
        texts, found = list(drafts), [late if least else None for _ in drafts]
        for number, text in enumerate(texts):
            if from_form(text, self.kind) is None:
                found[number] = Gone("not in the form that was asked for")
        left = [number for number, why in enumerate(found) if why is late]
        for turn in range(self.section.revisions + 1):
            seen = critic.replies([f"{_CRITIC}\n\n{texts[number]}" for number in left], _CRITIQUE, turn)
            said_of = dict(zip(left, seen or (), strict=False))
            for number, said in said_of.items():
                why = Gone(f"the critic gives it less than {least:g}", f"({said[-_CRITIQUE_CHARACTERS:]})")
                found[number] = None if points(said) >= least else why
            left = [number for number in left if found[number] is not None]
            if seen is None or turn == self.section.revisions:
                break
            asked = [f"{texts[number]}\n\nCriticism: {said_of[number]}\n\n{_REVISE}" for number in left]
            revised = writer.replies(asked, sampling, turn)
            for number, text in zip(left, revised or (), strict=False):
                if from_form(text, self.kind) is not None:
                    texts[number], found[number] = text, late
        return list(zip(texts, found, strict=True))

    def _row(self, number: int, seeds: Sequence[Row], text: str, why: Gone | None) -> Row:
        example = from_form(text, self.kind) or {"text": text}
        chat = seeds[0].example.get("messages") or seeds[0].example.get("prompt")
        if isinstance(chat, list) and chat[0]["role"] == "system" and "text" not in example:
            example = formats.add_system(example, chat[0]["content"])
        said = set(words(text_of(example)))
        refused = next((word for word in self.section.refuse if word.lower() in said), None)
        why = Gone("holds a refused word", refused) if why is None and refused is not None else why
        where = f"written {number + 1} after {', '.join(row.where for row in seeds)}"
        row = Row(f"{order_of(self.seed, 'synthetic', number, text):016x}", self.source, where, 0, example)
        if why is not None:
            self._refused[row.id] = why
        return row


def seeds_of(real: Sequence[Path], section: SyntheticSection, seed: int) -> list[Row]:
    """The training rows that may be shown to the writer, drawn by their hashes."""
    count = min(section.rows * section.seeds, _POOL)
    short = (row for row in read_rows(real) if len(row.text) <= _SEED_CHARACTERS)
    return heapq.nsmallest(count, short, key=lambda row: order_of(seed, "seed", row.id))


def as_form(example: dict[str, Any]) -> str:
    """An example as a writer sees it: a line for each part, begun by its label."""
    if "text" in example:
        return str(example["text"])
    if isinstance(example.get("prompt"), str):
        return f"Prompt: {example['prompt']}\nCompletion: {example['completion']}"
    chat = example.get("messages") or [*example["prompt"], *example["completion"]]
    return "\n".join(f"{one['role'].title()}: {one['content']}" for one in chat if one["role"] != "system")


def from_form(text: str, kind: Kind) -> dict[str, Any] | None:
    """What a writer answered, as an example; None: not in the form. A second example behind the first is left out."""
    if fenced := re.fullmatch(r"\s*```\w*\n(.*?)\n?```\s*", text, re.DOTALL):
        text = fenced[1]
    text = re.split(r"\n### Example ", re.sub(r"\A\s*### Example[^\n]*\n", "", text))[0].strip()
    if kind == "text":
        return {"text": text} if text else None
    first, last = _LABELS[kind]
    parts = re.split(rf"(?m)^[*\s]*({first}|{last})[*]*:[*]*[ \t]*", text)
    labels, contents = parts[1::2], [part.strip() for part in parts[2::2]]
    turns = len(labels) // 2 if kind != "string_pair" else 1
    if not turns or labels[: 2 * turns] != [first, last] * turns or not all(contents[: 2 * turns]):
        return None
    if kind == "string_pair":
        return {"prompt": contents[0], "completion": contents[1]}
    roles = [{"role": label.lower(), "content": content} for label, content in zip(labels, contents, strict=True)]
    chat = roles[: 2 * turns]
    return {"messages": chat} if kind == "messages" else {"prompt": chat[:-1], "completion": chat[-1:]}


def after(stage: Stage, real: Sequence[Path], count: int) -> Stage:
    """The stage for synthetic rows alone, which follow the ``count`` real ones where it compares rows."""

    def judge_of(rows: Rows) -> Judge:
        if stage.by_row:
            return stage.judge(rows)
        judge = stage.judge(Rows(lambda: chain(read_rows(real), rows.read()), rows.notes))
        return lambda index, row: judge(count + index, row)

    return Stage(f"synthetic.{stage.name}", judge_of)


def diversity(section: SyntheticSection, real: Sequence[Path], seed: int) -> Stage:
    """Keeps all rows and says how they differ from those that were shown. Raises ``DataError``: they have collapsed."""

    def judge_of(rows: Rows) -> Judge:
        shown = [row.text for row in seeds_of(real, section, seed)]
        written = list(rows.texts())
        size = min(sum(len(words(text)) for text in texts) for texts in (shown, written))
        own, theirs = distinct_runs(written, size), distinct_runs(shown, size)
        told = f"{own:.0%} of runs of three words are distinct, {theirs:.0%} in as many words of training rows"
        if len(written) >= _FEWEST and own < section.min_diversity * theirs:
            raise DataError(
                f"{SOURCE_KEY}: the rows have collapsed: {told}. Raise temperature, give more templates or seeds, or "
                "ask a larger model; or lower min_diversity."
            )
        rows.notes.append(told)
        rows.notes += [_term_note(name, terms, shown, written) for name, terms in section.terms.items()]
        return lambda _, row: row

    return Stage("synthetic.diversity", judge_of)


def distinct_runs(texts: Iterable[str], most_words: int) -> float:
    """The share of distinct ones among runs of three words (distinct-3, Li et al. 2016) in the first ``most_words``
    words: it falls with the size of a text, so that texts are compared at equal size."""
    seen, total, left = set[str](), 0, most_words
    for text in texts:
        found = words(text)[:left]
        left -= len(found)
        runs = list(shingles(found, 3))
        seen.update(runs)
        total += len(runs)
    return len(seen) / total if total else 1.0


def _term_note(name: str, terms: Sequence[str], shown: Sequence[str], written: Sequence[str]) -> str:
    """Whether the share of rows with a term differs by three standard errors: a test of two proportions."""
    wanted = {term.lower() for term in terms}
    here, there = (sum(not wanted.isdisjoint(words(text)) for text in texts) for texts in (written, shown))
    share = (here + there) / (len(written) + len(shown))
    error = math.sqrt(share * (1 - share) * (1 / len(written) + 1 / len(shown)))
    shift = here / len(written) - there / len(shown)
    told = f"{name}: in {here / len(written):.0%} of synthetic rows, {there / len(shown):.0%} of training rows"
    return told + (", which is a shift" if error and abs(shift) > 3 * error else "")
