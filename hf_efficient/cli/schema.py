"""``hf-efficient schema``: the JSON Schema of a recipe file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hf_efficient.cli.output import write_text


def schema(
    output: Annotated[Path | None, typer.Option("--output", help="Write it to this file instead.")] = None,
) -> None:
    """Print the JSON Schema of a recipe file, with the fields of the installed trl under train.

    Example: hf-efficient schema --output recipe.schema.json
    """
    from hf_efficient.recipe.json_schema import json_schema

    schema = json_schema()
    text = json.dumps(schema, indent=2) + "\n"
    if output is None:
        print(text, end="")
        return
    write_text("--output", output, text, mark=f'"$comment": "{schema["$comment"]}"')
    print(f"written: {output}")
