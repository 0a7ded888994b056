"""``preflight.json``: where the last proof for an output directory is remembered."""

from __future__ import annotations

from pathlib import Path

from hf_efficient.account.json_file import read_record, strict_json, write_whole
from hf_efficient.errors import OutputError
from hf_efficient.launch.run_files import EFFICIENCY, PREFLIGHT_JSON
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.preflight import PREFLIGHT_SCHEMA_VERSION, Preflight

__all__ = ["kept_preflight", "preflight_path", "write_preflight"]


def preflight_path(recipe: Recipe) -> Path:
    """Beside the records of the run."""
    return Path(recipe.output_dir).expanduser() / EFFICIENCY / PREFLIGHT_JSON


def kept_preflight(recipe: Recipe) -> Preflight | None:
    """The last one, whatever came of it; None where there is none that can be read."""
    try:
        return read_record(preflight_path(recipe), Preflight, PREFLIGHT_SCHEMA_VERSION, "a preflight")
    except OutputError:
        return None


def write_preflight(recipe: Recipe, preflight: Preflight) -> None:
    """Remember it.

    Raises:
        OutputError: the file cannot be written.
    """
    path = preflight_path(recipe)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, strict_json(preflight))
    except OSError as error:
        raise OutputError(f"output_dir: {path} cannot be written: {error.strerror or error}.") from error
