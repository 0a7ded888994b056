"""Why something is missing, in the account's own words."""

from __future__ import annotations

from hf_efficient.records import RunAccount

__all__ = ["why"]


def why(account: RunAccount, what: str, otherwise: str) -> str:
    """The reason that ``not_measured`` gives for the first thing whose name starts so; else ``otherwise``."""
    return next((gap.why for gap in account.not_measured if gap.what.startswith(what)), otherwise)
