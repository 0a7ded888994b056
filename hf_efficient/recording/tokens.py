"""A micro-batch that is looked at later: what is small and lies in host memory need not be counted at once.

Tokens and sequences of a micro-batch, without waiting for a device.

A small batch in host memory is kept, and counted later by the thread that writes: between two kernels, with cold
caches, its counting would take twice as long. A large one is counted at once. A batch that is already on a device
(accelerate's data loader moves it there) is counted by small reductions queued on that device; their results are copied
to the host in the background and read when an event says that they arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from hf_efficient.estimate.flops import MicroBatch, WorkFormula
from hf_efficient.estimate.statistics import sum_if_known
from hf_efficient.recording.lengths import document_starts, documents_of_rows, documents_of_starts, sequence_counts
from hf_efficient.records.steps import SequenceCounts, StepWork, TokenCounts

MOST_KEPT_POSITIONS = 8192
"""Of a batch that is kept: a step with a larger one takes so long that its counting does not show, and memory would."""


class KeptBatch:
    """The tensors of a batch, and whether somebody has written into them since.

    Attributes:
        batch: by name.
    """

    __slots__ = ("_versions", "batch")

    def __init__(self, batch: dict[str, Any], versions: list[int]) -> None:
        self.batch, self._versions = batch, versions

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> KeptBatch | None:
        """Keep it; None where it is large, or a tensor lies on a device or does not tell when it is written into."""
        ids = batch.get("input_ids")
        if not isinstance(ids, torch.Tensor) or ids.numel() > MOST_KEPT_POSITIONS:
            return None
        kept = dict(batch)  # from which a trainer takes the labels out
        versions = []
        try:
            for value in kept.values():
                if isinstance(value, torch.Tensor):
                    if not value.is_cpu or value.numel() > MOST_KEPT_POSITIONS:
                        return None
                    versions.append(value._version)
        except RuntimeError:  # a tensor made in inference mode; asking each of them takes longer than this
            return None
        return cls(kept, versions)

    def unchanged(self) -> bool:
        """Whether its tensors hold what they held, by torch's own count of in-place operations."""
        tensors = (value for value in self.batch.values() if isinstance(value, torch.Tensor))
        return all(tensor._version == version for tensor, version in zip(tensors, self._versions, strict=True))


_IGNORED = -100


class TokenTally:
    """Sums the tokens and sequences of the micro-batches of one optimizer step.

    Tokens: ``processed`` is the size of ``input_ids``. ``non_padding`` is the sum of an ``attention_mask`` of that
    shape; a padding-free batch (``position_ids`` and no mask) has no padding. ``loss_bearing`` counts
    ``labels != -100`` (``shift_labels`` where the collator made them), or the ``completion_mask`` of
    preference data. A count that one micro-batch does not tell is None for the whole step.

    Sequences: with a mask a row is a document, padded left or right; without one a document begins where
    ``position_ids`` are 0. Of preference data, chosen and rejected are a row and a document each. A batch with more
    token ids than ``input_ids`` (``KL_input_ids``, ``decoder_input_ids``) tells nothing.

    Attributes:
        events: that a device has not passed yet; without one, all counts are there.
    """

    # One is made in every step: what most of them do not need lies in the class.
    _watched: Sequence[KeptBatch] = ()
    events: Sequence[Any] = ()
    _batches: list[MicroBatch] | None = None

    def __init__(self, scored: bool = False, at_once: bool = True) -> None:
        """Nothing is counted yet.

        Args:
            scored: count the positions whose prediction bears a loss as well, for ``WorkFormula``.
            at_once: keep no batch; otherwise one that is written into before it is counted tells nothing.
        """
        self._scored, self._at_once = scored, at_once
        self._seen: list[_Seen | KeptBatch] = []

    def add(self, batch: Any) -> None:
        """Count one micro-batch: a mapping of names to tensors of shape (rows, positions)."""
        is_mapping = isinstance(batch, (dict, Mapping))  # a dict's check is the cheap one
        kept = KeptBatch.of(batch) if is_mapping else None
        if kept is not None and not self._at_once:
            self._seen.append(kept)
            return
        if kept is not None:
            self._watched = [*self._watched, kept]
        seen = _count(batch, self._scored) if is_mapping else _Seen()
        self._seen.append(seen)
        device: torch.device | None = None
        for name in _PERHAPS_ON_DEVICE:
            found = getattr(seen, name)
            if isinstance(found, torch.Tensor) and found.device.type != "cpu":
                device = found.device
                setattr(seen, name, found.to("cpu", non_blocking=True))
        if device is not None:
            event = torch.get_device_module(device).Event()
            event.record()
            self.events = [*self.events, event]

    def unchanged(self) -> bool | None:
        """Whether nobody has written into the batches that were counted at once; None where none could be kept."""
        watched, self._watched = self._watched, ()
        return all(kept.unchanged() for kept in watched) if watched else None

    def ready(self) -> bool:
        """Whether all counts have arrived on the host; asks the device, never waits for it."""
        while self.events and self.events[0].query():
            self.events = self.events[1:]
        return not self.events

    def wait(self) -> None:
        """Until all counts have arrived."""
        for event in self.events:
            event.synchronize()
        self.events = ()

    def counts(self) -> TokenCounts:
        """The sums; waits for the device where ``ready()`` is not yet true."""
        all_seen = self._all_seen()
        return TokenCounts(
            sum_if_known([seen.processed for seen in all_seen]),
            sum_if_known([seen.non_padding() for seen in all_seen]),
            sum_if_known([_number(seen.loss_bearing) for seen in all_seen]),
        )

    def sequences(self) -> SequenceCounts | None:
        """The sums, lengths sorted into buckets; waits as ``counts`` does. None where a micro-batch does not tell."""
        batches = self._micro_batches()
        return None if batches is None else sequence_counts(batches)

    def work(self, formula: WorkFormula) -> StepWork | None:
        """The FLOPs by this formula; waits as ``counts`` does. None where a micro-batch does not tell."""
        batches = self._micro_batches()
        found = [formula.flops(batch) for batch in batches or ()]
        known = [flops for flops in found if flops is not None]
        if not known or len(known) < len(found):
            return None
        return StepWork(sum(model for model, _ in known), sum_if_known([hardware for _, hardware in known]))

    def _micro_batches(self) -> list[MicroBatch] | None:
        if self._batches is None:
            found = [seen.micro_batch() for seen in self._all_seen()]
            self._batches = [batch for batch in found if batch is not None]
        return self._batches if self._batches and len(self._batches) == len(self._seen) else None

    def _all_seen(self) -> list[_Seen]:
        self.wait()
        found = []
        for place, seen in enumerate(self._seen):  # two threads may do it at once, and come to the same
            if isinstance(seen, KeptBatch):
                seen = self._seen[place] = _count(seen.batch, self._scored) if seen.unchanged() else _Seen()
            found.append(seen)
        return found


