"""The sequences of a run, from the sums of its steps."""

from __future__ import annotations

from collections.abc import Sequence

from hf_efficient.account.processes import ProcessSpans
from hf_efficient.account.step_sums import SequenceSums
from hf_efficient.account.steps import RankSteps
from hf_efficient.records import NotMeasured, SequenceAccount

__all__ = ["sequence_account", "sequence_gaps"]


def sequence_account(
    processes: Sequence[ProcessSpans],
    ranks: Sequence[RankSteps],
    non_padding_tokens: int | None,
    training_seconds: float,
) -> SequenceAccount:
    """All ranks together.

    Args:
        processes: of rank 0; the last one that tells how its data was packed is believed.
        ranks: of all ranks.
        non_padding_tokens: of all ranks.
        training_seconds: the largest of any rank.
    """
    fill_rate = next((one.facts["data"].get("fill_rate") for one in reversed(processes) if "data" in one.facts), None)
    total = _total(ranks)
    if total is None:
        return SequenceAccount(fill_rate=fill_rate)
    return SequenceAccount(
        rows=total.rows,
        samples=total.documents,
        mean_tokens=non_padding_tokens / total.documents if non_padding_tokens is not None else None,
        shortest_tokens=total.shortest,
        longest_tokens=total.longest,
        length_buckets={bound: total.length_buckets[bound] for bound in sorted(total.length_buckets, key=int)},
        samples_per_second=total.documents / training_seconds if training_seconds > 0 else None,
        fill_rate=fill_rate,
    )


def sequence_gaps(account: SequenceAccount, tokens_known: bool) -> list[NotMeasured]:
    """Why the sequences are not known, where the tokens are."""
    if account.samples is not None or not tokens_known:
        return []
    why = "batches without attention_mask and position_ids, or records of a version that did not tell them"
    return [NotMeasured("sequences and their lengths", why)]


def _total(ranks: Sequence[RankSteps]) -> SequenceSums | None:
    total = SequenceSums()
    for sums in (segment.sums.sequences for rank in ranks for segment in rank.segments):
        if sums is None:
            return None
        total.merge(sums)
    return total if total.documents else None
