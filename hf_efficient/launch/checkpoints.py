"""What a run writes to its output directory, and whether another start can resume from one of its checkpoints."""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from hf_efficient.errors import OutputError
from hf_efficient.facts.tables import key_table
from hf_efficient.launch.command import Engine
from hf_efficient.recipe.rules.distributed import ACCUMULATION, GLOBAL_BATCH
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.schema import QuantizationSection, Recipe
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.run_dir.checkpoints import checkpoints, has_fsdp_shards, has_zero_shares
from hf_efficient.run_dir.paths import RESOLVED

EFFICIENCY = "efficiency"  # folder of the records inside the output directory
BASE_WEIGHTS = "base_weights"  # in its environment: the mark of the weights that the run started from
PREFLIGHT_JSON = "preflight.json"  # the result of the preflight check; it outlives the run that it replaces

WEIGHTS = ("adapter_model.safetensors", "model.safetensors", "model.safetensors.index.json")
_OF_AN_ADAPTER = ("adapter_model.safetensors", "adapter_config.json")
_OF_A_MODEL = ("model.safetensors", "model.safetensors.index.json", "config.json", "generation_config.json")
_OF_ALL = (
    "README.md", "training_args.bin", "trainer_state.json", "all_results.json", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
)  # fmt: skip
_MERGED, _EXPORTS = "merged", "exports"
_RECORDS = (
    "steps*.jsonl", "spans*.jsonl", "system*.jsonl", "*.rank*.jsonl", "run.json", "plan.json", "diagnosis.json",
    "evaluation.json", "report.html", "traceback.txt", RESOLVED, "profile", "faults", "previous",
)  # fmt: skip
"""What is written to the ``efficiency`` folder, but the records of a start and of the preflight check."""


def is_a_run(directory: Path) -> bool:
    try:
        with (directory / EFFICIENCY / RESOLVED).open("rb") as file:
            return file.readline(100).startswith(b"recipe:")
    except OSError:
        return False


def replaced_by_a_run(directory: Path) -> list[Path]:
    return _present(directory, (*_OF_AN_ADAPTER, *_OF_A_MODEL, *_OF_ALL, _MERGED, _EXPORTS), shards=True)


def written_by_the_run(directory: Path) -> list[Path]:
    """By its resolved recipe: an adapter or a model, merged or not. Files of another kind somebody has put there."""
    recipe = resolved_of(directory).get("recipe")
    adapter = (recipe if isinstance(recipe, dict) else {}).get("adapter") or {}
    whole = adapter.get("method") == "full"
    names = [*(_OF_A_MODEL if whole else _OF_AN_ADAPTER), *_OF_ALL, *[_MERGED] * bool(adapter.get("merge"))]
    return _present(directory, names, shards=whole)


def _present(directory: Path, names: Iterable[str], *, shards: bool) -> list[Path]:
    found = [directory / name for name in names]
    found += checkpoints(directory)
    found += directory.glob("model-*-of-*.safetensors") if shards else ()
    return [path for path in found if path.exists() or path.is_symlink()]


def resolved_of(directory: Path) -> dict[str, Any]:
    try:
        held = yaml.safe_load((directory / EFFICIENCY / RESOLVED).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return held if isinstance(held, dict) else {}


def remove_run(directory: Path, *, keep_records: bool = False) -> None:
    """Remove what the run of ours wrote, and nothing else; the records of a start that is to replace it stay."""
    patterns = () if keep_records else _RECORDS
    records = {path for pattern in patterns for path in (directory / EFFICIENCY).glob(pattern)}
    for path in (*written_by_the_run(directory), *sorted(records)):
        remove(path)
    if not keep_records:
        remove_if_empty(directory / EFFICIENCY)


def remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"output_dir: {path} cannot be removed: {error.strerror or error}.") from error


def remove_if_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()


Kind = Literal["whole", "zero", "zero3", "fsdp2"]
_WORDS: dict[Kind, str] = {
    "whole": "whole models (one process, or DDP)",
    "zero": "DeepSpeed's ZeRO-1 or ZeRO-2",
    "zero3": "DeepSpeed's ZeRO-3",
    "fsdp2": "FSDP2",
}


@dataclass(frozen=True)
class CheckpointLayout:
    """Who wrote a checkpoint, and how many processes; None where its files do not show it."""

    kind: Kind
    processes: int | None


