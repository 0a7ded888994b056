"""Write the pages of docs/ that are made from the code: commands, recipe keys, diagnosis rules, shipped recipes.

recipes/plans.json holds the plans of the shipped recipes, for `hf-efficient recipes` and the table in docs/.

    python docs/generate.py                   write all pages
    python docs/generate.py --check           exit 1 where a page is stale, and write nothing
    python docs/generate.py cli.md rules.md   these pages alone; plans.json takes minutes

A new page is a function that returns Markdown and a line in ``PAGES``.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
GENERATED = "<!-- Written by `make docs` (docs/generate.py). Edit the code that it describes, not this page. -->"


def cli() -> str:
    """Every command, its arguments and its flags, from the objects that parse them."""
    import typer

    from hf_efficient.cli.app import COMMANDS, _app

    group = typer.main.get_command(_app)
    root = group.make_context("hf-efficient", [], resilient_parsing=True)
    index = table(["command", "what it does"], [(f"[`{name}`](#{name})", about) for name, about in COMMANDS.items()])
    parts = [
        "# Command line",
        GENERATED,
        "`hf-efficient COMMAND --help` prints the same. Exit codes: 0 done, 1 ran and the answer is no, 2 bad input, "
        "130 interrupted from the keyboard, 143 stopped by another signal.",
        index,
        "For all commands:",
        parameter_table(group, root),
    ]
    for name in group.list_commands(root):
        parts += command_section(name, group.get_command(root, name), root)
    return page(parts)


def command_section(name: str, command: Any, parent: Any) -> Iterator[str]:
    """Heading, help and parameters of a command, then of the commands below it."""
    context = command.make_context(name.split()[-1], [], parent=parent, resilient_parsing=True)
    yield f"## {name}"
    yield from help_paragraphs(command.help or "")
    yield parameter_table(command, context)
    for child, below in getattr(command, "commands", {}).items():
        yield from command_section(f"{name} {child}", below, context)


def help_paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help; examples and commands as code."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        shown = paragraph.removeprefix("Example: ")
        yield f"```bash\n{shown}\n```" if shown.startswith("hf-efficient ") else shown


def parameter_table(command: Any, context: Any) -> str:
    """Arguments and flags; ``--help``, which every command has, and hidden ones are left out."""
    shown = [one for one in command.get_params(context) if "--help" not in one.opts and not one.hidden]
    records = [one.get_help_record(context) for one in shown]
    rows = [(f"`{names.partition(' <')[0].strip()}`", about) for names, about in filter(None, records)]
    return table(["argument or flag", "what it does"], rows) if rows else ""


_TRL = "https://huggingface.co/docs/trl"
_TRAIN = (
    f"The fields of [`trl.SFTConfig`]({_TRL}/sft_trainer#trl.SFTConfig), or of "
    f"the class of the `objective`, as [`trl.DPOConfig`]({_TRL}/dpo_trainer#trl.DPOConfig), unrenamed. "
    "`hf-efficient recipes show RECIPE --explain` prints each with its value and who set it."
)


def recipe_keys() -> str:
    """Every key of a recipe: type, default, description, from the schema."""
    from hf_efficient.recipe.schema import Recipe

    schema = Recipe.model_json_schema()
    sections = {name: referred(one, schema) for name, one in schema["properties"].items()}
    required = [name for name in schema["required"] if name not in ("name", "output_dir")]  # they follow from the file
    top = {name: one for name, one in schema["properties"].items() if sections[name] is None and name != "train"}
    parts = [
        "# Recipe keys",
        GENERATED,
        "[Recipes](recipes.md) explains how a recipe is composed. `hf-efficient schema` prints the same as a JSON "
        "Schema, with every field of `train:`, for completion in an editor.",
        "## Top level",
        "A file may also name what it `extends`: a path relative to the file, or a shipped name such as `bases/qlora`.",
        key_table(top, schema, required=required),
    ]
    for name, section in sections.items():
        if section is not None:
            parts += [f"## {name}", section.get("description", "").partition("\n\n")[0]]
            parts.append(key_table(section["properties"], schema, f"{name}.", section.get("required", ())))
        elif name == "train":
            parts += ["## train", _TRAIN]
    return page(parts)


def key_table(properties: Mapping[str, Any], schema: Any, prefix: str = "", required: Sequence[str] = ()) -> str:
    return table(["key", "type", "default", "meaning"], key_rows(properties, schema, prefix, required))


def key_rows(properties: Mapping[str, Any], schema: Any, prefix: str, required: Sequence[str]) -> Iterator[list[str]]:
    """A row per key; those of a section follow it with dotted names, ``N`` for an entry of a list."""
    for name, one in properties.items():
        default = "required" if name in required else shown_default(one)
        section, entry = referred(one, schema), referred(one.get("items", {}), schema)
        about = one.get("description") or (section or {}).get("description", "").partition("\n\n")[0]
        yield [f"`{prefix}{name}`", "section" if section else type_name(one, schema), default, about]
        for below, path in ((section, f"{prefix}{name}."), (entry, f"{prefix}{name}.N.")):
            if below:
                yield from key_rows(below["properties"], schema, path, below.get("required", ()))


def referred(one: Mapping[str, Any], schema: Any) -> Any:
    """The section that a key holds, or None."""
    kinds = one.get("anyOf", [one])
    names = [kind["$ref"].rpartition("/")[2] for kind in kinds if "$ref" in kind]
    return schema["$defs"][names[0]] if names else None


def shown_default(one: Mapping[str, Any]) -> str:
    default = one.get("default")
    return "" if default is None or default == "" else f"`{json.dumps(default)}`"


_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def type_name(one: Mapping[str, Any], schema: Any) -> str:
    """What a key takes: ``integer > 0``, ``list of string``, or the values that are allowed."""
    if "anyOf" in one:
        return " or ".join(type_name(kind, schema) for kind in one["anyOf"] if kind.get("type") != "null")
    if "enum" in one or "const" in one:
        return ", ".join(f"`{value}`" for value in one.get("enum", [one.get("const")]))
    if one.get("type") == "array":
        return "list of " + ("sections" if referred(one["items"], schema) else type_name(one["items"], schema))
    if one.get("type") == "object":
        held = one["additionalProperties"]
        return "mapping" if held is True else f"mapping of {type_name(held, schema)}"
    bounds = [f"{sign} {one[name]:g}" for name, sign in _BOUNDS.items() if name in one]
    return " ".join([one["type"], " and ".join(bounds)]).strip()


def rules() -> str:
    """Every rule of the diagnosis with the first sentence of its docstring, by the file that holds it."""
    from hf_efficient.diagnosis.rules import ISOLATED_RULES, RULES, TRACE_RULES

    kinds = {"a run": RULES, "variants of a recipe": ISOLATED_RULES, "a trace": TRACE_RULES}
    files: dict[str, list[tuple[str, str, str]]] = {}
    for kind, of_kind in kinds.items():
        for one in of_kind:
            files.setdefault(one.__module__, []).append((f"`{one.__name__}`", kind, first_sentence(one)))
    counts = ", ".join(f"{len(of_kind)} of {kind}" for kind, of_kind in kinds.items())
    parts = [
        "# Diagnosis rules",
        GENERATED,
        f"What `hf-efficient diagnose` can find: {counts}. [Diagnose](diagnose.md) explains findings and remedies.",
    ]
    for module in sorted(files):
        parts += [f"## {module.rpartition('.')[2]}", first_sentence(sys.modules[module])]
        parts.append(table(["rule", "judges", "what it finds"], files[module]))
    return page(parts)


def first_sentence(documented: Any) -> str:
    """Of the docstring."""
    text = " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", text, maxsplit=1)[0]


def plans() -> str:
    """Every shipped recipe, planned on the GPU that it fits at the lowest price per token, for `recipes` and tables."""
    from hf_efficient.recipe.files import list_recipes

    rows = [planned_row(one.name) for one in list_recipes()]
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]\n"


def planned_row(name: str) -> dict[str, Any]:
    """The fields of ``recipe.files.ShippedPlan``."""
    from hf_efficient.facts.models import licence_of
    from hf_efficient.planning.plan import plan
    from hf_efficient.recipe.load import load_recipe

    recipe = load_recipe(name)
    planned = plan(recipe, read_data=False)
    gpu = planned.gpus[0]
    return {
        "recipe": name,
        "model": recipe.model.id,
        "method": method(recipe),
        "row_tokens": planned.row_tokens,
        "micro_batch": recipe.train.get("per_device_train_batch_size", 8),
        "gpus": planned.ranks.count if planned.ranks else 1,
        "gpu": gpu.name if gpu.fits else None,
        "tensors_gib": round(planned.memory.peak_allocated_bytes / 2**30, 1),
        "needed_gib": round(gpu.needed_bytes / 2**30, 1),
        # Two significant digits: an estimate has no more.
        "tokens_per_second": None if gpu.tokens_per_second is None else float(f"{gpu.tokens_per_second:.2g}"),
        "licence": licence_of(recipe.model.id),
        "gated": gated(recipe.model.id),
        "fingerprint": fingerprint(name),
    }


def gated(model: str) -> bool | None:
    from hf_efficient.facts.models import find_model

    return False if model.startswith("package:") else find_model(model).gated


def fingerprint(name: str) -> str:
    """Of all that a shipped recipe and its bases set; without the defaults of the schema."""
    from hf_efficient.recipe.files import compose, find_recipe

    held = compose(find_recipe(name))[0].plain()
    held.pop("description", None)
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()[:12]


def recipe_table() -> str:
    """The shipped recipes and their plans, from recipes/plans.json."""
    from hf_efficient.recipe.files import shipped_plans

    rows = []
    for one in shipped_plans().values():
        speed = "" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}"
        gib = [f"{one.tensors_gib:.1f}", f"{one.needed_gib:.1f}"]
        fits = [f"{one.gpus} x {one.gpu}", *gib, speed] if one.gpu else ["none", "", "", ""]
        shape = [str(one.row_tokens), str(one.micro_batch)]
        licence = f"{one.licence}{', gated' if one.gated else ''}"
        rows.append([f"`{one.recipe}`", one.model, licence, one.method, *shape, *fits])
    header = ["recipe", "model", "licence", "method", "tokens a row", "micro-batch", "GPU", "tensors (GiB)"]
    parts = [
        "# Shipped recipes",
        GENERATED,
        "Each recipe as it stands, planned by `hf-efficient plan RECIPE --no-data`: full rows, and of the GPUs that it "
        "fits the one with the lowest list price per token. `tensors` is the peak of allocated memory, `needs` "
        "adds the allocator's cache and the CUDA context; both are of one GPU. Tokens per second are of all GPUs; they "
        "are missing where the rate of an operator is not known, as of attention in float32. "
        "These are estimates: [how good they are](benchmarks.md#plan-accuracy). The licence is the model's; for a "
        "gated model, accept it on the hub and log in. `hf-efficient recipes` prints and filters this table.",
        table([*header, "needs (GiB)", "tokens/s"], rows),
    ]
    return page(parts)


def method(recipe: Any) -> str:
    adapter = recipe.adapter
    kind = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}[adapter.method]
    kind = "DoRA" if adapter.dora else "rsLoRA" if adapter.rslora else kind
    strategy = recipe.distributed.strategy
    return kind if strategy in ("auto", "none") else f"{kind}, {strategy}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; pipes and line breaks in the cells are made harmless."""
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    padded = [[*row, *[""] * (len(header) - len(row))] for row in cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *padded])


def page(parts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, parts)) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli,
    "recipe-keys.md": recipe_keys,
    "rules.md": rules,
    "plans.json": plans,
    "recipe-table.md": recipe_table,
}


def path_of(name: str) -> Path:
    return DOCS.parent / "recipes" / name if name == "plans.json" else DOCS / name


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description="Write the pages of docs/ that are made from the code.")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"default: all of {', '.join(PAGES)}")
    parser.add_argument("--check", action="store_true", help="exit 1 where a page is stale, and write nothing")
    wanted = parser.parse_args(argv)
    unknown = set(wanted.pages) - set(PAGES)
    if unknown:
        parser.error(f"no such page: {', '.join(sorted(unknown))}; there are {', '.join(PAGES)}")
    stale = []
    for name in wanted.pages or PAGES:
        path, text = path_of(name), PAGES[name]()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not wanted.check:
                path.write_text(text, encoding="utf-8")
    if stale:
        print(", ".join(stale), "stale: run `make docs`" if wanted.check else "written")
    return int(wanted.check and bool(stale))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # the shipped prices alone, not those of this machine's user
        Path(folder, "prices.yaml").write_text("[]\n", encoding="utf-8")
        os.environ["HF_EFFICIENT_FACTS"] = folder
        sys.exit(main())
