"""What commands share: arguments that mean the same everywhere, flags that a command does not have, JSON, and files."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TextIO

from typer import Argument, Option

from hf_efficient.errors import ModelError, OutputError, SetupError, writing
from hf_efficient.reporting.terminal import Lasting, show


def _recipe_names(incomplete: str) -> list[str]:
    from hf_efficient.recipe.files import list_recipes

    shipped = [one.name for one in list_recipes() if one.name.startswith(incomplete)]
    found = Path().glob(f"{incomplete}*")
    return shipped + [f"{one}/" if one.is_dir() else str(one) for one in found if one.is_dir() or one.suffix == ".yaml"]


def gpu_names(incomplete: str) -> list[str]:
    from hf_efficient.facts.tables import accelerators

    return [one.name for one in accelerators() if one.name.lower().startswith(incomplete.lower())]


RecipeArgument = Annotated[
    str, Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one.", autocompletion=_recipe_names)
]
Overrides = Annotated[list[str] | None, Argument(metavar="a.b=value", help="Values that replace the recipe's.")]
RunDir = Annotated[Path, Argument(metavar="RUN_DIR", help="Output directory of a run.")]


_OF_A_MODEL = ("adapter_config.json", "config.json", "*.gguf", "checkpoint-*")


def run_or_model(name: str) -> str:
    """Refuse, before torch is imported, what is not here and no name on the hub either: those have an owner."""
    if not ({"/", ":"} & set(name) or Path(name).expanduser().exists()):
        raise ModelError(
            f"{name} is no folder or file here, and a name on the hub has an owner. Write the output directory of a "
            "run, the folder of a model, or OWNER/NAME."
        )
    folder = Path(name).expanduser()
    if folder.is_dir() and not any(any(folder.glob(one)) for one in _OF_A_MODEL):
        raise ModelError(
            f"{name} holds no model: neither adapter_config.json nor config.json nor a GGUF file. Write the output "
            "directory of a run, one of its checkpoints, or the folder of a model."
        )
    return name


def run_folder(folder: Path) -> Path:
    """Likewise, for what reads runs alone."""
    if not folder.expanduser().exists():
        raise ModelError(f"{folder} does not exist. Write the output directory of a run.")
    return folder


RunOrModel = Annotated[
    str,
    Argument(
        metavar="RUN_OR_MODEL",
        help="Output directory of a run, a model's folder or its hub name.",
        callback=run_or_model,
    ),
]
TRUST = "Run Python code that the model's repository ships."
TrustRemoteCode = Annotated[bool, Option("--trust-remote-code", help=TRUST)]
NUM_GPUS = "GPUs of each machine, as distributed.processes=N."
NumGpus = Annotated[int | None, Option(metavar="N", help=NUM_GPUS)]
Resume = Annotated[bool, Option("--resume", help="Continue from the last checkpoint in output_dir.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace the run in output_dir.")]
_REMEDY = "Name a file in a folder that exists and can be written."
_PROCESSES = "distributed.processes"


def with_num_gpus(overrides: Sequence[str], num_gpus: int | None) -> list[str]:
    """``--num-gpus`` as ``distributed.processes``, also in place of ``auto``; ``SetupError`` where another number is
    written as well."""
    if num_gpus is None:
        return list(overrides)
    if num_gpus < 1:
        raise SetupError(f"--num-gpus: {num_gpus} cannot train. Write the number of GPUs, 1 or more.")
    written = [one.partition("=")[2].strip() for one in overrides if one.startswith(f"{_PROCESSES}=")]
    if written and written[-1] not in (str(num_gpus), "auto"):
        message = f"is {num_gpus}, but {_PROCESSES}={written[-1]} was written as well"
        raise SetupError(f"--num-gpus: {message}. Write one of them.")
    return [*overrides, f"{_PROCESSES}={num_gpus}"]


def check_switches(*, resume: bool, overwrite: bool) -> list[str]:
    if resume and overwrite:
        raise SetupError("--overwrite: --resume is given too. Leave one of them out.")
    return ["--resume"] * resume + ["--overwrite"] * overwrite


_answers: TextIO | None = None
"""Where JSON goes while ``json_alone`` keeps everything else off standard output."""


@contextmanager
def json_alone(wanted: bool) -> Iterator[None]:
    """Keep standard output for ``print_json`` alone: prints of libraries, of C code and of child processes, in the
    block, go to standard error."""
    global _answers
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept, error = _descriptor(sys.stdout), _descriptor(sys.stderr)
    if kept is None or error is None:
        _answers = sys.stdout
    else:
        _answers = Lasting(os.fdopen(os.dup(kept), "wb"), encoding="utf-8")
        os.dup2(error, kept)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if _answers is not sys.stdout and kept is not None:
            os.dup2(_answers.fileno(), kept)
            _answers.close()
        _answers = None


def _descriptor(stream: TextIO) -> int | None:
    """None for a stream that stands for no file, as in a test."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def print_json(data: Any) -> None:
    """Print data, or text that is JSON already."""
    text = data if isinstance(data, str) else json.dumps(data, indent=2)
    print(text.rstrip("\n"), file=_answers, flush=True)


