"""What a loader is, and what its first batch looks like: facts of topic ``loader``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset

from hf_efficient.measure.loader.taken import batch_tensors
from hf_efficient.measure.loader.watch import LoaderWatch, torch_loader

__all__ = ["batch_facts", "loader_facts", "watch_stated"]

logger = logging.getLogger(__name__)


def loader_facts(loader: Any) -> dict[str, Any]:
    """Of a loader of torch, also as accelerate wraps it; what it does not tell is left out.

    ``workers``, ``prefetch_factor`` (batches per worker), ``persistent_workers``, ``pin_memory`` (as it was asked for),
    ``pins_memory`` (whether torch does it: it needs an accelerator), ``in_order``, ``start_method`` (of the workers),
    ``batch_size`` (rows), ``drop_last``, ``batches`` (per epoch), ``rows`` (of the data set), ``iterable``, and the
    kinds of ``loader``, ``dataset``, ``collator`` and ``sampler``.
    """
    inner = torch_loader(loader)
    workers = int(inner.num_workers)
    context = inner.multiprocessing_context or torch.multiprocessing.get_context()
    facts = {
        "loader": type(loader).__name__,
        "dataset": _kind(inner.dataset),
        "collator": _kind(getattr(inner.collate_fn, "data_collator", inner.collate_fn)),  # inside transformers' own
        "sampler": None if isinstance(inner.dataset, IterableDataset) else _kind(inner.sampler),
        "iterable": isinstance(inner.dataset, IterableDataset),
        "rows": _length(inner.dataset),
        "batches": _length(loader),
        "batch_size": getattr(inner.batch_sampler, "batch_size", inner.batch_size),
        "drop_last": bool(inner.drop_last),
        "workers": workers,
        "prefetch_factor": inner.prefetch_factor,
        "persistent_workers": bool(inner.persistent_workers),
        "pin_memory": bool(inner.pin_memory),
        "pins_memory": bool(inner.pin_memory and torch.accelerator.is_available()),
        "in_order": getattr(inner, "in_order", None),
        "start_method": context.get_start_method() if workers else None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def batch_facts(batch: Any) -> dict[str, Any]:
    """Of a batch as the loader made it: ``first_batch``: by place, bytes, shape, dtype, and whether it is pinned."""
    tensors = batch_tensors(batch)
    names: Iterable[Any] = range(len(tensors))
    if isinstance(batch, Mapping):
        names = [name for name, value in batch.items() if isinstance(value, torch.Tensor)]
    told = {
        str(name): {
            "bytes": tensor.nbytes,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "pinned": tensor.is_pinned() if tensor.is_cpu and torch.accelerator.is_available() else False,
        }
        for name, tensor in zip(names, tensors, strict=True)
    }
    return {"first_batch": told}


def watch_stated(watch: LoaderWatch, loader: Any, state: Callable[[Mapping[str, Any]], None]) -> None:
    """Watch a loader and state its facts; one that cannot be watched is told of once, and training goes on.

    Args:
        watch: of the training.
        loader: of it.
        state: takes facts of topic ``loader``.
    """
    try:
        state(loader_facts(loader))
        watch.watch(loader, lambda batch: state(batch_facts(batch)))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        logger.info("The data loader is not watched (%s).", why, exc_info=True)
        state({"missing": [{"what": "what the data loader's time goes to", "why": f"it cannot be watched: {why}"}]})


def _kind(thing: Any) -> str:
    """``list``, ``datasets.arrow_dataset.Dataset``, ``my_module.collate``."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module = str(getattr(named, "__module__", "builtins"))
    return str(named.__qualname__) if module == "builtins" else f"{module}.{named.__qualname__}"


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):
        return None
