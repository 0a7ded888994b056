"""Language models that are asked, on a server or here; what was answered or scored is kept on disk and paid once."""

import itertools
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from hf_efficient.curation.served import answered, first_model
from hf_efficient.data.cache import hash_of
from hf_efficient.errors import DataError, ModelError
from hf_efficient.estimate.cost import cost_usd
from hf_efficient.metrics.answers import Prompt, end_of_answer_ids, generate_ids, render_prompt
from hf_efficient.model.load import load_dense_base, load_tokenizer, on_accelerator
from hf_efficient.recipe.schema import AskedSection, ModelSection, Recipe
from hf_efficient.text import usd

_TRIES = 4
_CHARACTERS_OF_A_TOKEN = 3  # an estimate, for what a prompt will take of a budget before it is sent


class Kept:
    """Values by a hash of what was asked, in a file that a killed process leaves whole."""

    def __init__(self, path: Path) -> None:
        self._file = sqlite3.connect(path)
        self._file.execute("CREATE TABLE IF NOT EXISTS kept (asked TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def get(self, asked: str) -> Any:
        found = self._file.execute("SELECT value FROM kept WHERE asked = ?", (asked,)).fetchone()
        return None if found is None else msgspec.json.decode(found[0])

    def put(self, values: Sequence[tuple[str, Any]]) -> None:
        with self._file:
            encoded = [(asked, msgspec.json.encode(value)) for asked, value in values]
            self._file.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", encoded)


class Reply(NamedTuple):
    """``usd``: by the prices of the server, or the time here at the recipe's price; None: not known."""

    text: str
    prompt_tokens: int
    new_tokens: int
    usd: float | None


class Sampling(NamedTuple):
    temperature: float
    max_new_tokens: int


Ask = Callable[[Sequence[str], Sampling, int], list[Reply]]
"""Prompts, how and a seed in, a reply for each out."""


@dataclass
class Asked:
    """What was kept counts as when it was paid, so that a run that goes on ends as one that was never stopped."""

    section: AskedSection
    name: str
    kept: Kept
    engine: Callable[[], Ask]  # loads a model, so only where something is to be asked
    tokens: int = 0
    usd: float = 0.0
    _ask: Ask | None = field(default=None)

    def replies(self, prompts: Sequence[str], sampling: Sampling, salt: int = 0) -> list[str] | None:
        """Their texts in order; None, and nothing is asked, where the budget may not suffice for all of them.
        ``salt`` keeps apart two questions of the same words. Raises ``ModelError``: no answer."""
        keys = [hash_of([self.section.url, self.name, sampling, salt, number, prompt])
                for number, prompt in enumerate(prompts)]  # fmt: skip
        open_ones = [number for number, one in enumerate(keys) if self.kept.get(one) is None]
        if open_ones and not self._suffices([prompts[number] for number in open_ones], sampling):
            return None
        for start in range(0, len(open_ones), self.section.at_a_time):
            batch = open_ones[start : start + self.section.at_a_time]
            self._ask = self._ask or self.engine()
            made = self._ask([prompts[number] for number in batch], sampling, int(keys[batch[0]][:7], 16))
            self.kept.put([(keys[number], reply) for number, reply in zip(batch, made, strict=True)])
        replies = [Reply(*self.kept.get(one)) for one in keys]
        self.tokens += sum(one.prompt_tokens + one.new_tokens for one in replies)
        self.usd += sum(one.usd or 0.0 for one in replies)
        return [one.text for one in replies]

    def _suffices(self, prompts: Sequence[str], sampling: Sampling) -> bool:
        """A server by its prices, a model here by what its tokens cost so far."""
        budget, written = self.section.budget, len(prompts) * sampling.max_new_tokens
        read = sum(map(len, prompts)) // _CHARACTERS_OF_A_TOKEN
        more = _usd_of(self.section, read, written)
        more = self.usd / max(self.tokens, 1) * (read + written) if more is None else more
        has_tokens = budget.tokens is None or self.tokens + read + written <= budget.tokens
        return has_tokens and (budget.usd is None or self.usd + more < budget.usd)

    @property
    def spent(self) -> str:
        who = self.name if self.section.url is None else f"{self.name} at {self.section.url}"
        return f"{who}: {self.tokens:,} tokens" + (f", {usd(self.usd)}" if self.usd else "")


def asked_model(section: AskedSection, key: str, recipe: Recipe, kept: Kept) -> Asked:
    """``key`` names the section in errors. Raises ``DataError``: a budget in dollars without a price."""
    priced = recipe.cost.price_usd_per_hour if section.url is None else _usd_of(section, 0, 0)
    if section.budget.usd is not None and priced is None:
        need = "cost.price_usd_per_hour" if section.url is None else f"{key}.usd_per_million_read and _written"
        raise DataError(f"{key}.budget.usd: nothing says what a token costs. Write {need}, or budget.tokens.")
    if section.url is None:
        name = section.model or recipe.model.id
        return Asked(section, name, kept, lambda: _here(recipe, section))
    url = section.url.rstrip("/")
    name = section.model or first_model(url, f"Write {key}.model.")
    return Asked(section, name, kept, lambda: _server(url, name, section))


def _usd_of(section: AskedSection, read: int, written: int) -> float | None:
    if section.usd_per_million_read is None or section.usd_per_million_written is None:
        return None
    return (read * section.usd_per_million_read + written * section.usd_per_million_written) / 1e6


def _server(url: str, name: str, section: AskedSection) -> Ask:
    def one(prompt: str, sampling: Sampling, seed: int) -> Reply:
        body = {"model": name, "messages": [{"role": "user", "content": prompt}], "seed": seed}
        body |= {"max_tokens": sampling.max_new_tokens, "temperature": sampling.temperature}
        with answered("POST", f"{url}/chat/completions", tries=_TRIES, json=body) as response:
            try:
                told = response.json()
                text, usage = (told["choices"][0]["message"]["content"] or "").strip(), told.get("usage") or {}
                read, written = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
            except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
                said = f"{url} answers in another form than OpenAI's: {response.text[:200]!r}."
                raise ModelError(f"{said} Write the URL up to /v1.") from error
        # A server that counts nothing would have no budget.
        read = read or len(prompt) // _CHARACTERS_OF_A_TOKEN
        written = written or len(text) // _CHARACTERS_OF_A_TOKEN
        return Reply(text, read, written, _usd_of(section, read, written))

    def ask(prompts: Sequence[str], sampling: Sampling, seed: int) -> list[Reply]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(one, prompts, itertools.repeat(sampling), range(seed, seed + len(prompts))))

    return ask