def print_found(found: Any, renderables: Callable[[Any], Any], *, as_json: bool, **more: Any) -> None:
    """A dataclass on the terminal; or as JSON, which holds ``more`` besides, and null for what is not finite."""
    import msgspec

    if as_json:
        encoder = msgspec.json.Encoder(enc_hook=lambda one: float(one) if isinstance(one, float) else str(one))
        print_json(msgspec.json.format(encoder.encode({**asdict(found), **more}), indent=2).decode())
    else:
        show(renderables(found))


def command_line() -> str:
    return shlex.join(["hf-efficient", *sys.argv[1:]])


class Lines:
    """A line on standard error for each training of isolate, bench and tune, and for each decision."""

    def begins(self, what: str) -> None:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)

    def ends(self, what: str) -> None:
        print(f" {what}", file=sys.stderr, flush=True)


def tell_remarks(recipe: Any) -> None:
    """On standard error, what in a recipe does not do what it seems to."""
    from hf_efficient.recipe.rules.values import recipe_remarks

    for remark in recipe_remarks(recipe):
        print(remark, file=sys.stderr)


def check_is_recipe(recipe: str, command: str) -> None:
    if Path(recipe).expanduser().is_dir():
        raise SetupError(
            f"{recipe}: is a folder, and {command} runs a recipe. Name a recipe file or a shipped recipe. For a run: "
            f"hf-efficient diagnose {recipe}"
        )


PAGE = '<meta name="generator" content="hf_efficient'
"""In the head of every page of ours."""
MARKDOWN = "<!-- written by hf-efficient -->"
_HEAD_BYTES = 4096


def check_file(flag: str, path: Path | None, mark: str = "") -> None:
    """Refuse, before long work, a file that ``flag`` names, if any: ``OutputError`` for a missing folder, and for what
    is there already, but a file whose head holds ``mark``, which an earlier command wrote."""
    if path is None:
        return
    path = path.expanduser()
    if path.is_dir():
        raise OutputError(f"{flag}: {path} is a folder. {_REMEDY}")
    if not path.parent.is_dir():
        raise OutputError(f"{flag}: there is no folder {path.parent}. {_REMEDY}")
    if path.exists() and not (mark and path.is_file() and mark in _head(flag, path)):
        raise OutputError(
            f"{flag}: {path} exists already, and this command did not write it. Name another file, or remove it."
        )


def _head(flag: str, path: Path) -> str:
    with writing(flag, path), path.open("rb") as file:
        return file.read(_HEAD_BYTES).decode(errors="replace")


def write_text(flag: str, path: Path, text: str, mark: str = "") -> None:
    """Write a file that a flag names, as a whole and only where ``check_file`` lets it; a link stays one. Raises
    ``OutputError``."""
    from hf_efficient.run_dir.json_file import write_whole

    check_file(flag, path, mark)
    with writing(flag, path):
        write_whole(path.expanduser().resolve(), text)


def write_page(named: Path | None, default: Path, make: Callable[[], str], stream: TextIO | None = None) -> None:
    """Write a page, and print where it is to ``stream`` (default: standard output). ``named`` is the user's choice, or
    ``OutputError``; None: at ``default``, or nowhere where that cannot be written."""
    path = named.expanduser() if named is not None else default
    try:
        write_text("--html", path, make(), PAGE)
    except OutputError as error:
        if named is not None:
            raise
        print(f"The page is not written: {str(error).removeprefix('--html: ')} Or write --html FILE.", file=sys.stderr)
        return
    print(f"The page is {path}", file=stream)