def layout_of_checkpoint(checkpoint: Path) -> CheckpointLayout:
    if has_zero_shares(checkpoint):
        names = [path.name for path in checkpoint.glob("global_step*/*")]
        shares_weights = any(re.match(r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt$", name) for name in names)
        optimizers = [name for name in names if re.search(r"zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt$", name)]
        return CheckpointLayout("zero3" if shares_weights else "zero", len(optimizers) or None)
    kind: Kind = "fsdp2" if has_fsdp_shards(checkpoint) else "whole"
    whole = (checkpoint / "rng_state.pth").is_file()
    return CheckpointLayout(kind, 1 if whole else len(list(checkpoint.glob("rng_state_*.pth"))) or None)


def check_layout(checkpoint: Path, recipe: Recipe, engine: Engine, world_size: int) -> str:
    """Refuse a checkpoint of another engine, or of another number of processes that would deal out other rows. A global
    batch keeps the rows of each step; returns a remark on that."""
    found = layout_of_checkpoint(checkpoint)
    kinds: dict[Engine, Kind] = {"zero1": "zero", "zero2": "zero", "zero3": "zero3", "fsdp2": "fsdp2"}
    kind = kinds.get(engine, "whole")
    if found.kind != kind:
        raise OutputError(
            f"distributed.strategy: is {engine}, but {checkpoint.name} was written by {_WORDS[found.kind]}, and its "
            "optimizer state cannot be read by another. Keep the strategy that it was written by; or start a new "
            f"run from its weights: {_how_to_use(checkpoint, found.kind)}."
        )
    if found.processes is None or found.processes == world_size:
        return ""
    if recipe.distributed.offload.nvme_path is not None and recipe.distributed.offload.optimizer:
        other = f"start a new run from its weights: {_how_to_use(checkpoint, found.kind)}"
        why = "the optimizer state on the NVMe is each process's own"
    elif recipe.distributed.global_batch_size is not None:
        return (
            f"distributed.processes: was {found.processes} for {checkpoint.name}, is {world_size}: each step has the "
            "rows that it would have had; random numbers (of dropout) start anew"
        )
    else:
        other = f"write {GLOBAL_BATCH}={_rows_of_a_step(recipe, found.processes)}, which keeps the rows of each step"
        why = "other rows would be trained on"
    raise OutputError(
        f"distributed.processes: {world_size} train, but {checkpoint.name} was written by {found.processes}: {why}. "
        f"Keep {found.processes} (distributed.processes, distributed.nodes); or {other}."
    )


def _rows_of_a_step(recipe: Recipe, processes: int) -> int:
    settings = Settings(recipe, train_fields(recipe.objective))
    rows = int(settings.train("per_device_train_batch_size")) * int(settings.train("gradient_accumulation_steps"))
    return rows * processes


def _how_to_use(checkpoint: Path, kind: Kind) -> str:
    if kind in ("zero", "zero3"):
        return f"`python {checkpoint / 'zero_to_fp32.py'} {checkpoint} FOLDER` writes them whole"
    if kind == "fsdp2":
        return f"`accelerate merge-weights {checkpoint / 'pytorch_model_fsdp_0'} FOLDER` writes them whole"
    return f"model.id={checkpoint} (an adapter: merge it first, `hf-efficient merge`)"


_FREE: dict[str, list[str]] = key_table("train_fields")["free_on_resume"]


def check_same_run(checkpoint: Path, recipe: Recipe) -> None:
    directory = checkpoint.parent
    stored = resolved_of(directory).get("recipe")
    if not isinstance(stored, dict):
        return  # not written by us: transformers' own checks remain
    now = _as_settled(recipe.resolved(), stored)
    differing = list(_differences(stored, now))
    before, after = ((one.get("distributed") or {}).get("global_batch_size") for one in (stored, now))
    processes = layout_of_checkpoint(checkpoint).processes
    if before is None and after is not None and processes is not None:
        train = {**recipe.train, "gradient_accumulation_steps": 1, **(stored.get("train") or {})}
        before = _rows_of_a_step(recipe.model_copy(update={"train": train}), processes)
    if before is not None and after is not None:  # the accumulation follows from it
        differing = [one for one in differing if not one.startswith(f"{ACCUMULATION} ")]
        if before != after:
            differing.append(f"{GLOBAL_BATCH} (was {before}, is {after})")
    if stored.get("objective") != now["objective"]:
        differing.append(f"objective (was {stored.get('objective')!r}, is {now['objective']!r})")
    if differing:
        raise OutputError(
            f"output_dir: the run in {directory} cannot continue with another {'; '.join(differing)}. "
            "Put the values back, or write another output_dir."
        )


def _as_settled(now: dict[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """What the machine of a run chose for ``auto`` stands for it, until a machine chooses again."""
    adapter, kept = now["adapter"], (stored.get("adapter") or {}).get("quantization")
    chosen = [(adapter, stored.get("adapter"), "fused"), (now["model"], stored.get("model"), "attn_implementation")]
    if adapter["method"] == "qlora" and isinstance(kept, Mapping):
        adapter["quantization"] = adapter["quantization"] or QuantizationSection().model_dump(mode="json")
        chosen.append((adapter["quantization"], kept, "compute_dtype"))
    for section, was, key in chosen:
        if section[key] == "auto":
            section[key] = (was or {}).get(key)
    return now


def _differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for section, free in _FREE.items():
        was, value = stored.get(section) or {}, now[section] or {}
        for key in sorted(was.keys() | value.keys()):
            is_free = any(key == name or (name.endswith("_") and key.startswith(name)) for name in free)
            # eval_fraction decides which examples are trained on.
            if was.get(key) != value.get(key) and (not is_free or key == "eval_fraction"):
                yield f"{section}.{key} (was {was.get(key)!r}, is {value.get(key)!r})"
