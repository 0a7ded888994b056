"""``hf-efficient convert``: the YAML of TRL or Axolotl as a recipe."""

import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class _Tool(str, Enum):
    trl = "trl"
    axolotl = "axolotl"


def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The YAML file of TRL or Axolotl.")],
    tool: Annotated[_Tool | None, typer.Option("--from", help="Whose file; default: recognised by its keys.")] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The recipe to write, a new file; default: standard output.")
    ] = None,
) -> None:
    """Turn a configuration of `trl sft`, `trl dpo` or Axolotl into a recipe that validates.

    What is not mapped is listed with what to write instead, on standard error and at the end of the recipe.

    Example: hf-efficient convert axolotl.yaml --output my.yaml
    """
    from hf_efficient.recipe.conversion.convert import convert_file
    from hf_efficient.recipe.writing import check_new_file, write_new_file

    if output is not None:
        check_new_file(output, "--output")
    name = (output or file).stem
    found = convert_file(file, tool.value if tool else None, name)
    for line in found.notes:
        print(line, file=sys.stderr)
    if output is None:
        print(found.text, end="")
        return
    write_new_file(output, found.text, "--output")
    print(f"written: {output}\nNext: hf-efficient data {shlex.quote(str(output))}")
