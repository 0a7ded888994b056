"""Private data in a text, found by their form and checksum, and replaced by the name of their kind.

Patterns are bounded, so that time grows with the length of the text. What was replaced is never kept.
"""

import functools
import importlib.util
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hf_efficient.errors import DataError, SetupError

Span = tuple[int, int]

REGULAR_KINDS = ("key", "mail", "iban", "card", "ip", "phone")
_ENTITIES = {"name": "PERSON", "place": "LOCATION"}
KINDS = (*REGULAR_KINDS, *_ENTITIES)
"""In the order in which they are looked for: a key may hold what looks like a mail, a card what looks like a phone."""

LANGUAGE_MODEL = "en_core_web_lg"

_KEY = re.compile(
    r"""-----BEGIN[ ](?:[A-Z]+[ ]){0,3}PRIVATE[ ]KEY-----[^-]{1,20000}-----END[ ](?:[A-Z]+[ ]){0,3}PRIVATE[ ]KEY-----
    |(?<![\w-])(?:
        (?:AKIA|ASIA)[A-Z0-9]{16}                       # Amazon
        |gh[pousr]_[A-Za-z0-9]{36,251}|github_pat_\w{22,251}|glpat-[\w-]{20,64}
        |sk-[\w-]{20,251}|[sr]k_(?:live|test)_[A-Za-z0-9]{16,99}   # OpenAI, Anthropic; Stripe
        |xox[abeoprs]-[A-Za-z0-9-]{10,251}              # Slack
        |hf_[A-Za-z]{34,40}|AIza[\w-]{35}|npm_[A-Za-z0-9]{36}|pypi-AgE[\w-]{50,251}
        |SG\.[\w-]{22}\.[\w-]{43}                       # SendGrid
        |eyJ[\w-]{8,4000}\.[\w-]{8,8000}\.[\w-]{16,2000}       # JSON Web Token
    )(?![\w-])""",
    re.VERBOSE | re.ASCII,
)
_MAIL = re.compile(r"(?<![\w.%+-])[\w.%+-]{1,64}@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}(?![\w-])")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d\d(?:[ -]?[A-Z0-9]){11,30}", re.ASCII)
_CARD = re.compile(  # looked ahead, so that a number before it does not hide it
    r"(?<![\w.,+-])(?=(\d{13,19}|\d{4}([ -])(?:\d{4}\2\d{4}\2\d{1,4}|\d{6}\2\d{4,5}))(?![\w-])(?![.,]\d))", re.ASCII
)
_CARD_ISSUER = re.compile(
    r"""4(?:\d{12}|\d{15}|\d{18})                                                      # Visa
    |(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}                  # Mastercard
    |3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11}|35(?:2[89]|[3-8]\d)\d{12}                   # Amex, Diners, JCB
    |(?:6011|64[4-9]\d|65\d\d)\d{12}|62\d{14,17}                                       # Discover, UnionPay""",
    re.VERBOSE | re.ASCII,
)
_IP4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w-])(?!\.\w)", re.ASCII)
_IP6 = re.compile(
    r"(?<![\w.])(?<!::)(?<![0-9a-fA-F]{3}:)[23][0-9a-fA-F]{3}(?::[0-9a-fA-F]{0,4}){1,6}(?::[0-9a-fA-F]{1,4}|::)(?!\w|:[\w:])",
    re.ASCII,
)
_IN_LONGER = re.compile(r"[\w-]\x00|\d[.,]\x00|\x00[\w-]|\x00[.,]\d")
_SEVEN_DIGITS = re.compile(
    r"(?=\d(?:[^\w\n]{0,3}\d){6})(?:(?<=[+\uff0b])|(?<=[+\uff0b][^\w\n])|\d{1,20}[^\w\n]{1,3}\d)"
)
"""Behind a plus, or with a sign between them: looking for it takes a hundredth of the library's time."""

_BRACKETS = "()[]\uff08\uff09\uff3b\uff3d"


