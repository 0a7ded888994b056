"""A trained adapter merged into its base: a model folder that plain transformers loads.

A QLoRA adapter learned beside the *quantized* base to make up for what quantization took away. So by default it is
merged into the dequantized weights, which gives the model that was trained. On SmolLM2-135M an NF4 adapter of rank 16
moved the logits by 2.6e-01 in 30 steps. The merged model met the trained one's logits within (relative L2 distance, by
data type of the weights):

    merged into                   float32    float16    bfloat16
    the dequantized weights       1.9e-06    3.0e-03    2.6e-02
    (the same, left unmerged)     0          2.5e-03    2.5e-02
    the original, dense weights   2.3e-01    2.3e-01    2.2e-01

An 8-bit base rounds its activations too, which no merged model does (9e-02 from there, in bfloat16); its merge is
checked against the adapter unmerged on the dequantized weights.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftConfig, PeftModel, __version__
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_efficient.errors import ModelError, OutputError, first_line
from hf_efficient.launch.checkpoints import BASE_WEIGHTS, EFFICIENCY
from hf_efficient.launch.exits import ends_on_signals, is_full_disk
from hf_efficient.model.four_bit_experts import adapt_experts
from hf_efficient.model.load import auto_class, load_base, load_dense_base, load_tokenizer
from hf_efficient.model.source import weights_mark
from hf_efficient.recipe.load import resolved_parts
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import ModelSection, QuantizationSection, Recipe, compute_dtype
from hf_efficient.run_dir.checkpoints import checkpoints, damage_of
from hf_efficient.run_dir.json_file import published
from hf_efficient.run_dir.paths import RESOLVED

TOLERANCE: dict[str, float] = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest relative difference of the logits that rounding explains, by data type of the weights: four to seven times
that of the table above in 16 bits, most of which is the unmerged model's own rounding; in float32 fifty times."""

ADAPTER_CONFIG = "adapter_config.json"
_TEXT = "The quick brown fox jumps over the lazy dog. def add(a, b): return a + b"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_REMEDY = "It was damaged, or copied in part: copy the folder again, or write one of the run's checkpoints."

BaseWeights = Literal["dequantized", "dense"]


@dataclass(frozen=True)
class MergeReport:
    """``relative_difference`` is ||merged - unmerged|| / ||unmerged||, L2 norms of the logits on one short text;
    ``adapter_effect`` the same between the base with and without its adapter; ``tolerance`` the largest that passes."""

    output: Path
    base: BaseWeights
    dtype: str
    parameters: int
    relative_difference: float
    adapter_effect: float
    tolerance: float


@dataclass(frozen=True)
class TrainedAdapter:
    """A PEFT adapter on the disk, and its recipe, if any; the base is loaded with transformers' default attention."""

    folder: Path
    model: ModelSection
    recipe: Recipe | None

    @property
    def quantized(self) -> bool:
        return self.recipe is not None and self.recipe.adapter.method == "qlora"

    @property
    def quantization(self) -> QuantizationSection:
        section = self.recipe.adapter.quantization if self.recipe else None
        return section or QuantizationSection()

    @property
    def scores(self) -> bool:
        return self.recipe is not None and OBJECTIVES[self.recipe.objective].scores

    @property
    def rounds_activations(self) -> bool:
        """Whether the quantized base rounds what goes through it as well as its weights: LLM.int8()."""
        return self.quantized and self.quantization.bits == 8


