"""Private data that belong to nobody, made up by the rules of their kind and not by the patterns that look for them."""

import random
import string
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator

_WORDS = string.ascii_letters + string.digits
_ACCOUNTS = {"DE": "n18", "FR": "n10c11n2", "GB": "a4n14", "ES": "n20", "NL": "a4n10", "NO": "n11", "CH": "n5c12"}
"""Country to the form of its account numbers (SWIFT, IBAN registry 99): n digits, a letters, c either."""
_MAILS = ("mail.example.co.uk", "uni-köln.de", "gmail.com", "a.b.io", "posteo.de", "company.technology")


def planted_private(rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Kind and item; the six kinds take turns."""
    makers: dict[str, Callable[[random.Random], str]] = {
        "mail": _mail, "phone": _phone, "iban": _iban, "card": _card, "ip": _address, "key": _key,
    }  # fmt: skip
    for number in range(count):
        kind = list(makers)[number % len(makers)]
        yield kind, makers[kind](rng)


def _drawn(rng: random.Random, letters: str, count: int) -> str:
    return "".join(rng.choices(letters, k=count))


def _mail(rng: random.Random) -> str:
    parts = [_drawn(rng, string.ascii_lowercase, rng.randint(2, 9)) for _ in range(rng.randint(1, 3))]
    return f"{rng.choice('._-+').join(parts)}{rng.choice(['', '7', '1984'])}@{rng.choice(_MAILS)}"


def _phone(rng: random.Random) -> str:
    """Of ranges that their plans hand out: area, first digits and the count that follows them."""
    area, rest = rng.choice([("212", 7), ("415", 7), ("303", 7)])
    line = rng.choice("2345678") + _drawn(rng, "2345678", rest - 1)
    berlin, london, paris = (_drawn(rng, "2345678", 7) for _ in range(3))
    return rng.choice([
        f"({area}) {line[:3]}-{line[3:]}", f"{area}-{line[:3]}-{line[3:]}", f"{area}.{line[:3]}.{line[3:]}",
        f"+1 {area} {line[:3]} {line[3:]}", f"+1{area}{line}", f"1-{area}-{line[:3]}-{line[3:]}",
        f"+49 30 {berlin}", f"+49 (0)30 {berlin}", f"+44 20 7{london[:3]} {london[3:]}", f"+44207{london}",
        f"+33 6 {paris[:2]} {paris[2:4]} {paris[4:6]} {paris[6]}4", f"+41 44 {berlin[:3]} {berlin[3:5]} {berlin[5:]}",
    ])  # fmt: skip


def _iban(rng: random.Random) -> str:
    """The check digits are 98 less the remainder modulo 97 of account, country and 00 (ISO 13616). Spanish, Norwegian,
    French and Dutch accounts hold digits of their own, which are drawn until they fit."""
    from stdnum import iban  # for those digits alone

    while True:
        country, form = rng.choice(list(_ACCOUNTS.items()))
        account, letters = "", {"n": string.digits, "a": string.ascii_uppercase, "c": string.digits}
        for part in form.replace("n", " n").replace("a", " a").replace("c", " c").split():
            account += _drawn(rng, letters[part[0]], int(part[1:]))
        check = 98 - int("".join(str(int(one, 36)) for one in f"{account}{country}00")) % 97
        made = f"{country}{check:02d}{account}"
        if iban.is_valid(made):
            break
    return made if rng.random() < 0.5 else " ".join(made[place : place + 4] for place in range(0, len(made), 4))


def _card(rng: random.Random) -> str:
    """The last digit makes Luhn's sum a multiple of ten: from the right every second digit counts twice."""
    prefix, length = rng.choice(
        [("4", 16), ("51", 16), ("2221", 16), ("37", 15), ("6011", 16), ("3530", 16), ("4", 13)]
    )
    digits = prefix + _drawn(rng, string.digits, length - len(prefix) - 1)
    total = sum(sum(divmod(int(one) * (2 - place % 2), 10)) for place, one in enumerate(reversed(digits)))
    digits += str(-total % 10)
    groups = (4, 10, 15) if length == 15 else range(4, length, 4)
    sign = rng.choice(["", " ", "-"])
    return "".join((sign if place in groups else "") + one for place, one in enumerate(digits))


def _address(rng: random.Random) -> str:
    if rng.random() < 0.7:
        return f"{rng.choice([8, 17, 54, 81, 104, 151])}.{'.'.join(str(rng.randint(0, 255)) for _ in range(3))}"
    groups = [f"{rng.randint(1, 0xFFFF):x}" for _ in range(7)]
    tail = rng.choice([":".join(groups), f":{groups[0]}", f"{groups[0]}::{groups[1]}:{groups[2]}"])
    return f"{rng.choice(['2606', '2a00', '2400'])}:{tail}"


def _key(rng: random.Random) -> str:
    def token(length: int) -> str:
        return _drawn(rng, _WORDS, length)

    parts = ('{"alg":"HS256","typ":"JWT"}', f'{{"sub":"{token(20)}","iat":{rng.randrange(10**9)}}}')
    jwt = ".".join(urlsafe_b64encode(part.encode()).decode().strip("=") for part in parts)
    return rng.choice([
        "AKIA" + _drawn(rng, string.ascii_uppercase + "234567", 16), "ghp_" + token(36), "github_pat_" + token(22),
        "sk-" + token(48), "sk-proj-" + token(60), "sk-ant-api03-" + token(80), f"xoxb-{token(12)}-{token(24)}",
        "hf_" + _drawn(rng, string.ascii_letters, 34), "AIza" + token(35), "glpat-" + token(20), "sk_live_" + token(24),
        f"{jwt}.{token(43)}",
    ])  # fmt: skip
