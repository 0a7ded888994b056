"""The versions and the hardware that a process runs on, as facts for its records."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from hf_efficient.facts.environment import describe_environment


@cache
def environment_facts() -> dict[str, Any]:
    """What ``hf-efficient env`` tells, gathered once per process; raises nothing.

    It asks other programs, which may take a while: not for the thread that trains. CUDA is not started for it; a
    process that has not done so uses no GPU, and is told without them.
    """
    try:
        asks_torch = torch.cuda.is_initialized() or not torch.cuda.is_available()
        return describe_environment(ask_torch=asks_torch).to_dict()
    except Exception as error:  # noqa: BLE001  whatever a machine may be like, the run goes on
        return {"missing": [{"what": "versions and hardware", "why": f"{type(error).__name__}: {error}"}]}
