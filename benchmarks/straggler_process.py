"""A run of two ranks: started without RANK it starts both, with it it is one of them.

python straggler_process.py SPEC      SPEC: JSON with ``case`` (fields of StragglerCase), ``folder``, ``slow_seconds``
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path


def main() -> None:
    """Train, or start the two that do."""
    if "RANK" not in os.environ:
        sys.exit(_start_both())
    from straggler_runs.case import StragglerCase
    from straggler_runs.training import train_rank

    from hf_efficient.facts.libraries import quieten_libraries

    quieten_libraries(debug=False)
    warnings.filterwarnings("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    spec = json.loads(sys.argv[1])
    case = StragglerCase(**spec["case"])
    train_rank(case, int(os.environ["RANK"]), Path(spec["folder"]), spec["slow_seconds"])
    _leave_group()


def _start_both() -> int:
    """Two nodes of one process each, on this machine, so that each saves for itself where the case says so."""
    from processes import free_port

    group = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    group |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **group, "RANK": str(rank)})
        for rank in range(2)
    ]
    return max(abs(one.wait()) for one in ranks)


def _leave_group() -> None:
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
