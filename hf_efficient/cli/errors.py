"""How a command ends: the one place that turns exceptions into messages and exit codes.

0    done
1    the command ran and the answer is no; or a defect of ours
2    bad input: the recipe, the data, the flags, this machine
130  interrupted from the keyboard
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from hf_efficient.errors import HfEfficientError

__all__ = ["INTERRUPTED", "run_guarded"]

INTERRUPTED = 130


def run_guarded(action: Callable[[], object], *, debug: bool) -> int:
    """Run a command and tell how it went.

    Args:
        action: the command. ``SystemExit`` passes through.
        debug: show tracebacks.

    Returns:
        The exit code.
    """
    try:
        action()
    except KeyboardInterrupt:
        return INTERRUPTED
    except HfEfficientError as error:
        if debug:
            traceback.print_exc()
        for line in str(error).splitlines() or [type(error).__name__]:
            print(f"error: {line}", file=sys.stderr)
        return error.exit_code
    except Exception as error:  # noqa: BLE001  the last resort: everything else is a defect
        _tell_defect(error, debug)
        return 1
    return 0


def _tell_defect(error: Exception, debug: bool) -> None:
    if debug:
        traceback.print_exc()
        return
    told = " ".join(f"{type(error).__name__}: {error}".split())
    remedy = "Run it again with --debug for the traceback, and report it with the output of `hf-efficient env`."
    print(f"error: this is a defect of hf_efficient: {told}. {remedy}", file=sys.stderr)