def merge_run(
    run_dir: Path,
    output: Path | None = None,
    dtype: str | None = None,
    *,
    base: BaseWeights | None = None,
    overwrite: bool = False,
    trust_remote_code: bool = False,
) -> MergeReport:
    """Merge the adapter in a run directory, or in one of its checkpoints, and check the result. The resolved recipe in
    it (or, for a checkpoint, in its parent) names model and quantization; without one the base is PEFT's, unquantized.
    The merged folder, by default ``run_dir/merged``, appears whole or not at all. Raises ``ModelError``: no adapter, a
    base that cannot be loaded or does not fit, or merged logits further from the unmerged ones than the data type
    explains. ``OutputError``: ``output`` is not empty, or cannot be written."""
    source = find_adapter(Path(run_dir), trust_remote_code=trust_remote_code)
    weights = _weights(source, base)
    output = Path(run_dir) / "merged" if output is None else Path(output)
    check_free(output, overwrite)
    if dtype is not None and dtype not in TOLERANCE:
        raise ModelError(f"--dtype: {dtype!r} is not one of {', '.join(TOLERANCE)}.")
    tokenizer = tokenizer_of(source)
    trained = load_unmerged(source, weights)
    types = [_type_name(trained.get_base_model().config.dtype)]
    if weights == "dequantized" and not source.rounds_activations:
        types.append(compute_dtype(source.quantization))
    reference = _logits(trained, tokenizer)
    with trained.disable_adapter():
        effect = relative_difference(reference, _logits(trained, tokenizer))
    merged = merge_into(undressed(trained, dtype), source)
    del trained
    with written_whole(output) as folder:
        merged.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        parameters, saved_as, device = merged.num_parameters(), _type_name(merged.dtype), merged.device
        del merged  # two models in memory at a time are enough
        trust = source.model.trust_remote_code
        read = auto_class(scores=source.scores).from_pretrained(folder, dtype="auto", trust_remote_code=trust)
        difference = relative_difference(_logits(read.to(device), tokenizer), reference)
        tolerance = max(TOLERANCE.get(name, max(TOLERANCE.values())) for name in (saved_as, *types))
        report = MergeReport(output, weights, saved_as, parameters, difference, effect, tolerance)
        if not difference <= report.tolerance:  # so that NaN fails
            raise ModelError(
                f"the merged model's logits differ from the unmerged model's by {difference:.1e} "
                f"(relative), more than {saved_as} explains ({report.tolerance:.0e}); nothing was written to "
                f"{output}. Use the adapter unmerged, or merge with dtype float32."
            )
    return report