def replace_private(
    text: str, kinds: Iterable[str], *, region: str | None = "US", language_model: str = LANGUAGE_MODEL
) -> tuple[str, dict[str, int]]:
    """The text with ``[MAIL]``, ``[PHONE]`` and so on in place of what was found, and the count of each kind found.
    ``region``: country (ISO 3166) whose phone numbers are found without the country's code; None: only with the code.
    ``language_model``: a package of spaCy, for names and places; its name begins with its language. Raises
    ``DataError``: an unknown kind; ``SetupError``: names or places, and Presidio's language model is missing."""
    wanted = set(kinds)
    if unknown := sorted(wanted - set(KINDS)):
        raise DataError(f"private data: {unknown[0]!r} is no kind. Write some of {', '.join(KINDS)}.")
    counts: dict[str, int] = {}
    for kind in (kind for kind in KINDS if kind in wanted):
        spans: Iterator[Span]
        if kind in _ENTITIES:
            analyse = _presidio(language_model).analyze
            found = analyse(text=text, language=language_model[:2], entities=[_ENTITIES[kind]])
            spans = ((one.start, one.end) for one in found)
        else:
            spans = _phones(text, region) if kind == "phone" else _FINDERS[kind](text)
        parts, end, count = [], 0, 0
        for start, stop in sorted(spans):
            if start >= end:
                parts += [text[end:start], f"[{kind.upper()}]"]
                end, count = stop, count + 1
        if count:
            text, counts[kind] = "".join([*parts, text[end:]]), count
    return text, counts


def _matches(pattern: re.Pattern[str]) -> Callable[[str], Iterator[Span]]:
    return lambda text: (found.span() for found in pattern.finditer(text))


def _ibans(text: str) -> Iterator[Span]:
    """By the registry's country, length and form, and the checksum modulo 97 (ISO 13616); no word that follows."""
    from stdnum import iban

    for found in _IBAN.finditer(text):
        ends = (end for end in range(found.end(), found.start() + 14, -1) if text[end - 1] not in " -")
        end = next((end for end in ends if iban.is_valid(text[found.start() : end])), None)
        if end is not None and not text[end : end + 1].isalnum():
            yield found.start(), end


def _cards(text: str) -> Iterator[Span]:
    from stdnum import luhn

    for found in _CARD.finditer(text):
        digits = re.sub(r"\D", "", found[1])
        if _CARD_ISSUER.fullmatch(digits) and luhn.is_valid(digits):
            yield found.span(1)


def _addresses(text: str) -> Iterator[Span]:
    """Public ones alone: who has 192.168.0.1 or 2001:db8::1 is nobody's secret."""
    for pattern in (_IP4, _IP6):
        for found in pattern.finditer(text):
            try:
                address = ipaddress.ip_address(found[0])
            except ValueError:
                continue
            if address.is_global and not address.is_multicast:
                yield found.span()


def _phones(text: str, region: str | None) -> Iterator[Span]:
    """Valid numbers of the numbering plans, not inside a longer word or number; digits without any sign between them
    only behind a country code."""
    if not _SEVEN_DIGITS.search(text):
        return
    from phonenumbers import Leniency, PhoneNumberMatcher

    for found in PhoneNumberMatcher(text, region, leniency=Leniency.VALID):
        apart = not _IN_LONGER.search(
            text[max(found.start - 2, 0) : found.start] + "\0" + text[found.end : found.end + 2]
        )
        if apart and not found.raw_string.strip(_BRACKETS).isdigit():
            yield found.start, found.end


@functools.cache
def _presidio(language_model: str) -> Any:
    if importlib.util.find_spec(language_model) is None:  # Presidio would download it
        raise SetupError(
            f"private data: names and places need the language model {language_model}, which is not here. "
            f"Run `python -m spacy download {language_model}`, or name another one as language_model."
        )
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import NlpEngineProvider

    language = language_model[:2]
    model = {"lang_code": language, "model_name": language_model}
    engine = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": [model]}).create_engine()
    return AnalyzerEngine(nlp_engine=engine, supported_languages=[language])


_FINDERS: dict[str, Callable[[str], Iterator[Span]]] = {
    "key": _matches(_KEY),
    "mail": _matches(_MAIL),
    "iban": _ibans,
    "card": _cards,
    "ip": _addresses,
}
