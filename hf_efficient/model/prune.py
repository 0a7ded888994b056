"""Blocks and neurons cut out of a dense model, chosen by what they do to some rows of its data.

- A block's importance is the mean of 1 - cosine of its input and its output, over the tokens: what hardly turns the
  hidden state is hardly missed. Source: Men et al. 2024 (ShortGPT), "Block Influence".
- An MLP neuron's importance is the mean of its absolute activation times the norm of its output weights: how far it
  moves the hidden state. Source: Sun et al. 2023 (Wanda), weights by activations, summed over a neuron.

What is left is an ordinary model of its architecture, with a smaller configuration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_efficient.errors import ModelError
from hf_efficient.recipe.schema import PruneSection
from hf_efficient.recording.activations import kept_modes

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

RECORD = "hf_efficient_pruned"
"""Key of a pruned model's configuration, which holds the fields of ``Pruned``."""
_MULTIPLE = 8  # neurons that are left: what matrix units like
_MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Pruned:
    """``blocks``, and ``neurons`` of an MLP: before. ``removed``: numbers, from 0. ``importance``: of each block."""

    model: str
    blocks: int
    removed: tuple[int, ...]
    importance: tuple[float, ...]
    neurons: int
    neurons_left: int

    def line(self) -> str:
        parts = []
        if self.removed:
            parts.append(f"{len(self.removed)} of {self.blocks} blocks ({', '.join(map(str, self.removed))})")
        if self.neurons_left < self.neurons:
            parts.append(f"{self.neurons - self.neurons_left:,} of {self.neurons:,} neurons of each MLP")
        return f"pruned: {' and '.join(parts)} taken out, those that change the hidden states least"


def removed_count(section: PruneSection, blocks: int) -> int:
    wanted = round(section.layers * blocks) if isinstance(section.layers, float) else section.layers
    if wanted >= blocks:
        raise ModelError(
            f"model.prune.layers (--layers): takes out {wanted} blocks, and the model has {blocks}. Write {blocks - 1} "
            "or fewer."
        )
    if not wanted and section.mlp is None:
        raise ModelError(
            f"model.prune.layers (--layers): {section.layers} of {blocks} blocks is none. Write 1 or more, or a share "
            "of the neurons in model.prune.mlp (--mlp)."
        )
    return wanted


def neurons_left(section: PruneSection, neurons: int) -> int:
    if section.mlp is None:
        return neurons
    return max(_MULTIPLE, round(neurons * (1 - section.mlp) / _MULTIPLE) * _MULTIPLE)


def pruned_config(config: PretrainedConfig, section: PruneSection) -> PretrainedConfig:
    """For a plan, to which it is not known which blocks go: those before the last one, which most often do."""
    text = config.get_text_config()
    blocks = int(text.num_hidden_layers)
    count = removed_count(section, blocks)
    first = max(0, blocks - 1 - count)
    _shrink_config(text, [one for one in range(blocks) if not first <= one < first + count])
    if section.mlp is not None:
        text.intermediate_size = neurons_left(section, _neurons(text))
    return config


def prune(model: PreTrainedModel, section: PruneSection, rows: Sequence[Mapping[str, Any]]) -> Pruned:
    """Take blocks and neurons out of ``model``, which is changed. ``rows``: with ``input_ids``, and ``seq_lengths``
    where packed. Raises ``ModelError``: too many blocks, or an architecture whose parts are not known here."""
    config: Any = model.config.get_text_config()
    parent: Any = model.get_decoder()
    if not isinstance(getattr(parent, "layers", None), nn.ModuleList):
        raise ModelError(f"model.prune: {type(model).__name__} keeps its blocks in another way than `layers`.")
    blocks = list(parent.layers)
    count = removed_count(section, len(blocks))
    mlps = [] if section.mlp is None else [_mlp_of(block) for block in blocks]
    neurons, left = _neurons(config), neurons_left(section, _neurons(config))
    importance, activity = _measured(model, blocks, mlps, _documents(rows, section.calibration_rows))
    least = sorted(range(len(blocks)), key=lambda one: importance[one])
    removed = tuple(sorted(least[:count]))
    kept = [one for one in range(len(blocks)) if one not in removed]
    for mlp, active in zip(mlps, activity, strict=True):
        _narrow(mlp, active * mlp.down_proj.weight.detach().float().norm(dim=0), left)
    parent.layers = nn.ModuleList(blocks[one] for one in kept)
    for number, block in enumerate(parent.layers):
        for part in block.modules():
            if isinstance(getattr(part, "layer_idx", None), int):
                part.layer_idx = number  # the place of its keys in a cache
    _shrink_config(config, kept)
    if mlps:
        config.intermediate_size = left
    name = str(getattr(model.config, "_name_or_path", ""))
    found = Pruned(name, len(blocks), removed, tuple(round(one, 6) for one in importance), neurons, left)
    setattr(model.config, RECORD, dataclasses.asdict(found))
    _check_whole(model)
    return found


