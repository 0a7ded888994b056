"""The stages that judge rows. Each is made from its section of the recipe, and from a first look at all texts where it
needs one. Then it keeps each row, perhaps with another text, or removes it with a reason."""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hf_efficient.curation import duplicates
from hf_efficient.curation.private_data import replace_private
from hf_efficient.curation.rows import Gone, Row, mapped
from hf_efficient.data.documents import MOST_HTML, needed, text_of_html
from hf_efficient.errors import DataError
from hf_efficient.recipe import schema


@dataclass
class Rows:
    """The rows that reach a stage, in order; ``read`` begins again at each call. What the stage has to say of itself,
    and what it paid to servers, is left in ``notes`` and ``usd``."""

    read: Callable[[], Iterator[Row]]
    notes: list[str] = field(default_factory=list)
    usd: float = 0.0

    def texts(self) -> Iterator[str]:
        return (row.text for row in self.read())


Judge = Callable[[int, Row], Row | Gone]
"""By its number and itself, the row that stays, or why it goes."""

_LANGUAGE_CHARACTERS = 2000  # enough to tell a language


@dataclass(frozen=True)
class Stage:
    """``name`` is its key below ``data.pipeline``; ``by_row``: it judges each row by itself."""

    name: str
    judge: Callable[[Rows], Judge]
    by_row: bool = False


def stages_of(pipeline: schema.PipelineSection) -> list[Stage]:
    """In the order in which they run, up to the held-out share, what it contaminates, and the blend."""
    named = ((name, getattr(pipeline, name)) for name in _MAKERS)
    return [
        Stage(name, functools.partial(_MAKERS[name], section), name in _BY_ROW)
        for name, section in named
        if section is not None
    ]


def _normalise(section: schema.NormaliseSection, rows: Rows) -> Judge:
    fix = needed("ftfy").fix_encoding if section.fix_encoding else str
    page = text_of_html if section.html and needed("trafilatura") else str

    def change(text: str) -> str:
        text = unicodedata.normalize(section.form, fix(page(text) if _PAGE.match(text) else text))
        if not section.spaces:
            return text
        text = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
        return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t\u00a0]+(?=\n|$)", "", text)).strip("\n")

    def judge(_: int, row: Row) -> Row | Gone:
        if section.html and len(row.text) > MOST_HTML and _PAGE.match(row.text):
            return Gone("page too long", f"{len(row.text):,} characters; at most {MOST_HTML:,} are read as HTML")
        return _with(row, mapped(row.example, change))

    return judge


_PAGE = re.compile(r"\s*<(!doctype html|html|head|body|div|p)\b", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\u200b\u2060]")


def _with(row: Row, example: dict[str, Any]) -> Row:
    return row if example == row.example else msgspec.structs.replace(row, example=example)


def _language(section: schema.LanguageSection, rows: Rows) -> Judge:
    langid = needed("py3langid.langid")
    identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    if unknown := sorted(set(section.keep) - set(identifier.nb_classes)):
        known = ", ".join(sorted(identifier.nb_classes))
        raise DataError(f"data.pipeline.language.keep: {unknown[0]} is no language that is known. Known: {known}.")

    def judge(_: int, row: Row) -> Row | Gone:
        found, probability = identifier.classify(row.text[:_LANGUAGE_CHARACTERS])
        if found not in section.keep:
            return Gone(f"language {found}")
        return row if probability >= section.min_probability else Gone(f"language {found}, unsure")

    return judge


_RULES = {
    "gopher_repetition": "gopher_repetition_filter.GopherRepetitionFilter",
    "gopher_quality": "gopher_quality_filter.GopherQualityFilter",
    "c4": "c4_filters.C4QualityFilter",
    "fineweb": "fineweb_quality_filter.FineWebQualityFilter",
}


