"""Flags that a command does not have: what to write in their place; and switches in a help."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

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
_OF_SUBMIT = frozenset((
    "--on", "--submit", "--cluster", "--gpu", "--time", "--shared", "--partition", "--account", "--image", "--infra",
    "--namespace",
))  # fmt: skip
_OF_ISOLATE = frozenset(("--isolate", "--steps"))


def old_spelling(name: str, args: Sequence[str]) -> str | None:
    """The error for a flag that another command has by now, with the whole command to write. Also for a recipe that is
    to be shown, and for several runs of ``report``."""
    if name == "recipes" and args and "/" in args[0]:
        return f"{args[0]}: is no command. Write hf-efficient recipes show {shlex.join(args)}"
    if name == "report" and (several := _run_dirs(args))[1:]:
        return f"{several[1]}: report shows one run. Write {shlex.join(['hf-efficient', 'compare', *several])}"
    flags = [arg.partition("=")[0] for arg in _before_dashes(args)]
    moved = {"train": _OF_SUBMIT, "diagnose": _OF_ISOLATE}.get(name, frozenset())
    found = next((flag for flag in flags if flag in moved), None)
    if found is None:
        return None
    if name == "diagnose":
        written = _command("isolate", args, "--isolate")
        return f"{found}: is about variants of a recipe, and diagnose reads a run. Write {written}"
    is_named = "--on" in flags
    target = [] if is_named else ["--on", "slurm"]
    prints = [] if {"--submit", "--output", "--dry-run"} & set(flags) else ["--dry-run"]
    remedy = f"{'Write' if is_named else 'Leave it out, or write'} "
    remedy += _command("submit", [*args, *target, *prints], "--submit")
    return f"{found}: is for the job of a cluster, and train runs on this machine. {remedy}"


def _run_dirs(args: Sequence[str]) -> list[str]:
    before = ["", *args]
    return [arg for place, arg in enumerate(args) if not arg.startswith("-") and before[place] != "--html"]


def _command(name: str, args: Sequence[str], without: str) -> str:
    return shlex.join(["hf-efficient", name, *(arg for arg in args if arg != without)])


def unknown_flag(command: Any, args: Sequence[str]) -> str | None:
    """The error for the first flag that is none of the command's and whose meaning is known; None leaves it to typer.

    ``command`` is click's; one that passes its arguments on takes any flag.
    """
    if command is None or command.ignore_unknown_options or (command.allow_extra_args and not _below(command)):
        return None
    below = _below(command)
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


def _below(command: Any) -> dict[str, Any]:
    return getattr(command, "commands", {})


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