@dataclass
class _Seen:
    """What is known of a micro-batch; the tensors lie on the host once they have arrived.

    ``row_sums``: tokens by row, where there is a mask. ``starts``: where documents begin, where there is none.
    """

    rows: int = 0
    row_length: int = 0
    processed: int | None = None
    row_sums: torch.Tensor | list[int] | None = None
    starts: torch.Tensor | None = None
    padding_free: bool = False
    loss_bearing: torch.Tensor | None = None
    scored: torch.Tensor | None = None

    def non_padding(self) -> int | None:
        if self.row_sums is not None:
            return sum(_numbers(self.row_sums))
        return self.processed if self.padding_free else None

    def micro_batch(self) -> MicroBatch | None:
        documents = None
        if self.row_sums is not None:
            documents = documents_of_rows(_numbers(self.row_sums))
        elif self.starts is not None:
            documents = documents_of_starts(self.starts)
        return None if documents is None else MicroBatch(self.rows, self.row_length, documents, _number(self.scored))


_PERHAPS_ON_DEVICE = tuple(field.name for field in fields(_Seen) if "Tensor" in str(field.type))


def _number(count: torch.Tensor | None) -> int | None:
    return None if count is None else int(count)


def _numbers(counts: torch.Tensor | list[int]) -> list[int]:
    return counts if isinstance(counts, list) else counts.tolist()


def _count(batch: Mapping[str, Any], scored: bool) -> _Seen:
    for name in batch:
        if name.endswith("_input_ids"):
            return _Seen()
    ids, mask, positions = (_tensor(batch, name) for name in ("input_ids", "attention_mask", "position_ids"))
    seen = _Seen()
    if ids is not None:
        seen.processed = ids.numel()
        if ids.ndim == 2:
            seen.rows, seen.row_length = ids.shape
    if ids is not None and mask is not None and mask.shape == ids.shape and ids.ndim == 2:
        seen.row_sums = _row_sums(mask)
    elif mask is None and "position_ids" in batch:
        seen.padding_free = True
        seen.starts = None if ids is None or positions is None else document_starts(positions, ids.shape)
    bearing, shifted = _bearing(batch, ids)
    if bearing is not None:
        seen.loss_bearing = torch.count_nonzero(bearing)
        if scored and bearing.ndim == 2:
            seen.scored = seen.loss_bearing if shifted else torch.count_nonzero(bearing[:, 1:])
    return seen


def _bearing(batch: Mapping[str, Any], ids: torch.Tensor | None) -> tuple[torch.Tensor | None, bool]:
    """Which positions bear a loss, and whether they are those that predict rather than those that are predicted."""
    shifted, labels = _tensor(batch, "shift_labels"), _tensor(batch, "labels")
    wanted = labels if shifted is None else shifted
    if wanted is not None:
        return (wanted.ne(_IGNORED) if ids is None or wanted.shape == ids.shape else None), shifted is not None
    completion = _tensor(batch, "completion_mask")
    return (None if completion is None else completion.ne(0)), False


def _row_sums(mask: torch.Tensor) -> torch.Tensor | list[int]:
    """Tokens by row; on the host first whether there is any padding, which takes a third of the time."""
    if mask.device.type == "cpu" and int(torch.count_nonzero(mask)) == mask.numel():
        rows, length = mask.shape
        return [length] * rows
    return mask.ne(0).sum(-1)


def _tensor(batch: Mapping[str, Any], name: str) -> torch.Tensor | None:
    value = batch.get(name)
    return value if isinstance(value, torch.Tensor) else None
