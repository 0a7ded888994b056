"""A model as an ONNX graph with its cache, by transformers' own exporter, and read back by ONNX Runtime."""

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_efficient.errors import ModelError, SetupError, first_line
from hf_efficient.export.agreement import Forward
from hf_efficient.facts.environment import is_installed, quiet_imports

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_FILE = "model.onnx"


def check_packages() -> None:
    """Raises ``SetupError``: one that writes ONNX, or reads it back, is not installed."""
    missing = [name for name in _PACKAGES if not is_installed(name)]
    if not is_installed("transformers.exporters"):
        raise SetupError("--to: ONNX is written by transformers' own exporter. Install transformers 5.23 or newer.")
    if missing:
        raise SetupError(f"--to: ONNX needs {', '.join(missing)}. Install with `pip install {' '.join(missing)}`.")


def write_onnx(folder: Path, model: Any) -> None:
    """One graph for prompts and for the tokens after them: it takes ids, positions and the cache, empty at first.
    Raises ``ModelError``: torch cannot trace the model."""
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter
    from transformers.exporters.utils import decompose_for_generation

    ids = torch.ones(2, 8, dtype=torch.long)
    asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    try:
        with quiet_imports(), contextlib.redirect_stdout(io.StringIO()):  # torch prints its stages
            graph: Any
            graph, inputs = decompose_for_generation(model.eval(), asked, multi_token_decode=True)["decode"]
            made = OnnxExporter().export(graph, inputs, config=OnnxConfig(dynamic=True))
            OnnxExporter.save_program(made.program, folder / _FILE)
    except Exception as error:  # of any kind, by architecture
        raise ModelError(f"--to: transformers cannot write this model as ONNX: {first_line(error)}.") from error
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)


def read_onnx(folder: Path) -> Forward:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(folder / _FILE, options, providers=["CPUExecutionProvider"])
    empty = {
        one.name: np.zeros([1, int(one.shape[1]), 0, int(one.shape[3])], np.float32)
        for one in session.get_inputs()
        if "past_key_values" in one.name
    }

    def forward(ids: torch.Tensor) -> torch.Tensor:
        given = {"input_ids": ids.numpy(), "position_ids": np.arange(ids.shape[1])[None], **empty}
        return torch.from_numpy(session.run(["logits"], given)[0])

    return forward
