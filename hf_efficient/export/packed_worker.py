"""Started by the Python that has GPTQModel, which need not have this package: quantizes a folder, or answers from one.

    PYTHON packed_worker.py quantize ASKED.json | PYTHON packed_worker.py answer FOLDER LOGITS.npy

``answer`` reads a JSON list of token ids on each line, writes their logits, and says so with a line of its own.
"""

import json
import sys
from pathlib import Path
from typing import Any

DONE = "hf-efficient: done"


def quantize(asked: dict[str, Any]) -> None:
    from gptqmodel import GPTQModel, QuantizeConfig  # type: ignore[import-not-found, unused-ignore]

    how = {"quant_method": "awq", "format": "gemm", "sym": False} if asked["method"] == "awq" else {}
    model = GPTQModel.load(asked["source"], QuantizeConfig(bits=4, group_size=asked["group_size"], **how))
    model.quantize([{"input_ids": row, "attention_mask": [1] * len(row)} for row in asked["rows"]], batch_size=1)
    model.save(asked["target"])


def answer(folder: str, path: str) -> None:
    import numpy as np
    import torch
    from gptqmodel import GPTQModel  # type: ignore[import-not-found, unused-ignore]

    model = GPTQModel.load(folder)
    print(DONE, flush=True)
    for line in sys.stdin:
        ids = torch.tensor([json.loads(line)], device=model.device)
        with torch.no_grad():
            logits = model.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        np.save(path, logits.float().cpu().numpy())
        print(DONE, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "quantize":
        quantize(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    else:
        answer(*sys.argv[2:])
