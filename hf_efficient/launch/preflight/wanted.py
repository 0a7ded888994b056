"""Whether a run that has read its data begins, or wants to be proven first."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hf_efficient.data.build import PreferenceData, SftData
from hf_efficient.launch.account import state
from hf_efficient.launch.listener import RunListener
from hf_efficient.launch.preflight.fingerprint import fingerprint_of
from hf_efficient.launch.preflight.kept import kept_preflight
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.planned_run import RunPlan
from hf_efficient.units import seconds

if TYPE_CHECKING:
    from trl import DPOConfig, SFTConfig

__all__ = ["LONG_SECONDS", "WISH_FILE", "PreflightWanted", "check_proven"]

LONG_SECONDS = 1800.0
"""A run planned for so long is proven first, where ``efficiency.preflight`` is ``auto``."""

WISH_FILE = "HF_EFFICIENT_PREFLIGHT_FILE"
"""Environment variable: the file in which a run that wants a proof says why; whoever set it gives one."""


class PreflightWanted(Exception):
    """The run ends before its model is loaded, and is to be started again once it is proven; no error."""


def check_proven(
    recipe: Recipe,
    args: SFTConfig | DPOConfig,
    data: SftData | PreferenceData,
    plan: RunPlan | None,
    listener: RunListener,
) -> None:
    """Let the run begin, or ask for its proof; every process decides as the first one does.

    Args:
        recipe: of the run.
        args: of the run.
        data: of the run.
        plan: of the run; None where there is none, and on every process but the main one.
        listener: is told where a proof is left out.

    Raises:
        PreflightWanted: on all processes, where somebody waits to give one.
    """
    if recipe.efficiency.preflight is False:
        return
    wish = [_wish(recipe, args, data, plan, listener) if args.process_index == 0 else None]
    if args.world_size > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(wish, from_process=0)
    if wish[0] is not None:
        raise PreflightWanted(wish[0])


def _wish(
    recipe: Recipe,
    args: SFTConfig | DPOConfig,
    data: SftData | PreferenceData,
    plan: RunPlan | None,
    listener: RunListener,
) -> str | None:
    kept = kept_preflight(recipe)
    if kept is not None and kept.passed and kept.fingerprint == fingerprint_of(recipe, args, data):
        state(recipe, "preflight", asdict(kept))
        return None
    why, skipped = _reason(recipe, plan)
    path = os.environ.get(WISH_FILE)
    if why and path:
        Path(path).write_text(why, encoding="utf-8")
        return why
    how = f"`hf-efficient train {recipe.path or 'RECIPE'} --preflight-only`"
    if why:
        listener.stage("Preflight", f"left out, though {why}: this launch cannot prove itself; {how} does it before")
    elif skipped:
        listener.stage("Preflight", f"left out: {skipped}; {how} proves the run")
    return None


def _reason(recipe: Recipe, plan: RunPlan | None) -> tuple[str, str]:
    """Why the run is to be proven; else why it is not, where the user might want it all the same."""
    if recipe.efficiency.preflight is True:
        return "efficiency.preflight is true", ""
    planned = None if plan is None else plan.run.training_seconds
    if planned is None:
        reason = "the run is not planned" if plan is None else plan.run.reasons.get("time", "its time is not known")
        return "", reason
    return (f"the run is planned for {seconds(planned)}", "") if planned >= LONG_SECONDS else ("", "")
