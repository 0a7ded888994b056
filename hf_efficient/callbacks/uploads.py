"""What an upload to the hub leaves out: records of a run, which hold host names, absolute paths and prices; and what
files beside them leave out for that.

``Trainer.push_to_hub`` and ``hub_strategy`` upload all of OUTPUT_DIR by ``HfApi.upload_folder``, with patterns of their
own, after the event ``on_push_begin``. From that event on, uploads of this folder by this process ignore the records.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import TrainerCallback, TrainingArguments

RECORDS = (
    *("steps*.jsonl", "spans*.jsonl", "system*.jsonl", "*.rank*.jsonl", "run.json", "plan.json", "diagnosis.json"),
    *("preflight.json", "report.html", "recipe.resolved.yaml", "profile/*", "faults/*", "previous/*", "starting/*"),
)
"""What ``OUTPUT_DIR/efficiency`` holds (docs/outputs.md)."""

_ignored: dict[Path, set[str]] = {}
"""Folder that is uploaded to what is left out of it."""


def records_of(args: TrainingArguments, efficiency_dir: str | Path | None = None) -> Path:
    return Path(efficiency_dir or Path(str(args.output_dir)) / "efficiency")


def keep_from_uploads(args: TrainingArguments, efficiency_dir: str | Path | None = None) -> None:
    """Leave the records, wherever they are below OUTPUT_DIR, and ``OUTPUT_DIR/efficiency`` out of its uploads."""
    output = Path(str(args.output_dir)).resolve()
    ignored = _ignored.setdefault(output, set())
    for records in (records_of(args), records_of(args, efficiency_dir)):
        place = records.resolve()
        if place == output:
            ignored.update(RECORDS)
        elif output in place.parents:
            ignored.add(f"{place.relative_to(output).as_posix()}/*")
    if not hasattr(HfApi.upload_folder, "leaves_out"):
        from transformers import trainer

        HfApi.upload_folder = _leaving_out(HfApi.upload_folder)  # type: ignore[method-assign]
        if hasattr(trainer, "upload_folder"):  # of the hub's package, up to transformers 5.3: the method as it was
            trainer.upload_folder = lambda *args, **kwargs: HfApi().upload_folder(*args, **kwargs)


def keep_without_event(args: TrainingArguments, efficiency_dir: str | Path | None = None) -> None:
    """Do so at once under transformers before 5.0, which has no event of an upload."""
    if not hasattr(TrainerCallback, "on_push_begin"):
        keep_from_uploads(args, efficiency_dir)


def _leaving_out(upload_folder: Callable[..., Any]) -> Any:
    @functools.wraps(upload_folder)
    def upload(self: HfApi, *args: Any, **kwargs: Any) -> Any:
        ours = _ignored.get(Path(str(kwargs.get("folder_path", ""))).resolve())
        if ours:
            theirs = kwargs.get("ignore_patterns") or []
            kwargs["ignore_patterns"] = [*([theirs] if isinstance(theirs, str) else theirs), *ours]
        return upload_folder(self, *args, **kwargs)

    upload.leaves_out = _ignored  # type: ignore[attr-defined]
    return upload


def without_money(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Logged figures without what the run costs: ``efficiency/cost_usd`` and its relatives."""
    return {name: value for name, value in figures.items() if not name.endswith("_usd")}