def _mlp_of(block: nn.Module) -> Any:
    mlp: Any = getattr(block, "mlp", None)
    if not all(isinstance(getattr(mlp, name, None), nn.Linear) for name in _MLP):
        kind = type(mlp).__name__
        raise ModelError(f"model.prune.mlp: {kind} is not made of {', '.join(_MLP)}. Remove it, and prune blocks.")
    return mlp


def _neurons(config: Any) -> int:
    size = getattr(config, "intermediate_size", 0)
    if not isinstance(size, int):
        raise ModelError("model.prune: the model's MLPs differ in width, which cannot be pruned.")
    return size


def _documents(rows: Sequence[Mapping[str, Any]], wanted: int) -> Iterator[list[int]]:
    for number in range(min(wanted, len(rows))):
        ids, lengths = rows[number]["input_ids"], rows[number].get("seq_lengths") or [len(rows[number]["input_ids"])]
        for length in lengths:
            document, ids = ids[:length], ids[length:]
            if document:
                yield list(document)


@torch.no_grad()
def _measured(
    model: PreTrainedModel, blocks: Sequence[nn.Module], mlps: Sequence[Any], documents: Iterator[list[int]]
) -> tuple[list[float], list[Tensor]]:
    """The importance of each block, and the summed absolute activations of each MLP's neurons."""
    turned = [0.0] * len(blocks)
    activity = [torch.zeros(mlp.down_proj.in_features, device=mlp.down_proj.weight.device) for mlp in mlps]
    tokens = 0

    def see_block(number: int, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = args[0] if args else kwargs["hidden_states"]
        made = output[0] if isinstance(output, tuple) else output
        turned[number] += float((1 - F.cosine_similarity(given.float(), made.float(), dim=-1)).sum())

    def see_mlp(number: int, _: Any, args: tuple[Any, ...]) -> None:
        activity[number] += args[0].float().abs().flatten(0, -2).sum(0)

    handles = [one.register_forward_hook(partial(see_block, at), with_kwargs=True) for at, one in enumerate(blocks)]
    handles += [mlp.down_proj.register_forward_pre_hook(partial(see_mlp, at)) for at, mlp in enumerate(mlps)]
    with kept_modes(model):
        model.eval()
        for document in documents:
            model(input_ids=torch.tensor([document], device=model.device), logits_to_keep=1)
            tokens += len(document)
    for handle in handles:
        handle.remove()
    if not tokens:
        raise ModelError("model.prune: there are no rows of training data to measure its blocks on.")
    return [one / tokens for one in turned], activity


def _narrow(mlp: Any, importance: Tensor, left: int) -> None:
    kept = importance.topk(left).indices.sort().values
    for name in _MLP:
        layer = getattr(mlp, name)
        rows = name != "down_proj"
        layer.weight = nn.Parameter(layer.weight.detach().index_select(0 if rows else 1, kept).contiguous())
        if rows and layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias.detach()[kept])
        setattr(layer, "out_features" if rows else "in_features", left)
    if hasattr(mlp, "intermediate_size"):
        mlp.intermediate_size = left


def _shrink_config(config: Any, kept: Sequence[int]) -> None:
    """The number of blocks, and the lists that hold a value for each."""
    blocks = int(config.num_hidden_layers)
    for name, value in list(vars(config).items()):
        if "layer" in name and isinstance(value, list) and len(value) == blocks:
            setattr(config, name, [value[one] for one in kept])
    config.num_hidden_layers = len(kept)


def _check_whole(model: PreTrainedModel) -> None:
    """That transformers builds from the configuration what is left: same parameters, same shapes."""
    with torch.device("meta"):
        built = type(model)(model.config)
    expected = {name: one.shape for name, one in built.named_parameters()}
    left = {name: one.shape for name, one in model.named_parameters()}
    if expected != left:
        first = next(name for name in {**expected, **left} if expected.get(name) != left.get(name))
        raise ModelError(
            f"model.prune: {type(model).__name__} cannot be pruned: its blocks differ in a way that its configuration "
            f"says elsewhere ({first}). Choose a model whose blocks are alike."
        )