_KIND = ("--gpu", "--gpu NAME for the kind of GPU")
_NUMBER = ("--num-gpus", "--num-gpus N for their number")
_RENAMED = {
    "--gpus": (_KIND, _NUMBER),
    "--gpu": (("--gpu-memory", "--gpu-memory GB, for instance 24"),),
    "--gpu-memory": (("--gpu", "--gpu 'RTX 3090', or hf-efficient recipes --gpu-memory GB"),),
    **dict.fromkeys(("--gpu-type", "--gpu_type", "--accelerator"), (_KIND,)),
    **dict.fromkeys(("--num-gpus", "--num_gpus", "--num-processes", "--num_processes"), (_NUMBER,)),
    **dict.fromkeys(("--nproc-per-node", "--nproc_per_node"), (_NUMBER,)),
}
"""Names of other tools, each with our flags and what to write."""


_OF_SUBMIT = dict.fromkeys(("--on", "--submit", "--gpu", "--partition", "--account", "--image", "--infra"), "submit")
_OF_OTHERS = {"train": _OF_SUBMIT, "diagnose": {"--isolate": "isolate", "--steps": "isolate"}}


def misplaced_argument(name: str, args: Sequence[str]) -> str | None:
    """The error for a recipe that is to be shown by ``recipes``, several runs of ``report``, or a flag of another
    command, with what to write."""
    for flag in (arg.partition("=")[0] for arg in _before_dashes(args)):
        if other := _OF_OTHERS.get(name, {}).get(flag):
            return f"{flag}: is a flag of hf-efficient {other}. Write hf-efficient {other} in place of {name}."
    if name == "recipes" and args and "/" in args[0]:
        return f"{args[0]}: is no command. Write hf-efficient recipes show {shlex.join(args)}"
    before = ["", *args]
    runs = [arg for place, arg in enumerate(args) if not arg.startswith("-") and before[place] != "--html"]
    if name == "report" and runs[1:]:
        return f"{runs[1]}: report shows one run. Write {shlex.join(['hf-efficient', 'compare', *runs])}"
    return None


def unknown_flag(command: Any, args: Sequence[str]) -> str | None:
    """The error for the first flag that is none of the command's and whose meaning is known; None leaves it to typer.

    ``command`` is click's; one that passes its arguments on takes any flag.
    """
    below = getattr(command, "commands", {})
    if command is None or command.ignore_unknown_options or (command.allow_extra_args and not below):
        return None
    if args and args[0] in below:
        return unknown_flag(below[args[0]], args[1:])
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
    takes_keys = any(param.name == "overrides" for param in command.params)
    for place, arg in enumerate(_before_dashes(args)):
        name, is_joined, value = arg.partition("=")
        if not name.startswith("--") or name in known:
            continue
        if takes_keys:
            following = args[place + 1] if place + 1 < len(args) else ""
            written = _as_override(name, value if is_joined or following.startswith("--") else following)
            if written is not None:
                return f"{name}: is no flag. Write {written}"
        renamed = _RENAMED.get(name, ())
        meant = [written for flag, written in renamed if flag in known]
        if not meant and _NUMBER in renamed and takes_keys:
            meant = ["distributed.processes=N for their number"]
        if meant:
            return f"{name}: is no flag. Write {', '.join(meant)}."
    return None


def _before_dashes(args: Sequence[str]) -> Iterator[str]:
    for arg in args:
        if arg == "--":
            return
        yield arg


def _as_override(flag: str, value: str) -> str | None:
    """``train.learning_rate=1e-4`` for ``--learning_rate 1e-4``; None where no key of a recipe is called so."""
    from hf_efficient.recipe.schema_check import key_called
    from hf_efficient.recipe.train_fields import checked_recipe, train_fields

    key = key_called(flag.removeprefix("--").replace("-", "_"), checked_recipe("sft"))
    if key is None or value:
        return None if key is None else f"{key}={shlex.quote(value)}"
    field = train_fields("sft").get(key.removeprefix("train."))
    return f"{key}={'true' if field is not None and 'bool' in field.kinds else 'VALUE'}"


def bare_switches(params: Sequence[Any]) -> None:
    """No ``<bool>`` behind a switch, which takes no value."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
