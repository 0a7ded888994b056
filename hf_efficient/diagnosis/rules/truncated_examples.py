"""Examples that were cut at the longest length."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Confidence, Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["truncated_examples"]

_SOME = 0.1
_MANY = 0.3
_PILED_UP = 2.0
_BLOCKS = 0.95


def truncated_examples(case: Case) -> Verdict:
    """A tenth of the examples or more was cut: counted where a recipe prepared them, else seen in their lengths."""
    longest, prepared = case.argument("max_length"), case.facts.get("data", {})
    if prepared.get("examples") and "truncated" in prepared:
        cut = prepared["truncated"] / (prepared["examples"] + prepared.get("dropped_masked", 0))  # dropped once cut
        counted = [
            Evidence("examples that were cut", int(prepared["truncated"]), "count", "spans.jsonl: data.truncated")
        ]
        return _finding(cut, int(longest or 0), counted, prepared.get("longest"), "measured") if cut >= _SOME else None
    if case.first is None:
        return abstains("truncated_examples", NO_STEPS)
    buckets = {int(bound): count for bound, count in case.account.sequences.length_buckets.items()}
    if not buckets or not longest:
        why = "neither the lengths of the examples nor the longest that is allowed are known"
        return abstains("truncated_examples", why, "a recipe, or SFTTrainer with EfficientTrainerMixin")
    if case.argument("packing"):
        return abstains("truncated_examples", "packing leaves no lengths that would show it", "a recipe")
    cut = _piled_up(buckets, int(longest), case.account.sequences.longest_tokens)
    if cut < _SOME:
        return None
    seen = [Evidence("examples as long as is allowed", cut, "share", "run.json: sequences.length_buckets")]
    return _finding(cut, int(longest), seen, None, "likely")


def _piled_up(buckets: dict[int, int], longest: int, seen: int | None) -> float:
    """Share of the documents in the last bucket, where the longest lies at the limit and the bucket before has less.

    Where nearly all are of that length the data come in blocks, and nothing was cut.
    """
    if seen != longest or max(buckets.values()) > _BLOCKS * sum(buckets.values()):
        return 0.0
    *before, last = sorted(buckets)
    neighbour = buckets[before[-1]] if before else 0
    return buckets[last] / sum(buckets.values()) if buckets[last] > _PILED_UP * neighbour else 0.0


def _finding(cut: float, longest: int, evidence: list[Evidence], whole: int | None, sure: Confidence) -> Finding:
    wanted = 2 * longest if whole is None else min(-(-int(whole) // 64) * 64, 4 * longest)
    evidence.append(
        Evidence("longest that is allowed", longest, "tokens", "spans.jsonl: settings.arguments.max_length")
    )
    if whole is not None:
        evidence.append(Evidence("longest example before", int(whole), "tokens", "spans.jsonl: data.longest"))
    return Finding(
        rule="truncated_examples",
        title=f"{share(cut)} of the examples are cut at {longest} tokens, and their ends are not learnt",
        severity="warning" if cut >= _MANY else "info",
        confidence=sure,
        evidence=evidence,
        remedies=[
            Remedy(f"allow {wanted} tokens", {"train.max_length": wanted}, "more memory and time per example"),
            Remedy("split long examples before the training, where their parts make sense by themselves"),
        ],
    )
