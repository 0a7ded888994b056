"""Tokens, sequences and documents of a step's micro-batches, without waiting for a device.

A batch on a device is counted by small reductions queued there, and read when an event says that they arrived.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hf_efficient.estimate.flops import MicroBatch, WorkFormula
from hf_efficient.estimate.statistics import sum_if_known
from hf_efficient.records.steps import SequenceCounts, StepWork, TokenCounts

_IGNORED = -100
_SMALL = 1 << 14
"""Positions; torch counts in a larger batch by several threads, which would run beside those that train."""
_READ = ("_ids", "_mask", "labels", "cu_seq_lens_q")

LENGTH_BOUNDS: tuple[int, ...] = tuple(dict.fromkeys(round(2 ** (quarter / 4)) for quarter in range(24 * 4 + 1)))
"""Upper bounds of the length buckets in tokens: a quarter of an octave apart, so that a length is known to 19%. 1, 2,
3, 4, 5, 6, 7, 8, 10, 11, 13, 16, ... A document is in the bucket of the first bound that is not below its length."""


class TokenTally:
    """Sums the tokens and sequences of the micro-batches of one optimizer step; one unknown count is None for the step.
    ``processed`` is the size of ``input_ids``, ``non_padding`` the sum of an ``attention_mask`` of that shape. A row is
    a document, also without a mask: the model then attends to every position, and nothing is padding. In a padding-free
    batch (``position_ids``, no mask) a document begins where they are 0. ``target`` counts ``labels != -100`` (or
    ``shift_labels``), or the ``completion_mask`` of preference data. Chosen and rejected are a row and a document each,
    in one ``input_ids`` or in ``chosen_input_ids`` beside ``rejected_input_ids``, which the experimental trainers pad
    alike. Of KTO's batches the answers that are trained on count, not the ``KL_input_ids``, which run forward alone.
    GRPO's ``prompt_ids`` and ``completion_ids``, padded apart, make a row together. Batches with other token ids
    (``decoder_input_ids``) give no sequences."""

    def __init__(self, scored: bool = False) -> None:
        """``scored``: count the target positions whose prediction enters the loss as well, for ``WorkFormula``."""
        self._scored = scored
        self._later: list[Mapping[str, Any]] = []
        self._seen: list[_Seen] = []
        self._events: list[Any] = []
        self._batches: list[MicroBatch] | None = None

    def add(self, batch: Any) -> None:
        """A small batch on the host is counted when its counts are asked for, by the thread that writes."""
        ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if isinstance(ids, torch.Tensor) and ids.device.type == "cpu" and ids.numel() <= _SMALL:
            self._later.append({name: one for name, one in batch.items() if name.endswith(_READ)})
        else:
            self._add(batch)

    def _add(self, batch: Any) -> None:
        seen = _count(batch, self._scored) if isinstance(batch, Mapping) else _Seen()
        self._seen.append(seen)
        device: torch.device | None = None
        for name in _COUNTED:
            found = getattr(seen, name)
            if found is not None and found.device.type != "cpu":
                device = found.device
                setattr(seen, name, found.to("cpu", non_blocking=True))
        if device is not None:
            event = torch.get_device_module(device).Event()
            event.record()
            self._events.append(event)

    def ready(self) -> bool:
        while self._events and self._events[0].query():
            del self._events[0]
        return not self._events

    def wait(self) -> None:
        later, self._later = self._later, []
        for batch in later:
            self._add(batch)
        for event in self._events:
            event.synchronize()
        self._events = []

    def counts(self) -> TokenCounts:
        """The sums; this and what follows wait for the device where ``ready()`` is not yet true."""
        self.wait()
        return TokenCounts(
            sum_if_known([seen.processed for seen in self._seen]),
            sum_if_known([seen.non_padding() for seen in self._seen]),
            sum_if_known([_number(seen.target) for seen in self._seen]),
        )

    def sequences(self) -> SequenceCounts | None:
        """The sums, lengths sorted into buckets; None where a micro-batch has none."""
        batches = self._micro_batches()
        return None if batches is None else sequence_counts(batches)

    def work(self, formula: WorkFormula) -> StepWork | None:
        """The FLOPs by this formula; None where a micro-batch is unknown."""
        found = [formula.flops(batch) for batch in self._micro_batches() or ()]
        known = [flops for flops in found if flops is not None]
        if not known or len(known) < len(found):
            return None
        return StepWork(sum(model for model, _ in known), sum_if_known([hardware for _, hardware in known]))

    def _micro_batches(self) -> list[MicroBatch] | None:
        if self._batches is None:
            self.wait()
            found = [seen.micro_batch() for seen in self._seen]
            self._batches = [batch for batch in found if batch is not None]
        return self._batches if self._batches and len(self._batches) == len(self._seen) else None


@dataclass
class _Seen:
    """A micro-batch on its way to the host: tokens by row where there is a mask, else where documents begin."""

    rows: int = 0
    row_length: int = 0
    processed: int | None = None
    row_sums: torch.Tensor | None = None
    starts: torch.Tensor | None = None
    padding_free: bool = False
    target: torch.Tensor | None = None
    scored: torch.Tensor | None = None

    def non_padding(self) -> int | None:
        if self.row_sums is not None:
            return sum(self.row_sums.tolist())
        return self.processed if self.padding_free else None

    def micro_batch(self) -> MicroBatch | None:
        documents = None
        if self.row_sums is not None:
            documents = [tokens for tokens in self.row_sums.tolist() if tokens]
        elif self.starts is not None:
            documents = documents_of_starts(self.starts)
        return None if documents is None else MicroBatch(self.rows, self.row_length, documents, _number(self.scored))


_COUNTED = ("row_sums", "starts", "target", "scored")


def _number(count: torch.Tensor | None) -> int | None:
    return None if count is None else int(count)


def _count(batch: Mapping[str, Any], scored: bool) -> _Seen:
    seen, more = _Seen(), {name for name in batch if name.endswith("_input_ids")} - {"KL_input_ids"}
    if more >= _SIDES:
        _count_sides(batch, seen)
    if more or _count_generated(batch, seen):
        return seen
    ids, mask, positions = (_tensor(batch, name) for name in ("input_ids", "attention_mask", "position_ids"))
    if ids is not None:
        seen.processed = ids.numel()
        if ids.ndim == 2:
            seen.rows, seen.row_length = ids.shape
    if ids is not None and mask is not None and mask.shape == ids.shape and ids.ndim == 2:
        seen.row_sums = mask.ne(0).sum(-1)
    elif mask is None and "position_ids" in batch:
        seen.padding_free = True
        seen.starts = None if ids is None or positions is None else document_starts(positions, ids.shape)
    elif batch.get("attention_mask") is None and seen.rows and "cu_seq_lens_q" not in batch:
        seen.row_sums = torch.full((seen.rows,), seen.row_length)
    targets, shifted = _targets(batch, ids)
    if targets is not None:
        seen.target = torch.count_nonzero(targets)
        if scored and targets.ndim == 2:
            seen.scored = seen.target if shifted else torch.count_nonzero(targets[:, 1:])
    return seen


_SIDES = {"chosen_input_ids", "rejected_input_ids"}
_SIDE_PARTS = ("input_ids", "attention_mask", "labels")


def _count_sides(batch: Mapping[str, Any], seen: _Seen) -> None:
    held = [_tensor(batch, f"{side}_{name}") for name in _SIDE_PARTS for side in ("chosen", "rejected")]
    known = [one for one in held if one is not None and one.ndim == 2]
    if len(known) < len(held):
        return
    ids, masks, labels = known[:2], known[2:4], known[4:]
    seen.rows = sum(len(one) for one in ids)
    seen.row_length = max(one.shape[1] for one in ids)
    seen.processed = seen.rows * seen.row_length
    seen.row_sums = torch.cat([mask.ne(0).sum(-1) for mask in masks])
    seen.target = torch.stack([torch.count_nonzero(one.ne(_IGNORED)) for one in labels]).sum()


def _count_generated(batch: Mapping[str, Any], seen: _Seen) -> bool:
    names = ("prompt_ids", "completion_ids", "prompt_mask", "completion_mask")
    found = [one for one in (_tensor(batch, name) for name in names) if one is not None and one.ndim == 2]
    if len(found) < len(names):
        return False
    prompt, completion, prompt_mask, mask = found
    tools = _tensor(batch, "tool_mask")  # 0: what a tool said, which is no target
    seen.rows, seen.row_length = len(prompt), prompt.shape[1] + completion.shape[1]
    seen.processed = seen.rows * seen.row_length
    seen.row_sums = prompt_mask.ne(0).sum(-1) + mask.ne(0).sum(-1)
    seen.target = torch.count_nonzero(mask if tools is None else mask * tools)
    return True


def _targets(batch: Mapping[str, Any], ids: torch.Tensor | None) -> tuple[torch.Tensor | None, bool]:
    """The target positions, and whether they are those that predict rather than those that are predicted."""
    shifted, labels = _tensor(batch, "shift_labels"), _tensor(batch, "labels")
    wanted = labels if shifted is None else shifted
    if wanted is not None:  # without tokens, rows of labels may be of embeddings; one label a row is of an image
        fits = wanted.ndim == 2 if ids is None else wanted.shape == ids.shape
        return (wanted.ne(_IGNORED) if fits else None), shifted is not None
    completion = _tensor(batch, "completion_mask")
    return (None if completion is None else completion.ne(0)), False


def _tensor(batch: Mapping[str, Any], name: str) -> torch.Tensor | None:
    value = batch.get(name)
    return value if isinstance(value, torch.Tensor) else None


def document_starts(positions: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Where ``position_ids`` start again at 0, bool of ``shape``; None where they are of another kind. A padding-free
    batch padded to a multiple of some length continues with zeros: each is a document, to attention as well.
    ``positions`` has shape (rows, positions), or (1, positions) for all rows."""
    if positions.ndim != 2 or len(shape) != 2 or positions.shape[1] != shape[1]:
        return None
    return positions.eq(0).expand(shape) if positions.shape[0] in (1, shape[0]) else None


def documents_of_starts(starts: torch.Tensor) -> list[int] | None:
    """Tokens of each document, from starts on the host; None where a row continues the document of another."""
    firsts = starts.reshape(-1).nonzero().flatten().tolist()
    rows, length = starts.shape
    if len(firsts) < rows or not all(starts[:, 0].tolist()):
        return None
    return [after - first for first, after in zip(firsts, [*firsts[1:], rows * length], strict=True)]


def sequence_counts(batches: Sequence[MicroBatch]) -> SequenceCounts | None:
    lengths = [tokens for batch in batches for tokens in batch.documents]
    if not lengths:
        return None
    buckets = Counter(LENGTH_BOUNDS[min(bisect_left(LENGTH_BOUNDS, one), len(LENGTH_BOUNDS) - 1)] for one in lengths)
    return SequenceCounts(
        rows=sum(batch.rows for batch in batches),
        documents=len(lengths),
        shortest=min(lengths),
        longest=max(lengths),
        length_buckets={str(bound): buckets[bound] for bound in sorted(buckets)},
    )