def relative_difference(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """||logits - reference|| / ||reference||, L2 norms over all positions and the vocabulary; NaN stays NaN."""
    return float((logits - reference).norm() / reference.norm())


def _logits(model: Any, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    model.eval()
    ids = torch.tensor([tokenizer(_TEXT)["input_ids"]], device=model.device)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.float().cpu()


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_free(output: Path, overwrite: bool) -> None:
    if output.is_dir():
        if any(output.iterdir()) and not overwrite:
            raise OutputError(f"--output: {output} is not empty. Write another folder, or empty it first.")
    elif output.exists():
        raise OutputError(f"--output: {output} is a file. Write a folder.")


@contextmanager
def written_whole(output: Path) -> Iterator[Path]:
    """A folder to write to; it takes the place of ``output`` unless the block raises, which leaves nothing."""
    made = [path for path in output.absolute().parents if not path.exists()]
    try:
        with ends_on_signals(), published(output) as folder:
            folder.mkdir()
            yield folder
    except Exception as error:
        why = getattr(error, "strerror", None) or first_line(error)
        if is_full_disk(error):  # to tokenizers it is a plain ``Exception``
            why = "no space is left there. Make room, or write to another disk"
        elif not isinstance(error, (OSError, SafetensorError)) and "os error" not in str(error):
            raise
        raise OutputError(f"--output: {output} cannot be written: {why}.") from error
    finally:
        with suppress(OSError):  # one that holds something stays
            for path in made:
                path.rmdir()


def find_adapter(folder: Path, *, trust_remote_code: bool = False) -> TrainedAdapter:
    """What ``folder``, a run directory or one of its checkpoints, holds; read whole before a base is loaded. A run that
    ran its model's own code is refused without ``trust_remote_code``: the run may be somebody else's."""
    check_whole(folder)
    if not (folder / ADAPTER_CONFIG).is_file():
        raise ModelError(without_adapter(folder))
    config = _adapter_config(folder)
    _check_adapter_weights(folder)
    recipe = recipe_of_run(folder, check_base=True, trust_remote_code=trust_remote_code)
    if recipe is not None:
        return TrainedAdapter(folder, recipe.model.model_copy(update={"attn_implementation": None}), recipe)
    if not config.base_model_name_or_path:
        raise ModelError(
            f"{folder / ADAPTER_CONFIG} does not name the base model (base_model_name_or_path). Write its hub name or "
            "folder there."
        )
    return TrainedAdapter(folder, ModelSection(id=config.base_model_name_or_path, revision=config.revision), None)


def check_whole(folder: Path) -> None:
    """``ModelError`` for a checkpoint that is not as it was saved; every byte of it is read."""
    damage = damage_of(folder, hashes=True)
    if damage is not None:
        raise ModelError(f"{folder}: {damage}. {_whole_ones(folder.parent, folder)}")


def recipe_of_run(folder: Path, *, check_base: bool = False, trust_remote_code: bool = False) -> Recipe | None:
    """The resolved recipe of a run directory or one of its checkpoints; None without one. Raises ``ModelError``: it is
    not readable, its model brings code of its own, which only ``trust_remote_code`` allows, or, with ``check_base``,
    the weights that the run started from have changed since."""
    places = (place / EFFICIENCY / RESOLVED for place in (folder, folder.parent))
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        return None
    try:
        recipe, _, environment = resolved_parts(path)
        held = Recipe.model_validate(recipe)
    except (OutputError, ValidationError) as error:
        raise ModelError(
            f"{path} is not a resolved recipe of this version of hf_efficient: "
            f"{str(error).splitlines()[0]}. Move it away to merge into the base that PEFT noted."
        ) from error
    if held.model.trust_remote_code and not trust_remote_code:
        raise ModelError(
            f"{path} says model.trust_remote_code: true, by which loading {held.model.id} runs Python code of its "
            "repository. Read that code, and add --trust-remote-code."
        )
    noted = environment.get(BASE_WEIGHTS)
    if check_base and noted is not None and weights_mark(held.model) not in (None, noted):
        raise ModelError(
            f"the weights in {held.model.id} have changed since the run that trained the adapter. Put the earlier "
            f"ones back, or remove the line {BASE_WEIGHTS} from {path} to use the adapter on these."
        )
    return held


def load_trained(source: TrainedAdapter) -> tuple[Any, PreTrainedTokenizerBase]:
    """The model as it was trained, its base quantized where the run's was, and the tokenizer. Raises ``ModelError``."""
    return _with_adapter(_quantized_base(source) or load_dense_base(source.model), source), tokenizer_of(source)


def _adapter_config(folder: Path) -> PeftConfig:
    try:
        return PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{first_line(error)} (PEFT {__version__}; a newer one may have written it)"
        raise ModelError(f"{folder / ADAPTER_CONFIG} cannot be read: {why}. {_REMEDY}") from error


def _check_adapter_weights(folder: Path) -> None:
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise ModelError(f"{folder} holds {ADAPTER_CONFIG} but no {_WEIGHTS[0]}. {_REMEDY}")
    path = folder / _WEIGHTS[0]
    try:
        if path.is_file():
            with safe_open(path, "np"):
                pass
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {first_line(error)}. {_REMEDY}") from error


def without_adapter(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} does not exist. Write the output directory of a run."
    if (folder / "config.json").is_file():
        return (
            f"{folder} holds no adapter but a whole model (a full fine-tune, or an earlier merge): "
            f"there is nothing to merge, load it with AutoModelForCausalLM.from_pretrained({str(folder)!r})."
        )
    for file, what in ((ADAPTER_CONFIG, "adapter"), ("config.json", "model")):
        if any((path / file).is_file() for path in checkpoints(folder)):
            return f"{folder} holds no {what}, which a run saves at its end; its checkpoints do. {_whole_ones(folder)}"
    return f"{folder} holds no adapter (no {ADAPTER_CONFIG}). Write the output directory of a LoRA or QLoRA run."


def _whole_ones(run_dir: Path, damaged: Path | None = None) -> str:
    """What to write in place of a run that did not end, or of a ``damaged`` checkpoint of it."""
    damages = {path: damage_of(path) for path in checkpoints(run_dir) if path != damaged}
    models = {path.parent for path in run_dir.glob("*/*config.json") if path.name in (ADAPTER_CONFIG, "config.json")}
    whole = [path for path, damage in damages.items() if damage is None and path in models]
    words = [f"{path.name} is passed over: {damage}." for path, damage in damages.items() if damage is not None]
    if not whole:
        return " ".join([*words, "No checkpoint of the run is whole."])
    return " ".join([*words, f"Write one that is whole: {', '.join(map(str, whole))}."])


def _weights(source: TrainedAdapter, wanted: BaseWeights | None) -> BaseWeights:
    if wanted == "dequantized" and not source.quantized:
        why = "trained on an unquantized base" if source.recipe else "saved without the recipe of its run"
        raise ModelError(f"--base dequantized: the adapter in {source.folder} was {why}. Write --base dense.")
    return wanted or ("dequantized" if source.quantized else "dense")


def tokenizer_of(source: TrainedAdapter) -> PreTrainedTokenizerBase:
    own = {"tokenizer": str(source.folder)} if (source.folder / "tokenizer_config.json").is_file() else {}
    return load_tokenizer(source.model.model_copy(update=own), source.recipe.train if source.recipe else {})


def load_unmerged(source: TrainedAdapter, weights: BaseWeights | None = None) -> Any:
    """The adapter on the base that it is to be merged into; None: the one that it was trained beside."""
    if (weights or _weights(source, None)) == "dense":
        return _with_adapter(load_dense_base(source.model, scores=source.scores), source)
    base = _quantized_base(source)
    for module in base.modules():
        # In evaluation mode bitsandbytes repacks the weights for AVX512 on a CPU, and cannot dequantize them then.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return _with_adapter(_dequantized(base) if source.rounds_activations else base, source)


def _quantized_base(source: TrainedAdapter) -> Any:
    """None where the adapter was trained beside dense weights."""
    recipe = source.recipe if source.quantized else None
    return None if recipe is None else load_base(recipe.model_copy(update={"model": source.model}))


def _with_adapter(base: PreTrainedModel, source: TrainedAdapter) -> Any:
    try:
        adapted = PeftModel.from_pretrained(base, str(source.folder)).eval()
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise ModelError(
            f"the adapter in {source.folder} does not fit its base {source.model.id}: "
            f"{str(error).strip().splitlines()[0]} Name the model that it was trained on as model.id."
        ) from error
    adapt_experts(adapted)
    return adapted


def undressed(trained: Any, dtype: str | None) -> PreTrainedModel:
    """The base without its adapter, dense, in the data type to merge in."""
    model: Any = _dequantized(trained.unload())
    return model.to(getattr(torch, dtype)) if dtype else model


def _dequantized(model: Any) -> Any:
    return model.dequantize(model.config.dtype) if getattr(model, "is_quantized", False) else model


def merge_into(base: Any, source: TrainedAdapter) -> PreTrainedModel:
    """A head that shares the embedding's weights gets its own: an adapter on either alone would change both."""
    head, embedding = base.get_output_embeddings(), base.get_input_embeddings()
    tied = head is not None and embedding is not None and head.weight is embedding.weight
    if tied:
        head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Input and output embeddings are no longer tied")
        model: Any = _with_adapter(base, source).merge_and_unload(safe_merge=False)
    if tied:
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        model.config.tie_word_embeddings = torch.equal(head.weight, embedding.weight)
        if model.config.tie_word_embeddings:
            head.weight = embedding.weight
    return model
