import importlib.util
import types

import pytest

from hf_efficient.curation import private_data
from hf_efficient.curation.private_data import REGULAR_KINDS, replace_private
from hf_efficient.errors import DataError, SetupError

JWT = ".".join(["eyJ" + "hbGciOiJIUzI1NiJ9", "eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0", "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"])


@pytest.mark.parametrize(
    ("kind", "item"),
    [
        ("mail", "jane.doe+news@mail.example.co.uk"),
        ("mail", "jürgen@straße.de"),
        ("phone", "+49 30 901820"),
        ("phone", "+442079460018"),
        ("phone", "(415) 555-2671"),
        ("phone", "415.555.2671"),
        ("iban", "DE89 3704 0044 0532 0130 00"),
        ("iban", "GB82WEST12345698765432"),
        ("iban", "NO93 8601 1117 947"),
        ("card", "4111 1111 1111 1111"),
        ("card", "3782-822463-10005"),
        ("card", "5555555555554444"),
        ("ip", "8.8.4.4"),
        ("ip", "2606:4700:4700::1111"),
        ("key", "AKIA" + "IOSFODNN7EXAMPLE"),
        ("key", "ghp_" + "a1B2" * 9),
        ("key", "sk-" + "proj-" + "Ab3_" * 10),
        ("key", "xoxb-" + "123456789012-abcdefABCDEF"),
        ("key", JWT),
        ("key", "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nab+/=\n-----END RSA PRIVATE KEY-----"),
    ],
)
@pytest.mark.parametrize("frame", ["{}", "Write to {}, please.", "It is <{}>; or:{}"])
def test_an_item_is_replaced_by_the_name_of_its_kind(kind, item, frame):
    text, counts = replace_private(frame.replace("{}", item), REGULAR_KINDS)
    assert text == frame.replace("{}", f"[{kind.upper()}]")
    assert counts == {kind: frame.count("{}")}


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",  # Luhn's sum is not a multiple of 10
        "0000 0000 0000 0000",  # of no issuer
        "DE89 3704 0044 0532 0130 01",  # the remainder modulo 97 is not 1
        "DE89 3704 0044 0532 0130",  # German ones have 22 characters
        "Version 10.0.0.1, 127.0.0.1, 999.1.1.1, 1.2.3 and 192.168.0.7",
        "std::vector at 12:30:45, 2001:db8::1 is documentation",
        "She has 1,234,567 apples and 4155552671 pears in 2024-01-15.",
        "@decorator, user@localhost, a@b",
        "task-force, sk-learn, eyJustice",
        "3.14159265358979, 10000000000000000",
        "by number: [4155552671], (4155552671)",
        "DE89370400440532013000X1 is longer than an account",
        "aix-6107-1415-32",
        "sold 12 at 3.50 - 4 for 100 200 300",
    ],
)
def test_what_only_looks_alike_stays(text):
    assert replace_private(text, REGULAR_KINDS) == (text, {})


def test_only_the_wanted_kinds_are_replaced_and_counted():
    text = "a@b.org or b@c.org, 8.8.8.8"
    assert replace_private(text, ["mail"]) == ("[MAIL] or [MAIL], 8.8.8.8", {"mail": 2})
    assert replace_private(text, []) == (text, {})


def test_words_behind_an_iban_stay():
    found = replace_private("Pay DE89 3704 0044 0532 0130 00 USD 12 or GB82 WEST 1234 5698 7654 32 NOW", ["iban"])
    assert found == ("Pay [IBAN] USD 12 or [IBAN] NOW", {"iban": 2})


def test_numbers_beside_a_card_hide_nothing():
    assert replace_private("2000 4111 1111 1111 1111 12 and 7 5555555555554444 3", ["card"]) == (
        "2000 [CARD] 12 and 7 [CARD] 3",
        {"card": 2},
    )


def test_national_numbers_are_those_of_the_region():
    assert replace_private("030 901820", ["phone"], region="DE")[1] == {"phone": 1}
    assert replace_private("030 901820", ["phone"], region=None)[1] == {}


def test_what_was_replaced_is_not_replaced_again():
    once, _ = replace_private("a@b.org, 8.8.8.8, +49 30 901820", REGULAR_KINDS)
    assert replace_private(once, REGULAR_KINDS) == (once, {})


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(DataError, match=r"'email' is no kind.*mail, iban"):
        replace_private("", ["email"])


class Engine:
    def __init__(self, language_model):
        self.language = {"en_core_web_lg": "en", "de_core_news_lg": "de"}[language_model]

    def analyze(self, text, language, entities):
        assert language == self.language
        start = text.find({"PERSON": "Ann", "LOCATION": "Oslo"}[entities[0]])
        found = types.SimpleNamespace(start=start, end=text.find(" ", start))
        return [found, found] if start >= 0 else []


@pytest.mark.parametrize("options", [{}, {"language_model": "de_core_news_lg"}])
def test_names_and_places_are_asked_of_presidio(monkeypatch, options):
    monkeypatch.setattr(private_data, "_presidio", Engine)
    assert replace_private("Here Ann is in Oslo .", ["name", "place"], **options) == (
        "Here [NAME] is in [PLACE] .",
        {"name": 1, "place": 1},
    )


def test_a_missing_language_model_is_told_and_not_downloaded():
    with pytest.raises(
        SetupError, match=r"language model xx_none_lg, which is not here\. Run `python -m spacy download"
    ):
        replace_private("Ann", ["name"], language_model="xx_none_lg")


def test_presidio_finds_names_and_places():
    """Where Presidio and a small model are installed, as in few places: neither comes with the tests' packages."""
    pytest.importorskip("presidio_analyzer")
    model = next((name for name in ("en_core_web_lg", "en_core_web_sm") if importlib.util.find_spec(name)), None)
    if model is None:
        pytest.skip("no English model of spaCy")
    text, counts = replace_private("Angela Merkel flew to Paris.", ["name", "place"], language_model=model)
    assert (text, counts) == ("[NAME] flew to [PLACE].", {"name": 1, "place": 1})
