"""A model as a GGUF file, written tensor by tensor, and read back by transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_efficient.errors import ModelError
from hf_efficient.estimate.gguf_size import ARCHITECTURES, Tensor, gguf_shape, type_of
from hf_efficient.estimate.model_shape import ModelShape
from hf_efficient.export.vocabulary import add_vocabulary
from hf_efficient.records.trained_model import Rounding

_NOT_READ = ("rope_parameters", "head_dim", "sliding_window", "layer_types", "attention_bias", "mlp_bias")
"""Of the configuration, what transformers' reader does not take from a GGUF file of every architecture."""


class _Written(NamedTuple):
    name: str  # in the model
    gguf_name: str
    type: str
    values: torch.Tensor


def write_gguf(
    path: Path, model: Any, tokenizer: Any, name: str, quantization: str, licence: str | None = None
) -> list[Rounding]:
    """Write a dense model; the Frobenius norm of what rounding took from each matrix. Raises ``ModelError``: the format
    cannot hold the architecture, the tokenizer, the positions or the size of a weight."""
    config = model.config
    shape = gguf_shape(config)
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config.model_type])
    try:
        _add_metadata(writer, config, shape, name, quantization, licence)
        add_vocabulary(writer, tokenizer, shape.vocabulary)
        tensors = list(_tensors(model, shape, quantization))
        for one in tensors:
            kind = gguf.GGMLQuantizationType[one.type]
            rows = tuple(one.values.shape)
            packed = gguf.quant_shape_to_byte_shape(rows, kind)
            plain = {"F32": np.float32, "F16": np.float16}.get(one.type)
            dtype = np.dtype(plain or np.uint8)
            writer.add_tensor_info(one.gguf_name, rows if plain else packed, dtype, int(np.prod(packed)), kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        return [found for one in tensors if (found := _write(writer, one)) is not None]
    finally:
        writer.close()


def read_gguf(path: Path, trained: PretrainedConfig) -> tuple[Any, Any, list[str]]:
    """The model in float32 and the tokenizer that transformers reads from the file. The list names what its reader
    does not take from there, and has from the trained model's configuration. Raises ``ModelError``: cannot be read."""
    try:
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        shared = [key for key in _NOT_READ if hasattr(config, key) and hasattr(trained, key)]
        given = [key for key in shared if getattr(config, key) != getattr(trained, key)]
        for key in given:
            setattr(config, key, getattr(trained, key))
        how: Any = {"config": config, "dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, **how)
        return model.eval(), AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name), given
    except (OSError, ValueError, KeyError, IndexError, NotImplementedError) as error:
        told = "the exported file cannot be read back by transformers, so it was removed"
        raise ModelError(f"{told}: {error}") from error


def _tensors(model: Any, shape: ModelShape, quantization: str) -> Iterator[_Written]:
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == ARCHITECTURES[shape.model_type])
    names = gguf.get_tensor_name_map(arch, shape.layers)
    if factors := _rope_factors(model.config, shape):
        yield _Written("rope_freqs", "rope_freqs.weight", "F32", factors[0])
    for name, values in model.state_dict().items():
        if name == "lm_head.weight" and shape.tied_embeddings:
            continue
        module, _, kind = name.rpartition(".")
        found = names.get_name(module)
        if found is None:
            raise ModelError(f"--to: GGUF has no place for the tensor {name} of this model. Write --to merged.")
        if ARCHITECTURES[shape.model_type] == "llama" and module.endswith(("q_proj", "k_proj")):
            values = _interleaved(values, shape.heads if module.endswith("q_proj") else shape.kv_heads)
        layer = int(name.split("layers.")[1].split(".")[0]) if "layers." in name else 0
        last = module.rpartition(".")[2] if values.dim() == 2 else None
        place = Tensor(last, layer, values.shape[0], values.shape[-1])
        yield _Written(name, f"{found}.{kind}", type_of(place, shape, quantization), values)


def _interleaved(values: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp rotates neighbouring features of a head, transformers those half a head apart."""
    half = values.shape[0] // heads // 2
    return values.reshape(heads, 2, half, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _rope_factors(config: PretrainedConfig, shape: ModelShape) -> tuple[torch.Tensor, ...]:
    """What llama.cpp divides each rotary frequency by, for Llama 3.1's scaling; empty without it."""
    rope = config.rope_parameters
    if rope.get("rope_type", "default") != "llama3":
        return ()
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device=torch.device("cpu"))
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    return (1.0 / rope["rope_theta"] ** exponents / scaled,)


def _write(writer: gguf.GGUFWriter, one: _Written) -> Rounding | None:
    dense: np.ndarray = one.values.detach().float().cpu().contiguous().numpy()
    kind = gguf.GGMLQuantizationType[one.type]
    with np.errstate(over="ignore"):
        stored = gguf.quants.quantize(dense, kind)
    if one.type == "F32":
        writer.write_tensor_data(stored)
        return None
    back = gguf.quants.dequantize(stored, kind)
    if not np.isfinite(back).all():
        raise ModelError(
            f"--to: {one.name} holds {np.abs(dense).max():.3g}, more than the 16 bits of GGUF's {one.type} hold. "
            "Write --to merged."
        )
    writer.write_tensor_data(stored)
    return Rounding(one.name, one.type, float(np.linalg.norm(back - dense)))


def _add_metadata(
    writer: gguf.GGUFWriter,
    config: PretrainedConfig,
    shape: ModelShape,
    name: str,
    quantization: str,
    licence: str | None,
) -> None:
    writer.add_type("model")
    writer.add_name(name)
    if licence:
        writer.add_license(licence)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{quantization}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    figures = {
        "context_length": config.max_position_embeddings, "vocab_size": shape.vocabulary,
        "embedding_length": shape.hidden, "block_count": shape.layers, "feed_forward_length": shape.intermediate,
        "head_count": shape.heads, "head_count_kv": shape.kv_heads, "key_length": shape.head_dim,
        "value_length": shape.head_dim, "rope_dimension_count": shape.head_dim,
        "layer_norm_rms_eps": config.rms_norm_eps, "rope_freq_base": config.rope_parameters["rope_theta"],
    }  # fmt: skip
    for key, value in figures.items():
        getattr(writer, f"add_{key}")(value)
    rope = config.rope_parameters
    kind = rope.get("rope_type", "default")
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind not in ("default", "llama3"):
        raise ModelError(f"--to: positions scaled by {kind} are not written to GGUF here. Write --to merged.")
