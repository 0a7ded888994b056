"""The room's door: a recipe in; its trials run; the tuned recipe, the ladder and what was tried out."""

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hf_efficient.errors import SetupError, writing
from hf_efficient.facts.environment import accelerator_count, cpu_model, describe_environment, thread_count
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.rules.distributed import with_accumulation
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.recipe.writing import fixed_recipe
from hf_efficient.records.tuning import TriedChange, Tuning
from hf_efficient.reporting.tuning import gain_words
from hf_efficient.run_dir.json_file import strict_json, write_whole
from hf_efficient.tune.goal import Goal
from hf_efficient.tune.search import Progress, Search
from hf_efficient.tune.trial import Trials
from hf_efficient.version import __version__

TUNED: Final = "tuned.yaml"
TUNING: Final = "tuning.json"
PAGE: Final = "tuning.html"


def folder_of(recipe: Recipe) -> Path:
    """Where a tuning keeps what it does: beside the recipe's output directory."""
    return Path(f"{recipe.output_dir}-tuning").expanduser()


def tune(argument: str, overrides: Sequence[str], goal: Goal, progress: Progress, folder: Path | None = None) -> Tuning:
    """Tune a recipe (file or shipped name); ``tuned.yaml`` and ``tuning.json`` are written to the folder, in which a
    later call continues. Raises ``HfEfficientError``: the recipe is wrong, does not train or fit, or cannot be tuned
    here; the folder holds something else."""
    recipe = load_recipe(argument, overrides)
    check_tunable(recipe)
    folder = folder or folder_of(recipe)
    whole = json.dumps(recipe.resolved(), sort_keys=True).encode()
    about = {"recipe": hashlib.sha256(whole).hexdigest()[:16], "hf_efficient": __version__, "cpu": cpu_model()}
    trials = Trials(argument, overrides, folder, {**about, "threads": thread_count()})

    def settings_of(changes: Mapping[str, Any]) -> Settings:
        flags = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
        changed = load_recipe(argument, [*overrides, *flags])
        return Settings(with_accumulation(changed, 1), train_fields(changed.objective))

    search = Search(goal, settings_of, trials.run, progress)
    started = datetime.datetime.now(datetime.timezone.utc)
    try:
        search.go()
    finally:
        trials.close()
    found = Tuning(
        recipe=argument,
        objective=goal.objective,
        started_at=started.isoformat(timespec="seconds"),
        environment=describe_environment(),
        settings={name: getattr(goal, name) for name in ("minutes", "most_p95_seconds", "most_bytes", "tolerance")},
        ladder=search.ladder,
        tried=search.tried,
        changes=search.base.changes,
        spent_seconds=search.spent,
        total=search.total,
        notes=search.notes,
        hf_efficient_version=__version__,
    )
    with writing("--folder", folder):
        write_whole(folder / TUNING, strict_json(found))
        if found.changes:
            write_whole(folder / TUNED, tuned_recipe(recipe, found, folder / TUNED))
        else:
            (folder / TUNED).unlink(missing_ok=True)
    return found


def check_tunable(recipe: Recipe) -> None:
    """``SetupError``: an objective other than sft, or several processes."""
    if recipe.objective != "sft":
        raise SetupError(
            f"objective: is {recipe.objective}, and trials compare the loss of supervised fine-tuning. Name a recipe "
            "with `objective: sft`."
        )
    said = recipe.distributed.processes
    processes = max(1, accelerator_count()) if said == "auto" else said
    if processes * recipe.distributed.nodes > 1:
        raise SetupError(
            f"distributed.processes: {said} are {processes * recipe.distributed.nodes} processes, and trials run in "
            "one. Write distributed.processes=1 and distributed.nodes=1, and tune what one GPU does."
        )


def tuned_recipe(recipe: Recipe, found: Tuning, path: Path) -> str:
    """It extends the recipe; every changed line says what its change gave."""
    comments: dict[str, str] = {}
    for one in found.tried:
        if one.verdict == "accepted":
            comments |= dict.fromkeys(one.changes, _comment(one, found.objective))
    remark = f"Tuned for {found.objective} by hf-efficient tune {__version__}"
    remark += f": {gain_words(found.total)} in all." if found.total is not None else "."
    own = {"output_dir": f"{recipe.output_dir}-tuned"}
    return fixed_recipe(recipe, {**found.changes, **own}, path, remark, comments)


def _comment(one: TriedChange, objective: str) -> str:
    assert one.gain is not None
    return f"{one.knob}: {gain_words(one.gain)} {objective.replace('_', ' ')}, {one.gain.how.partition(':')[0]}"
