"""One planted run in the process that it has to itself, or in each of its ranks.

python planted_process.py SPEC      SPEC: JSON with ``case`` and the fields of ``Setup``
"""

import json
import logging
import sys
import warnings
from pathlib import Path


def main() -> None:
    """Train the run that the command line names."""
    from planted_runs.cases import CASES, Setup

    from hf_efficient.facts.environment import quieten_libraries

    spec = json.loads(sys.argv[1])
    case = CASES[spec.pop("case")]
    quieten_libraries(debug=False)
    warnings.filterwarnings("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    setup = Setup(Path(spec.pop("folder")), Path(spec.pop("corpus")), **spec)
    case.build(setup).train()
    _leave_group()


def _leave_group() -> None:
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
