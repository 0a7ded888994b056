"""Putting data, scripts and styles into a page so that nothing of them can be taken for something else."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

__all__ = ["json_for_script", "policy", "script_text"]

# Inside <script> HTML knows no entities; JSON knows these escapes anywhere in a text.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def json_for_script(data: Any) -> Markup:
    """Strict JSON that stands in ``<script type="application/json">`` whatever texts it holds; NaN becomes null."""
    text = json.dumps(_finite(data), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return Markup(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def script_text(source: str) -> Markup:
    """A script of ours, as it stands.

    Raises:
        ValueError: it would end its own element.
    """
    if "</script" in source.lower() or "<!--" in source:
        raise ValueError("a script that holds '</script' or '<!--' cannot stand in a page")
    return Markup(source)


def policy(scripts: Iterable[str]) -> str:
    """A Content-Security-Policy under which these scripts run, no others, and nothing is fetched from anywhere."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