def _here(recipe: Recipe, section: AskedSection) -> Ask:
    own = recipe.model if section.model is None else ModelSection(id=section.model)
    model: Any = on_accelerator(load_dense_base(own)).eval()
    tokenizer = load_tokenizer(own, recipe.train if section.model is None else {})
    stops = end_of_answer_ids(tokenizer)
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30

    def prompt_of(text: str, sampling: Sampling) -> Prompt:
        made = render_prompt(tokenizer, [{"role": "user", "content": text}] if tokenizer.chat_template else text)
        if len(made.ids) + sampling.max_new_tokens > positions:
            size = f"{len(made.ids):,} tokens, and {sampling.max_new_tokens:,} new ones"
            raise ModelError(f"{own.id}: has {positions:,} positions; the prompt has {size}. Ask another model.")
        return made

    def ask(prompts: Sequence[str], sampling: Sampling, seed: int) -> list[Reply]:
        made, begun = [prompt_of(text, sampling) for text in prompts], time.perf_counter()
        settings = {"temperature": sampling.temperature, "top_k": 0} if sampling.temperature else None
        most = {"max_new_tokens": sampling.max_new_tokens, "batch_size": len(made)}
        with torch.random.fork_rng():  # a training that follows draws as if nothing had been
            torch.manual_seed(seed)
            ids = generate_ids(model, tokenizer, made, **most, stop_ids=stops, sampling=settings)
        cost = cost_usd(time.perf_counter() - begun, recipe.cost.price_usd_per_hour)
        share = None if cost is None else cost / len(prompts)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        rows = zip(texts, made, ids, strict=True)
        return [Reply(text.strip(), len(prompt.ids), len(new), share) for text, prompt, new in rows]

    return ask
