"""Short forms of a recipe, and evaluation data that goes with its training data: changes of the unchecked tree."""

from hf_efficient.recipe.tree import KeyPath, Node

ALIASES: dict[KeyPath, str] = {
    ("adapter", "lora_alpha"): "alpha",
    ("adapter", "lora_dropout"): "dropout",
    ("adapter", "use_dora"): "dora",
    ("adapter", "use_rslora"): "rslora",
}
"""PEFT's own names of a key."""

_TEXT: dict[KeyPath, str] = {("model",): "id", ("data",): "train"}
"""Sections that may be one text: the key that it stands for."""

_SOURCES: tuple[KeyPath, ...] = (("data", "train"), ("data", "eval"))
_REWARDS: KeyPath = ("rewards",)
_HELD_OUT = 0.05


def own_path(path: KeyPath) -> KeyPath:
    return (*path[:-1], ALIASES.get(path, path[-1])) if path else path


def written_out(node: Node, path: KeyPath = ()) -> Node:
    """The value at ``path`` without short forms: ``model: NAME``, ``data: FILE``, a source alone in place of a list, a
    text in place of a source or a reward, PEFT's names. A key that is written under both names stays as it is."""
    is_text = isinstance(node.value, str)
    if is_text and path in _TEXT:
        node = Node({_TEXT[path]: node}, node.origin)
    elif path in (*_SOURCES, _REWARDS) and node.value and isinstance(node.value, (str, dict)):
        node = Node([node], node.origin)
    elif is_text and len(path) == 3 and path[:2] in _SOURCES:
        node = Node({"path": node}, node.origin)
    elif is_text and path[:-1] == _REWARDS:
        node = Node({"function" if ":" in node.value else "name": node}, node.origin)
    if isinstance(node.value, dict):
        entries: dict[str, Node] = {}
        for key, child in node.value.items():
            own = str(own_path((*path, key))[-1])
            entries[key if own in node.value else own] = written_out(child, (*path, key))
        return Node(entries, node.origin)
    if isinstance(node.value, list):
        return Node([written_out(item, (*path, index)) for index, item in enumerate(node.value)], node.origin)
    return node


def with_own_evaluation(below: Node, tree: Node) -> Node:
    """``tree``, which is a layer laid over ``below``, without the evaluation data of another task: other training data
    take ``data.eval`` away, and a share of them is held out. A layer's ``eval`` or ``eval_fraction`` replaces both."""
    before, after = below.child("data"), tree.child("data")
    if before is None or after is None or not (isinstance(before.value, dict) and isinstance(after.value, dict)):
        return tree
    evaluation, fraction, train = map(after.child, ("eval", "eval_fraction", "train"))
    new_eval, new_fraction = (after.child(key) is not before.child(key) for key in ("eval", "eval_fraction"))
    changes: dict[str, Node] = {}
    if evaluation is not None and new_eval and fraction is not None and not new_fraction:
        changes["eval_fraction"] = Node(None, evaluation.origin)
    elif evaluation is not None and evaluation.value and not new_eval:
        if fraction is not None and new_fraction and fraction.value is not None:
            changes["eval"] = Node([], fraction.origin)
        elif train is not None and not _sources(before) & _sources(after):
            changes["eval"] = Node([], train.origin)
            changes["eval_fraction"] = fraction if new_fraction and fraction else Node(_HELD_OUT, train.origin)
    return Node({**tree.value, "data": Node({**after.value, **changes}, after.origin)}, tree.origin)


def _sources(data: Node) -> set[tuple[str, str]]:
    train = data.child("train")
    sources = train.value if train is not None and isinstance(train.value, list) else []
    return {(_text(source, "path"), _text(source, "name")) for source in sources}


def _text(source: Node, key: str) -> str:
    held = source.child(key)
    return "" if held is None else str(held.value)
