"""The parameters of a model, in the units that are gathered at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from hf_efficient.planning.four_bit import values_of


@dataclass(frozen=True)
class HeldWeight:
    """One parameter.

    Attributes:
        name: in the model.
        shape: of the tensor; of a packed one, that of its bytes.
        values: that it stands for.
        loaded_itemsize: bytes of an element as the run loads it.
        itemsize: bytes of an element as the step computes with it.
        trained: whether it gets a gradient.
        packed: whether it holds several values in an element (bitsandbytes' 4-bit weights).
        quantized: packed, or of one byte per value (LLM.int8()).
    """

    name: str
    shape: tuple[int, ...]
    values: int
    loaded_itemsize: int
    itemsize: int
    trained: bool
    packed: bool = False
    quantized: bool = False

    @property
    def elements(self) -> int:
        """Of the tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered together.

    Attributes:
        name: of its module; ``tail`` and ``root`` for those that have none of their own.
        weights: its own.
        modules: names of its modules; what runs in them needs it. None of the root's.
        stays: whether FSDP2 keeps it gathered from the forward to the backward.
        ends_last: whether its backward ends with the whole: what comes into it, token ids, gets no gradient.
        is_layer: whether it is a block of the model, and not an embedding, the head, or what is left over.
    """

    name: str
    weights: tuple[HeldWeight, ...]
    modules: tuple[str, ...]
    stays: bool = False
    ends_last: bool = False
    is_layer: bool = False


def units_of(model: Any, loaded: dict[str, int], classes: Sequence[str] | None = None) -> tuple[Unit, ...]:
    """As accelerate's ``fsdp2_prepare_model`` (1.15) cuts a model: the blocks that its class says not to split, the
    embedding, and the final norm with the head, which take the embedding along where they share its weight. The root,
    last, holds the rest.

    Args:
        model: with its adapter.
        loaded: bytes of an element of each parameter as the run loads it, by name; for the others as it is.
        classes: of the blocks; default: those that the model's class says not to split.
    """
    found: list[Unit] = []
    taken: set[int] = set()
    weights = {id(one): _held(name, one, loaded) for name, one in model.named_parameters()}
    names = {id(module): name for name, module in model.named_modules()}
    embedding = model.get_input_embeddings()
    for parts, name in _cut(model, names, classes):
        own = {id(one): None for part in parts for one in part.parameters() if id(one) not in taken}
        taken.update(own)
        modules = tuple(names[id(part)] for part in parts)
        kind = {"stays": name == "tail", "ends_last": embedding in parts, "is_layer": name != "tail"}
        kind["is_layer"] &= embedding not in parts
        found.append(Unit(name, tuple(weights[one] for one in own), modules, **kind))
    rest = tuple(one for key, one in weights.items() if key not in taken)
    return (*found, Unit("root", rest, (), stays=True))


def unit_names(units: Iterable[Unit], modules: Iterable[str]) -> dict[str, Unit | None]:
    """The unit of each module by its name; None for one of the root's."""
    by_prefix = {prefix: unit for unit in units for prefix in unit.modules}

    def of(module: str) -> Unit | None:
        while module:
            if module in by_prefix:
                return by_prefix[module]
            module = module.rpartition(".")[0]
        return None

    return {module: of(module) for module in set(modules)}


def _cut(model: Any, names: dict[int, str], classes: Sequence[str] | None) -> Iterator[tuple[list[nn.Module], str]]:
    """The modules of each unit but the root in the order in which they run, and what it is called."""
    own = _blocks(model, _block_classes(model))
    blocks = own if classes is None else _blocks(model, set(classes))
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head is not None and getattr(embedding, "weight", None) is getattr(head, "weight", None)
    if not tied and embedding is not None:
        yield [embedding], names[id(embedding)]
    for block in blocks:
        yield [block], names[id(block)]
    tail = [_final_norm(model, own), embedding if tied else None, head]
    yield [part for part in tail if part is not None], "tail"


def _blocks(model: Any, classes: set[str]) -> list[nn.Module]:
    """The modules of these classes; of one inside another the outer, which is an upper bound."""
    found = [module for module in model.modules() if type(module).__name__ in classes]
    inside = {id(part) for block in found for part in block.modules() if part is not block}
    return [block for block in found if id(block) not in inside]


def _block_classes(model: Any) -> set[str]:
    return {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}


def _final_norm(model: Any, blocks: list[nn.Module]) -> nn.Module | None:
    """The norm beside the list of blocks."""
    if not blocks:
        return None
    for parent in model.modules():
        children = list(parent.children())
        if any(isinstance(child, nn.ModuleList) and blocks[0] in child for child in children):
            return next((child for child in reversed(children) if "Norm" in type(child).__name__), None)
    return None


def _held(name: str, parameter: Any, loaded: dict[str, int]) -> HeldWeight:
    values = values_of(parameter)
    itemsize = parameter.dtype.itemsize
    return HeldWeight(
        name=name,
        shape=tuple(parameter.shape),
        values=values,
        loaded_itemsize=loaded.get(name, itemsize),
        itemsize=itemsize,
        trained=parameter.requires_grad,
        packed=values != parameter.numel(),
        quantized=not parameter.dtype.is_floating_point,
    )
