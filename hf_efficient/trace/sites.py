"""Where in the program a call was made, from the Python functions that the profiler recorded."""

from __future__ import annotations

import re

import numpy as np

from hf_efficient.trace.host import HostWork
from hf_efficient.trace.table import EventTable

__all__ = ["call_site", "function_site"]

# ``train.py(12): compute_loss``; built-in functions and ``nn.Module: Linear_3`` have no file.
_FUNCTION = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
_INSTALLED = re.compile(r"(site|dist)-packages/|^torch/|/torch/|^<|lib/python3|^(threading|contextlib|runpy)\.py")


def call_site(events: EventTable, host: HostWork, row: int) -> str | None:
    """``file:line (function)`` around an event of the host; None where nothing was recorded around it.

    The innermost function of the user's own files; where there is none, the innermost function with a file. The line is
    the one at which the function is defined: the profiler records no other.
    """
    return function_site(_stack(events, host, row))


def function_site(functions: list[str]) -> str | None:
    """The place among these functions, the innermost first, that a user would look at."""
    placed = [told for function in functions if (told := _FUNCTION.match(function)) is not None]
    own = [told for told in placed if not _INSTALLED.search(told["file"])]
    if not placed:
        return None
    chosen = (own or placed)[0]
    return f"{chosen['file']}:{chosen['line']} ({chosen['function']})"


def _stack(events: EventTable, host: HostWork, row: int) -> list[str]:
    """Names of the Python functions around an event, the innermost first; or the call stack that an operator has."""
    if len(host.functions):
        node = int(host.functions.innermost(events.thread[[row]].astype(np.int64), events.start[[row]])[0])
        rows = host.functions.rows[host.functions.chain(node)]
        return [events.names[name] for name in events.name[rows].tolist()]
    rows = host.work.rows[host.work.chain(int(host.work.nodes(np.array([row]))[0]))]
    stacks = [stack for stack in events.stack[rows].tolist() if stack >= 0]
    return events.names[stacks[0]].split(";") if stacks else []
