"""The libraries' chatter, off unless asked for: a run's terminal shows what the user can act on."""

from __future__ import annotations

import logging
import os
import warnings

__all__ = ["quieten_libraries"]


def quieten_libraries(*, debug: bool) -> None:
    """Set the log levels of the libraries that a run uses, and the warnings that nobody can act on.

    Called before they are imported. With ``debug`` everything is left as it is.
    """
    if debug:
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # bitsandbytes looks for an optional CPU kernel package and reports its absence; transformers reports special
    # tokens that it aligns; both are as intended here.
    for name in (
        "bitsandbytes",
        "transformers.trainer",
        "transformers.integrations.bitsandbytes",
        "accelerate",
        "torch.utils.checkpoint",
    ):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings(
        "ignore", category=UserWarning, module=r"torch\..*|transformers\..*|peft\..*|bitsandbytes\..*"
    )
