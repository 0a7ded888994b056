"""Models whose shape ships with the package, so that a plan needs neither weights nor network (``configs/*.json``).

A file holds what transformers needs of a ``config.json`` to build the architecture, from the file's ``source``;
``published_parameters`` is from ``parameters_source``, not from a build. ``gated`` is from a scrape of the hub in May
2026 (``AlexsJones/llmfit``, commit 5bdc9df, ``data/hf_models.json``). Gemma 3 from 4B on has its vision tower, as
``AutoModelForCausalLM`` builds it; its language model alone is ``config["text_config"]``.
"""

import functools
from pathlib import Path
from typing import Any

import msgspec

from hf_efficient.errors import ModelError
from hf_efficient.facts.tables import nearest, plain, rows

_FOLDER = Path(__file__).with_name("configs")


class ModelFact(msgspec.Struct, frozen=True):
    """The shape of one model, by its name on the hub. ``aliases``: hub names of the same shape, whose configurations
    differ only where no weight depends on it. ``gated``: whether the hub asks for consent; None where unknown.
    ``published_parameters``: values in its checkpoint, a tied head counted once; None without an exact count."""

    id: str
    aliases: tuple[str, ...]
    gated: bool | None
    published_parameters: int | None
    config_json: msgspec.Raw = msgspec.field(name="config")

    @property
    def names(self) -> tuple[str, ...]:
        return (self.id, *self.aliases)

    @property
    def config(self) -> dict[str, Any]:
        """A fresh copy: ``AutoConfig.for_model(**fact.config)`` fills in its class's defaults."""
        return msgspec.json.decode(self.config_json, type=dict[str, Any])


@functools.lru_cache(maxsize=1)
def known_models() -> tuple[ModelFact, ...]:
    paths = sorted(_FOLDER.glob("*.json"), key=lambda path: path.name.lower())
    return tuple(msgspec.json.decode(path.read_bytes(), type=ModelFact) for path in paths)


def find_model(name: str) -> ModelFact:
    """Of a hub name, with its organisation or without: ``llama-3.1-8b-instruct``. ``ModelError`` names the nearest."""
    found = _by_name().get(plain(name))
    if found is not None:
        return found
    close = nearest_models(name)
    hint = f"Did you mean {', '.join(close)}?" if close else f"{len(known_models())} models ship, none is near."
    raise ModelError(
        f"{name!r} is no model whose shape ships here. {hint} Or give a folder that holds its config.json."
    )


def nearest_models(name: str) -> list[str]:
    return nearest(name, (one for fact in known_models() for one in fact.names))[:5]


@functools.lru_cache(maxsize=1)
def _by_name() -> dict[str, ModelFact]:
    spelled = [(name, fact) for fact in known_models() for name in fact.names]
    return {plain(form): fact for name, fact in spelled for form in (name, name.rpartition("/")[2])}


def licence_of(model: str) -> str | None:
    """The licence of a shipped recipe's model, as the hub calls it; None where it is not known."""
    return next((row["licence"] for row in rows("licences") if model in row["of"]), None)
