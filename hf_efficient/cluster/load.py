"""A cluster's file and the flags laid over it, to a checked ``Cluster``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from hf_efficient.cluster.amounts import gpus_of, seconds_of
from hf_efficient.cluster.description import Cluster
from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.compose import read_recipe_text
from hf_efficient.recipe.findings import Finding, to_problems
from hf_efficient.recipe.nodes import Node, dotted
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.schema_check import check_schema
from hf_efficient.recipe.words import found
from hf_efficient.recipe.yaml_nodes import parse_yaml

__all__ = ["FLAGS", "load_cluster"]

FLAGS: Mapping[str, tuple[str, ...]] = {
    "--gpus": ("gpus",),
    "--time": ("time_limit",),
    "--shared": ("shared",),
    "--image": ("image",),
    "--partition": ("slurm", "partition"),
    "--account": ("slurm", "account"),
    "--infra": ("skypilot", "infra"),
    "--namespace": ("kubernetes", "namespace"),
}
"""The flags of the command line that stand for a key, and the key."""


def load_cluster(file: Path | None, flags: Mapping[str, str | None]) -> Cluster:
    """Read the description of a cluster.

    Args:
        file: a YAML file; None: the flags are all there is.
        flags: by the flag's name (``--gpus``), laid over the file; None for one that was not given.

    Raises:
        RecipeError: with all problems at once, each with file and line or the flag.
    """
    tree = _tree(file) if file is not None else Node({}, Origin("command line"))
    for flag, text in flags.items():
        if text is not None:
            _lay(tree, FLAGS[flag], text, Origin("command line", text=f"{flag} {text}"))
    findings = check_schema(tree, root=Cluster, kind="a cluster's description")
    if not findings:
        findings = list(_wrong_amounts(tree))
    if findings:
        raise RecipeError(to_problems(tree, findings))
    cluster = Cluster.model_validate(tree.plain(), strict=True)
    cluster._origins = {dotted(path): node.origin for path, node in tree.leaves()}
    cluster._file = str(file) if file is not None else ""
    return cluster


def _tree(file: Path) -> Node:
    tree = parse_yaml(read_recipe_text(file), Origin(str(file)))
    if isinstance(tree.value, dict):
        return Node(tree.value, Origin(str(file)))
    held = "is empty" if tree.value is None else f"holds {found(tree.value)}"
    message = f"{held}; a cluster's description is a mapping of keys to values."
    raise RecipeError([Problem(str(file), "", message, "Start with, for instance, `gpus: H100:8`.")])


def _lay(tree: Node, path: tuple[str, ...], text: str, origin: Origin) -> None:
    """Put the value of a flag into the tree; a section that is no mapping is left for the checks to tell of."""
    node = tree
    for part in path[:-1]:
        node = node.value.setdefault(part, Node({}, origin))
        if not isinstance(node.value, dict):
            return
    node.value[path[-1]] = Node(text, origin)


def _wrong_amounts(tree: Node) -> Iterator[Finding]:
    """What the types alone do not say."""
    said: dict[str, Any] = {key: node.value for key, node in tree.value.items()}
    if said.get("gpus") is not None and gpus_of(said["gpus"]) is None:
        message = f"is {found(said['gpus'])}, but must be a count of at least 1, or TYPE:COUNT."
        yield Finding(("gpus",), message, "Write, for instance, H100:8.")
    if said.get("time_limit") is not None and seconds_of(said["time_limit"]) is None:
        message = f"is {found(said['time_limit'])}, but must be a time: 90m, 12h, 2d, 12:00:00 or 1-12:00:00."
        yield Finding(("time_limit",), message, "Write, for instance, 12h.")
    shared = said.get("shared")
    if shared is not None and not PurePosixPath(shared).is_absolute():
        message = f"is {found(shared)}, but must be an absolute path."
        yield Finding(("shared",), message, "Write the path at which every machine sees the storage.")
    for name in (tree.plain().get("env") or {}) if isinstance(said.get("env"), dict) else ():
        if not name.isidentifier() or not name.isascii():
            yield Finding(("env", name), "is no name of an environment variable.", "Letters, digits and _.")
