"""The first import of a process that ``python -m hf_efficient...`` starts: what has to happen before all others.

``-m`` puts the current folder before the installed packages, where a ``datasets.py`` would take the place of one, and
where a name in a recipe would run code. A signal that comes during the imports waits in ``arrived`` for ``main``.
"""

import signal
import sys
from pathlib import Path

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
STOP_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""A person's, a cluster's, and those that clusters warn with before they take a machine away."""

arrived: list[int] = []

_program = Path(sys.argv[0])
if Path(__file__).parent in _program.parents:
    if sys.path[0] in ("", str(Path.cwd())):
        del sys.path[0]
    if _program.name == "train.py":
        for _number in STOP_SIGNALS:
            signal.signal(_number, lambda received, frame: arrived.append(received))
