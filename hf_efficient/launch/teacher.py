"""The teacher of a run that distils: loaded beside the student, or asked once for its likeliest tokens, which a cache
keeps."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from hf_efficient.data.build import SftData
from hf_efficient.data.cache import cache_folder, hash_of
from hf_efficient.data.objectives import PromptData
from hf_efficient.errors import ModelError, SetupError
from hf_efficient.launch.listener import RunListener
from hf_efficient.launch.records import phase
from hf_efficient.model.distill import check_heads, check_same_tokens, check_teacher, head_at, with_likeliest
from hf_efficient.model.load import load_teacher, load_tokenizer
from hf_efficient.model.scored_head import target_positions
from hf_efficient.model.source import weights_mark
from hf_efficient.model.structure import whole_count
from hf_efficient.recipe.schema import Recipe
from hf_efficient.run_dir.json_file import published
from hf_efficient.text import count, size

logger = logging.getLogger(__name__)

_VALUES = torch.float16
_BYTES = 6  # a log-probability, and the number of its token


def compare_tokenizers(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> None:
    """Before models are loaded. ``ModelError``: the teacher has another vocabulary, or is not there."""
    assert recipe.distill is not None
    try:
        theirs = load_tokenizer(recipe.distill.teacher.as_model(recipe.model), {})
    except ModelError as error:
        if "holds no tokenizer" not in str(error):
            raise ModelError(str(error).replace("model.id:", "distill.teacher.id:")) from error
        return  # a folder of weights alone: the sizes of both vocabularies are left to compare
    check_same_tokens(tokenizer, theirs, recipe.distill)


def taught(
    recipe: Recipe, args: TrainingArguments, data: SftData | PromptData, student: PreTrainedModel, listener: RunListener
) -> dict[str, Any]:
    """What the trainer takes for it: the teacher, or rows and a collator that bring its likeliest tokens."""
    section = recipe.distill
    assert section is not None
    listener.stage("Teacher", section.teacher.id)
    own: dict[str, Any] = {"distill": section} if isinstance(data, SftData) else {}
    if isinstance(data, PromptData) or recipe.runs_teacher:
        with phase(recipe, "model_load"):
            teacher = load_teacher(recipe)
        check_teacher(student.config, teacher.config, section)
        if isinstance(data, PromptData):
            check_heads(student.config, teacher.config, section)
        bits = "" if section.teacher.quantization is None else f", held in {section.teacher.quantization.bits} bits"
        listener.stage("", f"{count(teacher.num_parameters())} parameters{bits}, its forward in every step")
        return {**own, "teacher_model": teacher}
    with phase(recipe, "data_preparation"), args.main_process_first(local=True, desc="the teacher's likeliest tokens"):
        path = _cached(recipe, args, data, listener)
    held = _Likeliest(path)
    listener.stage("", f"its {section.top_k} likeliest tokens of {count(held.targets)} targets: {path}")
    rows = data.train.add_column("teacher_row", list(range(len(data.train))))
    return {**own, "train_dataset": rows, "data_collator": with_likeliest(data.collator, held)}


class _Likeliest:
    """By the numbers of rows, the log-probabilities and tokens of their targets, one row after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with safe_open(path, "pt") as file:
            self._ends = file.get_tensor("ends").tolist()
        self.targets = self._ends[-1]

    def __call__(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        with safe_open(self._path, "pt") as file:  # mapped into memory, in each worker of the loader
            parts = [[file.get_slice(name)[self._of(row)] for row in rows] for name in ("values", "tokens")]
        values, tokens = map(torch.cat, parts)
        return values, tokens

    def _of(self, row: int) -> slice:
        return slice(self._ends[row - 1] if row else 0, self._ends[row])


def _cached(recipe: Recipe, args: TrainingArguments, data: SftData, listener: RunListener) -> Path:
    section = recipe.distill
    assert section is not None
    assert section.top_k is not None
    model = section.teacher.as_model(recipe.model)
    facts = [section.teacher.model_dump(), section.top_k, weights_mark(model), _mark(data)]
    path = cache_folder(recipe.data.cache_dir) / "teachers" / f"{hash_of(facts)[:32]}.safetensors"
    if path.is_file():
        try:
            _Likeliest(path)
        except (SafetensorError, OSError):  # a power cut, a copy that ended early
            logger.warning("%s cannot be read, and is made again.", path)
        else:
            return path
    teacher = load_teacher(recipe).eval()
    if section.teacher.quantization is None:
        teacher.to(args.device)
    size_of_teacher = count(whole_count(teacher, trained=False))
    listener.stage("", f"{size_of_teacher} parameters read {count(len(data.train))} rows once")
    found = likeliest_tokens(teacher, data.train, data.collator, section.top_k, args.per_device_eval_batch_size)
    try:
        with published(path) as draft:
            save_file(found, draft)
    except (OSError, SafetensorError) as error:
        needed = size(_BYTES * found["values"].numel())
        why = f"{path.parent} cannot take the {needed} of the teacher's likeliest tokens ({error})"
        raise SetupError(f"data.cache_dir: {why}. Write another folder, or a smaller distill.top_k.") from error
    return path


def _mark(data: SftData) -> str:
    """A text that changes with the rows and what the collator makes of them."""
    digest = hashlib.sha256(repr(sorted(vars(data.collator).items())).encode())
    for row in data.train:
        for name in sorted(row):
            digest.update(np.asarray(row[name], dtype=np.int64).tobytes())
    return digest.hexdigest()


@torch.no_grad()
def likeliest_tokens(
    teacher: PreTrainedModel, rows: Dataset, collator: Callable[..., dict[str, Any]], top_k: int, at_once: int
) -> dict[str, Tensor]:
    """``values`` (targets, k): log-probabilities of the likeliest tokens, ``tokens``: their numbers, ``ends`` (rows):
    targets up to the end of each row."""
    counts = [len(target_positions(collator([row])["labels"])) for row in rows]
    top_k = min(top_k, teacher.config.get_text_config().vocab_size)
    values = torch.empty(sum(counts), top_k, dtype=_VALUES)
    tokens = torch.empty(sum(counts), top_k, dtype=torch.int32)
    done = 0
    for start in range(0, len(rows), at_once):
        part = [rows[one] for one in range(start, min(start + at_once, len(rows)))]
        held = collator(part).items()
        batch = {name: value.to(teacher.device) if isinstance(value, Tensor) else value for name, value in held}
        positions = target_positions(batch.pop("labels"))
        with head_at(teacher, positions):
            logits = teacher(**batch, use_cache=False).logits.float()
        likeliest = logits.log_softmax(-1).topk(top_k)
        values[done : done + len(positions)] = likeliest.values.cpu()
        tokens[done : done + len(positions)] = likeliest.indices.cpu()
        done += len(positions)
    return {"values": values, "tokens": tokens, "ends": torch.tensor(counts).cumsum(0)}
