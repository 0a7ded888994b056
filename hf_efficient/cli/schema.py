"""``hf-efficient schema``: the JSON Schema of a recipe file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def schema(
    output: Annotated[Path | None, typer.Option("--output", help="Write it to this file instead.")] = None,
) -> None:
    """Print the JSON Schema of a recipe file, with the fields of the installed trl under train.

    Example: hf-efficient schema --output recipe.schema.json
    """
    from hf_efficient.errors import OutputError
    from hf_efficient.recipe.json_schema import json_schema

    text = json.dumps(json_schema(), indent=2) + "\n"
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        told = error.strerror or error
        raise OutputError(
            f"--output {output}: cannot be written: {told}. Name a file in a folder that exists."
        ) from error
    print(f"written: {output}")
