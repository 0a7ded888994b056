"""The libraries' chatter, off unless asked for: the terminal shows what the user can act on."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_imports", "quieten_libraries"]

# bitsandbytes looks for an optional CPU kernel package and reports its absence; transformers reports special
# tokens that it aligns; both are as intended here.
_CHATTY = (
    "bitsandbytes",
    "transformers.trainer",
    "transformers.integrations.bitsandbytes",
    "accelerate",
    "torch.utils.checkpoint",
)


def quieten_libraries(*, debug: bool) -> None:
    """Set the log levels of the libraries that a run uses, and the warnings that nobody can act on.

    Called before they are imported. With ``debug`` everything is left as it is.
    """
    if debug:
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings(
        "ignore", category=UserWarning, module=r"torch\..*|transformers\..*|peft\..*|bitsandbytes\..*"
    )


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Import libraries in the block without what they log meanwhile; the log levels are put back after it."""
    before = {name: logging.getLogger(name).level for name in _CHATTY}
    try:
        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