def _heuristics(section: schema.HeuristicsSection, rows: Rows) -> Judge:
    document, _ = needed("datatrove.data").Document, needed("spacy")  # which splits words for datatrove
    filters = []
    for rule in section.rules:
        module, name = _RULES[rule].split(".")
        filters.append((rule, getattr(needed(f"datatrove.pipeline.filters.{module}"), name)()))

    def judge(_: int, row: Row) -> Row | Gone:
        held = document(text=row.text, id=row.id)
        for rule, one in filters:
            found = one.filter(held)
            if found is not True:
                return Gone(f"{rule}: {found[1].replace('_', ' ')}" if isinstance(found, tuple) else rule)
        # c4 takes lines away, which a chat of several texts cannot follow
        return _with(row, {"text": held.text}) if "text" in row.example else row

    return judge


def _length(section: schema.LengthSection, rows: Rows) -> Judge:
    def judge(_: int, row: Row) -> Row | Gone:
        for unit, size in (("characters", len(row.text)), ("tokens", row.tokens)):
            least, most = getattr(section, f"min_{unit}"), getattr(section, f"max_{unit}")
            if size < least:
                return Gone(f"fewer than {least:,} {unit}")
            if most is not None and size > most:
                return Gone(f"more than {most:,} {unit}")
        return row

    return judge


def _exact_duplicates(section: schema.ExactDuplicatesSection, rows: Rows) -> Judge:
    found = ("".join(text.casefold().split()) for text in rows.texts()) if section.fold else rows.texts()
    return _removed(duplicates.exact_duplicates(found), "an exact copy")


def _removed(found: dict[int, int], reason: str) -> Judge:
    """``found``: removed row to the kept one, which is named where it came first."""
    kept: dict[int, str] = dict.fromkeys(found.values(), "")

    def judge(index: int, row: Row) -> Row | Gone:
        if index in kept:
            kept[index] = row.where
        return Gone(reason, kept[found[index]] and f"of {kept[found[index]]}") if index in found else row

    return judge


def _near_duplicates(section: schema.NearDuplicatesSection, rows: Rows) -> Judge:
    needed("rensa")
    found = duplicates.near_duplicates(rows.texts(), **section.model_dump(exclude={"keep"}))
    if section.keep == "longest":
        found = duplicates.keep_best(found, [len(text) for text in rows.texts()].__getitem__)
    return _removed(found, "a near copy")


def _semantic_duplicates(section: schema.SemanticDuplicatesSection, rows: Rows) -> Judge:
    encode = duplicates.sentence_encoder(section.encoder or duplicates.PACKAGED)
    return _removed(duplicates.semantic_duplicates(rows.texts(), section.threshold, encode), "means the same")


def _private_data(section: schema.PrivateDataSection, rows: Rows) -> Judge:
    presidio = "presidio_analyzer"
    for kind, package in (("phone", "phonenumbers"), ("iban", "stdnum"), ("name", presidio), ("place", presidio)):
        if kind in section.kinds:
            needed(package)
    options = section.model_dump(exclude={"action"})

    def judge(_: int, row: Row) -> Row | Gone:
        found: Counter[str] = Counter()

        def replaced(text: str) -> str:
            text, counts = replace_private(text, **options)
            found.update(counts)
            return text

        changed = _with(row, mapped(row.example, replaced))
        if found and section.action == "drop":
            return Gone(f"holds {' and '.join(sorted(found))}")
        return changed

    return judge


def contamination(section: schema.ContaminationSection, evaluation: Callable[[], Iterator[str]]) -> Stage:
    """Removes rows that share text with the evaluation texts."""

    def made(rows: Rows) -> Judge:
        shared = duplicates.shared_words(evaluation(), ngram=section.ngram)

        def judge(_: int, row: Row) -> Row | Gone:
            words = shared(row.text)
            return row if words is None else Gone("shares text with evaluation data", words)

        return judge

    return Stage("contamination", made, by_row=True)


_MAKERS: dict[str, Callable[[Any, Rows], Judge]] = {
    "normalise": _normalise,
    "private_data": _private_data,
    "language": _language,
    "heuristics": _heuristics,
    "length": _length,
    "exact_duplicates": _exact_duplicates,
    "near_duplicates": _near_duplicates,
    "semantic_duplicates": _semantic_duplicates,
}
_BY_ROW = frozenset({"normalise", "private_data", "language", "heuristics", "length"})
