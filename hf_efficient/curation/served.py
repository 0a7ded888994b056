"""Servers of OpenAI's form, asked over HTTP. What fails is a ``ModelError`` that names the URL and the remedy."""

import os
import time
from typing import Any

from hf_efficient.errors import ModelError, SetupError, first_line

KEY_VARIABLE = "HF_EFFICIENT_API_KEY"
"""Environment variable with the key that servers get; its name is no key of a recipe, which would choose what leaks."""

_PATIENCE = 120.0  # seconds without a word from a server
_WAITS = (1.0, 4.0, 16.0)  # seconds before it is asked again
_PASSING = frozenset({408, 409, 429, 500, 502, 503, 504})


def answered(method: str, url: str, *, tries: int = 1, **more: Any) -> Any:
    """The response of status 200. Servers that are down or busy are asked up to ``tries`` times."""
    try:
        import requests
    except ModuleNotFoundError as error:
        raise SetupError(f"{url}: servers are asked through requests. Run `pip install requests`.") from error
    key = os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for attempt in range(1, tries + 1):
        try:
            response = requests.request(method, url, timeout=_PATIENCE, headers=headers, **more)
        except requests.RequestException as error:
            fault = ModelError(f"{url} does not answer: {first_line(error)}. Start the server, or correct the URL.")
        else:
            if response.status_code == 200:
                return response
            key_hint = f" Set {KEY_VARIABLE} to its key." if response.status_code in (401, 403) else ""
            fault = ModelError(f"{url} answers {response.status_code}: {response.text[:200]!r}.{key_hint}")
            if response.status_code not in _PASSING:
                break
        if attempt < tries:
            time.sleep(_WAITS[min(attempt, len(_WAITS)) - 1])
    raise fault


def first_model(url: str, remedy: str) -> str:
    """The first model that a server names."""
    with answered("GET", f"{url}/models") as response:
        try:
            return str(response.json()["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ModelError(f"{url}/models names no model. {remedy}") from error
