"""Whether a run that has read its data begins, or wants a preflight check first; the last check is remembered."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from trl import DPOConfig, SFTConfig

from hf_efficient.data.build import PreferenceData, SftData
from hf_efficient.data.cache import hash_of
from hf_efficient.data.objectives import PromptData
from hf_efficient.errors import OutputError, writing
from hf_efficient.facts.environment import version_of
from hf_efficient.facts.tables import key_table
from hf_efficient.launch.checkpoints import EFFICIENCY, PREFLIGHT_JSON
from hf_efficient.launch.listener import RunListener
from hf_efficient.launch.records import state
from hf_efficient.launch.restart import from_all
from hf_efficient.planning.run_data import rows_of
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.account import PREFLIGHT_SCHEMA_VERSION, Preflight
from hf_efficient.records.plan import RunPlan
from hf_efficient.run_dir.json_file import read_record, strict_json, write_whole
from hf_efficient.text import seconds


def preflight_path(recipe: Recipe) -> Path:
    return Path(recipe.output_dir).expanduser() / EFFICIENCY / PREFLIGHT_JSON


def kept_preflight(recipe: Recipe) -> Preflight | None:
    try:
        return read_record(preflight_path(recipe), Preflight, PREFLIGHT_SCHEMA_VERSION, "a preflight")
    except OutputError:
        return None


def write_preflight(recipe: Recipe, preflight: Preflight) -> None:
    path = preflight_path(recipe)
    with writing("output_dir", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, strict_json(preflight))


_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "deepspeed", "hf_efficient")
_SECTIONS = ("objective", "model", "adapter", "data", "distributed", "evaluate")
_FREE: dict[str, list[str]] = key_table("train_fields")["free_after_preflight"]


def fingerprint_of(recipe: Recipe, args: SFTConfig | DPOConfig, data: SftData | PreferenceData | PromptData) -> str:
    """The same for two runs of which the first one's check holds for the second."""
    resolved = recipe.resolved()
    held: dict[str, Any] = {name: resolved[name] for name in (*_SECTIONS, "train")}
    for section, free in _FREE.items():
        held[section] = {key: value for key, value in held[section].items() if key not in free}
    on_gpu = args.device.type == "cuda"
    held |= {
        "versions": {name: version_of(name) for name in _PACKAGES},
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(args.device) if on_gpu else args.device.type,
        "processes": args.world_size,
        "rows": _rows(data, args),
    }
    return hash_of(held)[:32]


def _rows(data: SftData | PreferenceData | PromptData, args: SFTConfig | DPOConfig) -> Any:
    if isinstance(data, SftData):
        return [None if stats is None else asdict(stats) for stats in (data.stats, data.eval_stats)]
    rows = rows_of(data, args)
    return [[len(held), int(held.sum()), int(held.max())] for held in (rows.train, rows.evaluation) if held is not None]


LONG_SECONDS = 1800.0  # a run planned for so long is checked first, where ``efficiency.preflight`` is ``auto``

WISH_FILE = "HF_EFFICIENT_PREFLIGHT_FILE"
"""Environment variable: the file in which a run that wants a preflight check says why; whoever set it does it."""


class PreflightWanted(Exception):
    """The run ends before its model is loaded, and is to be started again after the check; no error."""


def check_preflight(recipe: Recipe, args: Any, data: Any, plan: RunPlan | None, listener: RunListener) -> None:
    """Let the run begin, or raise ``PreflightWanted`` on all processes; every process decides as the first one does."""
    if recipe.efficiency.preflight is False:
        return
    mine = _wish(recipe, args, data, plan, listener) if args.process_index == 0 else None
    wish = from_all(mine, args.world_size)[0]
    if wish is not None:
        raise PreflightWanted(wish)


def _wish(recipe: Recipe, args: Any, data: Any, plan: RunPlan | None, listener: RunListener) -> str | None:
    kept = kept_preflight(recipe)
    if kept is not None and kept.passed and kept.fingerprint == fingerprint_of(recipe, args, data):
        state(recipe, "preflight", asdict(kept))
        return None
    why = _reason(recipe, plan)
    path = os.environ.get(WISH_FILE)
    if why and path:
        Path(path).write_text(why, encoding="utf-8")
        return why
    how = f"`hf-efficient train {recipe.path or 'RECIPE'} --preflight-only`"
    if why:
        listener.stage("Preflight", f"left out, though {why}: this launch cannot check itself; {how} does it before")
    return None


def _reason(recipe: Recipe, plan: RunPlan | None) -> str:
    if recipe.efficiency.preflight is True:
        return "efficiency.preflight is true"
    planned = None if plan is None else plan.run.training_seconds
    return f"the run is planned for {seconds(planned)}" if planned is not None and planned >= LONG_SECONDS else ""
