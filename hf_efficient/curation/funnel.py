"""What a stage did, counted and sampled while its rows go by."""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from hf_efficient.curation.rows import Gone, Row, order_of
from hf_efficient.errors import DataError
from hf_efficient.records.prepared import SampleRow, StageFunnel

_SAMPLES, _SAMPLE_CHARACTERS, _LINE_CHARACTERS = 20, 600, 100
_REMEDIES = {
    "read": "Name other sources.",
    "contamination": "Are the evaluation data the training data? Name others in data.eval.",
}
_Sample = tuple[int, str, SampleRow]


class StageCount(msgspec.Struct):
    """Samples are the rows with the lowest hashes, so that another start shows the same."""

    name: str
    rows_in: int = 0
    rows_out: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    changed: int = 0
    seconds: float = 0.0
    reasons: dict[str, int] = {}
    removed: list[_Sample] = []
    kept: list[_Sample] = []
    notes: list[str] = []
    usd: float = 0.0

    def add(self, rows: Sequence[Row], judged: Sequence[Row | Gone], public: Callable[[str], str] = str) -> None:
        """``public`` takes private data out of the samples."""
        for row, found in zip(rows, judged, strict=True):
            self.rows_in += 1
            self.tokens_in += row.tokens
            if isinstance(found, Gone):
                self.reasons[found.reason] = self.reasons.get(found.reason, 0) + 1
                _sample(self.removed, row, False, row.text, " ".join(filter(None, found)), public)
                continue
            self.rows_out += 1
            self.tokens_out += found.tokens
            changed = found is not row
            self.changed += changed
            _sample(self.kept, row, changed, found.text, f"was: {row.text}" if changed else "", public)

    def join(self, other: "StageCount") -> None:
        """Add what the same stage did to other rows."""
        for name in ("rows_in", "rows_out", "tokens_in", "tokens_out", "changed", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reasons = dict(Counter(self.reasons) + Counter(other.reasons))
        self.removed, self.kept = (
            heapq.nlargest(_SAMPLES, [*own, *more], key=lambda one: one[:2])
            for own, more in ((self.removed, other.removed), (self.kept, other.kept))
        )

    def funnel(self) -> StageFunnel:
        """Raises ``DataError`` with what was removed where nothing is left."""
        removed, kept = ([one[2] for one in sorted(held, reverse=True)] for held in (self.removed, self.kept))
        if not self.rows_out:
            rows = [f"  {one.where}: {one.why}: {one.text[:_LINE_CHARACTERS]!r}" for one in removed]
            shown = "\n".join(rows)
            remedy = _REMEDIES.get(self.name, f"Change its options, or write `{self.name}: null`.")
            removes = f"data.pipeline.{self.name}: removes all {self.rows_in:,} rows that reach it."
            raise DataError(f"{removes} {remedy} Some of the rows:\n{shown}")
        return StageFunnel(
            self.name,
            self.rows_in,
            self.rows_out,
            self.tokens_in,
            self.tokens_out,
            round(self.seconds, 3),
            self.changed,
            dict(sorted(self.reasons.items(), key=lambda one: (-one[1], one[0]))),
            removed,
            kept,
            self.notes,
            round(self.usd, 6),
        )


def _sample(held: list[_Sample], row: Row, changed: bool, text: str, why: str, public: Callable[[str], str]) -> None:
    order = -(order_of(0, row.id) >> (2 if changed else 1))  # rows that were changed come first
    if len(held) < _SAMPLES or order > held[0][0]:
        push = heapq.heappush if len(held) < _SAMPLES else heapq.heappushpop
        push(held, (order, row.id, SampleRow(row.where, _shown(text, public), _shown(why, public))))


def _shown(text: str, public: Callable[[str], str]) -> str:
    """Private data are replaced before the text is cut, which would hide half of a number from the search."""
    text = public(text[: 2 * _SAMPLE_CHARACTERS])
    return text if len(text) <= _SAMPLE_CHARACTERS else f"{text[:_SAMPLE_CHARACTERS]} …"
