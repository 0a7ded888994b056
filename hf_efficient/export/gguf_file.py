"""A model with its tokenizer as a GGUF file, written tensor by tensor, and read back by transformers."""

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_efficient.errors import ModelError
from hf_efficient.estimate.gguf_size import ARCHITECTURES, WRITTEN, Tensor, gguf_shape, type_of
from hf_efficient.estimate.model_shape import ModelShape
from hf_efficient.export import llama_cpp
from hf_efficient.metrics.answers import end_of_answer_ids
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
    if quantization not in WRITTEN:
        with tempfile.TemporaryDirectory(dir=path.parent.parent, prefix=".packing-") as beside:
            dense = Path(beside) / path.name
            stored = write_gguf(dense, model, tokenizer, name, "F16", licence)
            llama_cpp.quantize(dense, path, quantization)
        return list(_roundings(path, model, [one.tensor for one in stored]))
    config = model.config
    shape = gguf_shape(config)
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config.model_type])
    try:
        _add_metadata(writer, config, name, quantization, licence)
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


def _roundings(path: Path, model: Any, names: Sequence[str]) -> Iterator[Rounding]:
    """Of the file that llama.cpp made, beside the model's own values."""
    shape = gguf_shape(model.config)
    dense = {one.gguf_name: one for one in _tensors(model, shape, "F16") if one.name in names}
    for one in gguf.GGUFReader(path).tensors:
        if one.name in dense:
            back = gguf.quants.dequantize(one.data, one.tensor_type)
            values = dense[one.name].values.detach().float().cpu().numpy()
            yield Rounding(dense[one.name].name, one.tensor_type.name, float(np.linalg.norm(back - values)))


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
    writer: gguf.GGUFWriter, config: PretrainedConfig, name: str, quantization: str, licence: str | None
) -> None:
    shape = gguf_shape(config)
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


_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {_LLAMA_3: "llama-bpe", _LLAMA_3.replace("{1,3}", ""): "qwen2", _TEKKEN: "tekken"}
"""How text is cut before the merges, and what llama.cpp calls it (``llm_tokenizer_bpe`` in its ``llama-vocab.cpp``)."""

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def check_vocabulary(tokenizer: Any, rows: int) -> dict[str, Any]:
    """What ``tokenizer.json`` holds. Raises ``ModelError``: GGUF has no such tokenizer, or too few ``rows``."""
    held: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str()) if tokenizer.is_fast else {}
    model = held.get("model", {})
    if model.get("type") != "BPE" or not model.get("merges"):
        kind = "BPE without any" if model.get("type") == "BPE" else model.get("type") or type(tokenizer).__name__
        raise ModelError(
            f"--to: a GGUF file of a language model holds a BPE tokenizer with its merges, and this one is {kind}. "
            "Write --to merged."
        )
    if len(tokenizer) > rows:
        raise ModelError(
            f"--to: the tokenizer has {len(tokenizer)} tokens and the model {rows} embeddings, which GGUF cannot hold. "
            "Train with the model's own tokenizer."
        )
    if not model.get("byte_fallback"):
        pre_tokenizer(held)
    return held


def add_vocabulary(writer: Any, tokenizer: Any, rows: int) -> None:
    held = check_vocabulary(tokenizer, rows)
    model = held["model"]
    merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
    is_sentencepiece = bool(model.get("byte_fallback"))
    if is_sentencepiece:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        ranks = {merge.replace(" ", ""): rank for rank, merge in reversed([*enumerate(merges)])}
        names = {index: token for token, index in tokenizer.get_vocab().items()}
        # SentencePiece joins the pair with the highest score first: that of the earliest merge
        writer.add_token_scores([-float(ranks.get(names.get(index, ""), len(merges))) for index in range(rows)])
        writer.add_add_space_prefix(tokenizer.tokenize("a")[0].startswith("▁"))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre_tokenizer(held))
        writer.add_token_merges(merges)
    tokens, types = _tokens(tokenizer, rows, is_sentencepiece=is_sentencepiece)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    _add_special(writer, tokenizer)


def pre_tokenizer(held: dict[str, Any]) -> str:
    """llama.cpp's name of how a byte-level ``tokenizer.json`` cuts a text before the merges; ``ModelError``: none."""
    parts = held.get("pre_tokenizer") or {}
    parts = parts.get("pretokenizers", [parts])
    kinds = [part.get("type") for part in parts]
    if kinds == ["ByteLevel"] and parts[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and (named := _SPLITS.get(parts[0].get("pattern", {}).get("Regex", ""))):
        return named
    raise ModelError(
        "--to: llama.cpp has no name that is known here for how this tokenizer cuts text "
        f"({', '.join(map(str, kinds))}), so its tokens would differ. Write --to merged, and convert that folder by "
        "llama.cpp's own converter."
    )


def _tokens(tokenizer: Any, rows: int, *, is_sentencepiece: bool) -> tuple[list[str], list[int]]:
    names = {index: token for token, index in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    tokens, types = [], []
    for index in range(rows):
        name = names.get(index)
        if name is None:
            kind = gguf.TokenType.UNUSED
        elif index in added and index == tokenizer.unk_token_id and is_sentencepiece:
            kind = gguf.TokenType.UNKNOWN
        elif index in added:
            kind = gguf.TokenType.CONTROL if added[index].special else gguf.TokenType.USER_DEFINED
        else:
            is_byte = is_sentencepiece and _BYTE.fullmatch(name)
            kind = gguf.TokenType.BYTE if is_byte else gguf.TokenType.NORMAL
        if kind == gguf.TokenType.USER_DEFINED and is_sentencepiece:
            name = str(name).replace("▁", " ")
        tokens.append(f"[PAD{index}]" if name is None else name)
        types.append(int(kind))
    return tokens, types


def _add_special(writer: Any, tokenizer: Any) -> None:
    for name in ("bos", "eos", "unk", "pad"):
        index = getattr(tokenizer, f"{name}_token_id")
        if index is not None:
            getattr(writer, f"add_{name}_token_id")(index)
    turn = next((index for index in end_of_answer_ids(tokenizer) if index != tokenizer.eos_token_id), None)
    if turn is not None:
        writer.add_eot_token_id(turn)
    ids, bare = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    writer.add_add_bos_token(ids != bare and ids[:1] == [tokenizer.bos_token_id])
    writer.add_add_eos_token(ids != bare and ids[-1:] == [tokenizer.eos_token_id])
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
