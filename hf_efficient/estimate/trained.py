"""Which parameters of a model a run trains: what decides which gradients its backward computes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import Linear, ModelShape, linears_of_layer

HEAD = "lm_head"
EMBEDDING = "embed_tokens"


@dataclass(frozen=True)
class Trained:
    """Full training, or low-rank adapters on a frozen base.

    Attributes:
        everything: all parameters are trained.
        ranks: for each layer, name of a projection to the rank of its adapter (``{"q_proj": 16}``); empty where no
            layer has any.
        head_rank: rank of the adapter on the LM head; 0 without.
        embedding: whether the token embedding itself is trained (``modules_to_save``).
        head: whether the LM head itself is trained; with tied embeddings it is if the embedding is.
        input_gradient: whether the embedding's output asks for a gradient although nothing before it is trained
            (``enable_input_require_grads``, which a frozen base under activation checkpointing is given).
    """

    everything: bool = False
    ranks: tuple[Mapping[str, int], ...] = ()
    head_rank: int = 0
    embedding: bool = False
    head: bool = False
    input_gradient: bool = False

    @classmethod
    def full(cls) -> Trained:
        """Every parameter is trained."""
        return cls(everything=True, embedding=True, head=True)

    @classmethod
    def adapter(
        cls,
        shape: ModelShape,
        targets: str | Iterable[str] = "all-linear",
        rank: int = 16,
        *,
        layers: Iterable[int] | None = None,
        modules_to_save: Iterable[str] = (),
        input_gradient: bool = False,
    ) -> Trained:
        """LoRA or QLoRA of one rank, as a recipe describes it.

        Args:
            shape: the base model.
            targets: ``all-linear`` (every linear module but the head), or names of modules (``q_proj``, ``lm_head``).
            rank: rank of every adapter.
            layers: the layers that have adapters; None for all.
            modules_to_save: modules trained in full beside the adapters: ``embed_tokens``, ``lm_head``.
            input_gradient: see the attribute.

        Raises:
            ModelError: a name is no module whose adapter's FLOPs are known, ``all-linear`` is asked of a mixture of
                experts (PEFT then adapts the experts' bare parameters too, by another computation), or the rank is
                not positive.
        """
        chosen = set(range(shape.layers)) if layers is None else set(layers)
        if targets == "all-linear":
            if shape.experts is not None:
                raise ModelError(
                    "all-linear on a mixture of experts: what PEFT's adapters on experts compute is not known here. "
                    "Name the modules instead: q_proj, k_proj, v_proj, o_proj."
                )
            names = {name for name in _names(shape) if name != HEAD}
        else:
            names = {targets} if isinstance(targets, str) else set(targets)
        for name in names:
            _check(name, _names(shape), "adapter")
        modules = {name: rank for name in names if name == HEAD}
        for layer in sorted(chosen):
            known = linears_of_layer(shape, layer)
            modules |= {f"layers.{layer}.{name}": rank for name in names if name in known}
        return cls.of_modules(shape, modules, modules_to_save=modules_to_save, input_gradient=input_gradient)

    @classmethod
    def of_modules(
        cls,
        shape: ModelShape,
        ranks: Mapping[str, int],
        *,
        modules_to_save: Iterable[str] = (),
        input_gradient: bool = False,
    ) -> Trained:
        """LoRA or QLoRA as it was built: every adapter by the dotted name of its module.

        Args:
            shape: the base model.
            ranks: module name (``model.layers.3.self_attn.q_proj``) to the rank of its adapter.
            modules_to_save: see ``adapter``.
            input_gradient: see the attribute.

        Raises:
            ModelError: as for ``adapter``.
        """
        layers: list[dict[str, int]] = [{} for _ in range(shape.layers)]
        for module, rank in ranks.items():
            if rank < 1:
                raise ModelError(f"{module}: an adapter of rank {rank}; a rank is at least 1.")
            name = module.rsplit(".", 1)[-1]
            found = re.search(r"(?:^|\.)layers\.(\d+)\.", module)
            layer = int(found[1]) if found else None
            if layer is None:
                _check(module if name != HEAD else name, (HEAD,), "adapter outside the layers")
            elif layer >= shape.layers:
                raise ModelError(f"{module}: the model has {shape.layers} layers, counted from 0.")
            else:
                _check(name, [one.name for one in linears_of_layer(shape, layer).values() if one.is_module], "adapter")
                layers[layer][name] = rank
        saved = {name.rsplit(".", 1)[-1] for name in modules_to_save}
        for name in saved:
            _check(name, (EMBEDDING, HEAD), "module trained in full")
        return cls(
            ranks=_shared(layers),
            head_rank=next((rank for name, rank in ranks.items() if name.rsplit(".", 1)[-1] == HEAD), 0),
            embedding=EMBEDDING in saved,
            head=HEAD in saved or (EMBEDDING in saved and shape.tied_embeddings),
            input_gradient=input_gradient,
        )

    def ranks_of_layer(self, layer: int) -> Mapping[str, int]:
        """Name of a projection to the rank of its adapter."""
        return self.ranks[layer] if self.ranks else {}


def adapter_parameters(shape: ModelShape, trained: Trained) -> int:
    """Parameters of all adapters: ``rank * (inputs + outputs)`` for each module that has one.

    Hand-worked: rank 8 on q_proj (64 -> 64) and v_proj (64 -> 32) of 2 layers: 2 * 8 * (128 + 96) = 3584.
    """
    total = trained.head_rank * (shape.hidden + shape.vocabulary)
    for layer in range(shape.layers):
        linears = linears_of_layer(shape, layer)
        for name, rank in trained.ranks_of_layer(layer).items():
            total += rank * (linears[name].inputs + linears[name].outputs)
    return total


def head_linear(shape: ModelShape) -> Linear:
    """The LM head as a matrix product."""
    return Linear(HEAD, shape.hidden, shape.vocabulary)


def _shared(layers: list[dict[str, int]]) -> tuple[Mapping[str, int], ...]:
    """Layers that are adapted alike hold the same object, so that they are recognised as equal at no cost."""
    seen: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
    return tuple(seen.setdefault(tuple(sorted(held.items())), held) for held in layers)


def _names(shape: ModelShape) -> list[str]:
    linears = (one for layer in range(shape.layers) for one in linears_of_layer(shape, layer).values())
    return [*dict.fromkeys(one.name for one in linears if one.is_module), HEAD]


def _check(name: str, known: Iterable[str], what: str) -> None:
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise ModelError(f"{name}: no {what} whose FLOPs are known in this model; known are {', '.join(known)}.{hint}")
