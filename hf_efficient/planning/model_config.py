"""The architecture that a recipe's ``model`` section names, without its weights."""

import copy
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from hf_efficient.errors import ModelError, SetupError, cause
from hf_efficient.facts.environment import hub_reachable
from hf_efficient.facts.models import find_model, nearest_models
from hf_efficient.model.load import FAULTS_OF_FILES, auto_class
from hf_efficient.model.prune import pruned_config
from hf_efficient.model.source import ModelSource, converted_folder, resolve_model_source
from hf_efficient.planning.arguments import process_kept
from hf_efficient.recipe.schema import ModelSection


def model_config(model: ModelSection) -> PretrainedConfig:
    """The configuration of what is trained: that of ``whole_config``, smaller where ``model.prune`` says so."""
    found = whole_config(model)
    return found if model.prune is None else pruned_config(found, model.prune)


def whole_config(model: ModelSection) -> PretrainedConfig:
    """That of a local folder or GGUF file, of the catalogue of known models, or of the hub. ``ModelError``:
    there is none, or of an unknown architecture. ``SetupError``: a package that carries the model is not installed."""
    source = resolve_model_source(model)
    if source.is_local and source.gguf_file is not None:
        folder = converted_folder(source.location, source.gguf_file)  # which a run has made, and is read in a moment
        source = source if folder is None else ModelSource(str(folder), None, is_local=True)
    try:
        if not source.is_local and model.revision is None:
            with suppress(ModelError):
                return AutoConfig.for_model(**find_model(source.location).config)
        options: dict[str, Any] = {} if source.gguf_file is None else {"gguf_file": source.gguf_file}
        if not source.is_local:
            options |= {"revision": model.revision or "main", "local_files_only": not hub_reachable()}
        return AutoConfig.from_pretrained(source.location, trust_remote_code=model.trust_remote_code, **options)
    except OSError as error:
        raise ModelError(_unreachable(source, error)) from error
    except FAULTS_OF_FILES as error:
        raise ModelError(f"model.id: the configuration of {source.location} cannot be read: {cause(error)}") from error


def _unreachable(source: ModelSource, error: OSError) -> str:
    if source.is_local:
        return f"model.id: {source.location} has no configuration that can be read: {cause(error)}"
    close = nearest_models(source.location)
    nearest = f"Shapes that ship: did you mean {', '.join(close)}?" if close else ""
    return (
        f"model.id: the configuration of {source.location} is neither shipped with hf_efficient nor in the local hub "
        f"cache, and the hub has not given it ({cause(error)}). Write a local folder that holds its config.json, "
        f"run `hf auth login` for a gated model, or `hf download {source.location} config.json` where there is a "
        f"network. {nearest}"
    ).strip()


_FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


def weights_dtype(model: ModelSection, config: PretrainedConfig) -> torch.dtype:
    """``model.dtype``; for ``auto`` the configuration's, else that of a local checkpoint's first weight or float32."""
    if model.dtype != "auto":
        return getattr(torch, model.dtype)
    stated = config.dtype
    return stated if isinstance(stated, torch.dtype) else _of_checkpoint(model) or torch.float32


def _of_checkpoint(model: ModelSection) -> torch.dtype | None:
    source = resolve_model_source(model)
    for path in sorted(Path(source.location).glob("*.safetensors")) if source.is_local else ():
        try:
            with safe_open(path, framework="pt") as weights:
                kinds = [weights.get_slice(name).get_dtype() for name in weights.keys()]  # noqa: SIM118  no mapping
        except (OSError, SafetensorError):
            continue
        found = next((_FLOATS[kind] for kind in kinds if kind in _FLOATS), None)
        if found is not None:
            return found
    return None


def largest_parameter(model: ModelSection) -> int:
    """Values of the largest parameter, by the meta model; ``ModelError`` where transformers cannot build it."""
    with process_kept():
        return max(parameter.numel() for parameter in meta_model(model, model_config(model)).parameters())


def meta_model(
    model: ModelSection, config: PretrainedConfig, *, scores: bool = False, **options: Any
) -> PreTrainedModel:
    """``scores``: a reward model."""
    if scores:
        config = copy.deepcopy(config)
        config.num_labels = 1

    try:
        with torch.device("meta"):
            return auto_class(scores=scores).from_config(config, trust_remote_code=model.trust_remote_code, **options)
    except ImportError as error:
        raise SetupError(f"model: {cause(error)}") from error
    except FAULTS_OF_FILES as error:
        raise ModelError(
            f"model: transformers cannot build a causal language model from its configuration: {cause(error)}"
        ) from error
