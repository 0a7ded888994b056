"""GPTQ and AWQ by GPTQModel, in a Python of its own: it asks for other versions of torch than a training may have."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_efficient.errors import ModelError, SetupError
from hf_efficient.export import packed_worker
from hf_efficient.export.agreement import Forward

_WORKER = str(packed_worker.__file__)
_GROUPS = (128, 64, 32)
"""Weights of a row that share a scale, where they fill all rows."""


@functools.cache
def check_python(python: Path | None) -> str:
    """Raises ``SetupError``: it cannot import GPTQModel."""
    path = str((python or Path(sys.executable)).absolute())
    try:
        command = [path, "-I", "-c", f"import gptqmodel; print({packed_worker.DONE!r})"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SetupError(
            f"--python: {path} cannot be started: {error.strerror}. Write the path of a Python."
        ) from error
    if found.returncode:
        raise SetupError(
            f"--to: GPTQ and AWQ need GPTQModel, and {path} has none that works ({_last_line(found.stderr)}). Make an "
            "environment for it: `python -m venv gptq`, `gptq/bin/pip install -U setuptools`, `gptq/bin/pip install "
            "gptqmodel --no-build-isolation`; then add --python gptq/bin/python."
        )
    if packed_worker.DONE not in found.stdout:
        raise SetupError(f"--python: {path} is no Python. Write the path of one that has GPTQModel.")
    return path


def packed_bytes(model: Any, method: str) -> int:
    """Of the weights: 4 bits each, 16 of a scale and 4 of a zero for each group, 32 for each column of GPTQ's order of
    columns. What is no matrix of a layer stays in 16 bits."""
    ordered = 4 * (method == "gptq")
    matrices = _matrices(model)
    group = group_size(model)
    held = sum(one.weight.numel() for one in matrices)
    of_groups = sum(one.weight.numel() // group * 5 // 2 + ordered * one.in_features for one in matrices)
    return 2 * (model.num_parameters() - held) + held // 2 + of_groups


def group_size(model: Any) -> int:
    """Raises ``ModelError``: no group fills the rows of all matrices."""
    columns = {one.in_features for one in _matrices(model)}
    found = next((group for group in _GROUPS if all(one % group == 0 for one in columns)), None)
    if found is None:
        raise ModelError(
            f"--to: GPTQ and AWQ round groups of {_GROUPS[-1]} weights or more, and rows of {min(columns)} are no "
            "multiple. Write --to gguf:Q4_0."
        )
    return found


def _matrices(model: Any) -> list[Any]:
    head = model.get_output_embeddings()
    return [one for one in model.modules() if isinstance(one, torch.nn.Linear) and one is not head]


def quantize(
    folder: Path, model: Any, tokenizer: Any, rows: Sequence[Sequence[int]], python: Path | None, method: str
) -> None:
    """``rows``: token ids to calibrate on; ``method``: gptq or awq. Raises ``ModelError``: GPTQModel fails."""
    with tempfile.TemporaryDirectory(dir=folder.parent.absolute(), prefix=".packing-") as beside:
        dense, asked = Path(beside) / "dense", Path(beside) / "asked.json"
        model.save_pretrained(dense)
        tokenizer.save_pretrained(dense)
        order: dict[str, Any] = {"source": str(dense), "target": str(folder.absolute())}
        order |= {"method": method, "group_size": group_size(model), "rows": [list(row) for row in rows]}
        asked.write_text(json.dumps(order), encoding="utf-8")
        command = [check_python(python), "-I", _WORKER, "quantize", str(asked)]
        how: Any = {"cwd": beside, "env": _environment()}  # GPTQModel writes logs where it stands
        found = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    if found.returncode or not any(folder.glob("*.safetensors")):
        killed = "it was killed, perhaps for want of memory"
        why = killed if found.returncode < 0 else _last_line(found.stdout + found.stderr)
        raise ModelError(f"--to: GPTQModel cannot write this model: {why}.")
    tokenizer.save_pretrained(folder)


@contextmanager
def opened(folder: Path, python: Path | None) -> Iterator[Forward]:
    """The folder read back by GPTQModel in a process of its own. Raises ``ModelError``: it cannot be."""
    with tempfile.TemporaryDirectory(dir=folder.parent.absolute(), prefix=".packing-") as beside:
        path, log = Path(beside) / "logits.npy", Path(beside) / "log"
        command = [check_python(python), "-I", _WORKER, "answer", str(folder.absolute()), str(path)]
        how: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": _environment()}
        with log.open("w") as said, subprocess.Popen(command, stderr=said, cwd=beside, **how) as process:
            asked: Any = process.stdin
            told: Any = process.stdout

            def wait() -> None:
                if not any(line.strip() == packed_worker.DONE for line in iter(told.readline, "")):
                    why = _last_line(log.read_text(encoding="utf-8", errors="replace"))
                    raise ModelError(f"GPTQModel cannot read the exported files back, so they were removed: {why}.")

            def forward(ids: torch.Tensor) -> torch.Tensor:
                print(json.dumps(ids[0].tolist()), file=asked, flush=True)
                wait()
                return torch.from_numpy(np.load(path))

            try:
                wait()
                yield forward
            finally:
                process.kill()


def _environment() -> dict[str, str]:
    """GPTQModel 7.7 wants two workers, and gives a machine of two cores one."""
    return {"GPTQMODEL_CPU_WORKERS": "2", **os.environ}


def _last_line(text: str) -> str:
    """The last that names an error, among what a library logs."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if "Error" in line] or lines
    return lines[-1].rstrip(".") if lines else "it said nothing"
