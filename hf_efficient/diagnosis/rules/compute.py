"""Attention and optimizer that are computed operator by operator, and graphs that are compiled again and again."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from hf_efficient.accounting.steps import StepColumns
from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import MATTERS, Row, Verdict, abstains, finding, rule
from hf_efficient.records.findings import Remedy
from hf_efficient.text import share

_SAVED = {(True, False): 0.8, (True, True): 0.7, (False, False): 0.7, (False, True): 0.5}
"""Of eager attention's time, by (CUDA, padded rows). CPU: measured on one core in float32, four heads of 64, forward
and backward, torch 2.13, 2026-11-20: 1 x 2048 tokens 359 ms eager, 100 ms causal, 172 ms with a mask; 2 x 1024: 181,
62, 85; 4 x 512: 48, 43, 44: shorter rows gain nothing. CUDA: an estimate, FlashAttention-2's figures (arXiv 2307.08691,
figure 4) are 3 to 10 times those of eager attention."""
_FEWER_PASSES = 2 / 3
"""Of the optimizer's time: AdamW's operators one after another read or write 21 tensors (decay 2, first moment 3,
second moment 5, its root, division and epsilon 6, update 4, and the gradient), one kernel 7. Clipping the gradients,
which is in the same phase, stays."""


class _AttentionTime(NamedTuple):
    """Share of forward and backward on rank 0, how it was found, and the records it is from."""

    share: float
    basis: str
    source: str


@rule()
def attention_kernel(case: Case) -> Verdict:
    """The model's attention is ``eager``, whose scores are written to memory whole."""
    first = case.first
    if case.settings("model").get("attention") != "eager":
        return None
    rows, positions = float(first.rows.sum()), float(first.processed.sum())
    if not rows > 0 or not positions > 0:
        return abstains("the length of the rows is not known", "EfficientTrainerMixin")
    length = float((first.processed**2 / first.rows).sum() / positions)
    if not case.on_cuda and length < 768:
        return None
    found = _attention_time(case)
    if found is None:
        return abstains("attention is eager; its part of the time is not known", "profile.trace")
    padded = (case.account.tokens.padding_share or 0.0) >= 0.02
    taken = found.share * case.compute_seconds
    part = _SAVED[case.on_cuda, padded]
    if case.share(part * taken) < MATTERS:
        return None
    basis = f"fused attention takes {share(1 - part)} of eager attention's time on rows such as these; its time: "
    gain, costs = case.gain(part * taken, basis + found.basis), "none: the same attention, in another order of sums"
    remedy = Remedy("take torch's fused attention", {"model.attn_implementation": "sdpa"}, costs, gain)
    return finding(
        f"attention is eager and takes {share(case.share(taken))} of the loop on rows of {length:,.0f} tokens",
        [
            ("attention implementation", "eager", "", "spans.jsonl: settings.model.attention"),
            ("attention, as part of forward and backward", found.share, "share", found.source),
            ("length of a row, weighted by its tokens", length, "tokens", "steps.jsonl: tokens, sequences"),
        ],
        [remedy],
        case.cost(taken),
        confidence="likely",
    )


def _attention_time(case: Case) -> _AttentionTime | None:
    """What grows with the square of a row's length; None where neither times nor FLOPs show it.

    By time: least squares of forward and backward over tokens, and over tokens times the length of a row, neither below
    0. By FLOPs, without checkpointing: eager attention computes all pairs of a padded row, ``a`` FLOPs, of which a
    causal model needs about ``a (1 - p)^2 / 2`` where a share ``p`` is padding. With ``l`` for the rest, computed ``h =
    l + a``, and the model's ``m = l (1 - p) + a (1 - p)^2 / 2``:

        a = (h - m / (1 - p)) / (1 - (1 - p) / 2) = 2 (h - m / (1 - p)) / (1 + p)

    Hand-worked: h = 100, m = 45, p = 0.25: 2 * (100 - 60) / 1.25 = 64. Check: l = 36, 36 * 0.75 + 64 * 0.5625 / 2 = 45.
    """
    fitted = _fitted_share(case.first)
    if fitted is not None:
        return _AttentionTime(fitted, "the part of the steps' time that grows with the square", "steps.jsonl")
    work, padded = case.account.work, case.account.tokens.padding_share
    checkpointed = case.settings("model").get("activation_checkpointing")
    if not work.hardware_flops or not work.model_flops or padded is None or padded >= 1 or checkpointed:
        return None
    beyond = 1 - work.model_flops / (1 - padded) / work.hardware_flops
    return _AttentionTime(min(1.0, max(0.0, 2 * beyond / (1 + padded))), "its share of the FLOPs", "run.json: work")


def _fitted_share(first: StepColumns) -> float | None:
    steady = first.steady
    counts, rows = np.maximum(first.micro_batches[steady], 1), first.rows[steady]
    seconds, tokens = first.compute_seconds[steady] / counts, first.processed[steady] / counts
    with np.errstate(divide="ignore", invalid="ignore"):
        length = first.processed[steady] / rows
    known = np.isfinite(seconds) & np.isfinite(tokens) & np.isfinite(length)
    seconds, tokens, length = seconds[known], tokens[known], length[known]
    if len(seconds) < 8 or length.std() < 0.15 * length.mean():
        return None
    linear, square = _least_squares(np.stack([tokens, tokens * length], axis=1), seconds)
    fitted = linear * tokens + square * tokens * length
    left = float(((seconds - fitted) ** 2).sum() / ((seconds - seconds.mean()) ** 2).sum())
    if 1 - left < 0.7:
        return None
    return float((square * tokens * length).sum() / fitted.sum())


def _least_squares(terms: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Neither below 0: where one would be, the other alone."""
    found = np.linalg.lstsq(terms, seconds, rcond=None)[0]
    if (found >= 0).all():
        return float(found[0]), float(found[1])
    alone = [max(0.0, float(term @ seconds / (term @ term))) for term in terms.T]
    errors = [float(((seconds - factor * term) ** 2).sum()) for factor, term in zip(alone, terms.T, strict=True)]
    return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])


@rule()
def optimizer_kernel(case: Case) -> Verdict:
    """torch's AdamW without ``fused``, in a twentieth of the loop or more."""
    held = case.settings("optimizer")
    if held.get("class") not in ("Adam", "AdamW") or held.get("fused") or case.device_type not in ("cpu", "cuda"):
        return None
    device = case.first.device_seconds.get("optimizer")
    kind = "phase_seconds" if device is None else "device_seconds"
    spent = case.phase_seconds("optimizer") if device is None else case.over_the_run(device)
    if case.share(_FEWER_PASSES * spent) < MATTERS:
        return None
    basis = "a fused step reads and writes 7 tensors for each weight where the operators one by one do 21"
    gain = case.gain(_FEWER_PASSES * spent, basis)
    return finding(
        f"the optimizer takes {share(case.share(spent))} of the loop, operator by operator: it is not fused",
        [
            ("time in the optimizer", spent, "seconds", f"steps.jsonl: {kind}.optimizer"),
            ("optimizer", str(held["class"]), "", "spans.jsonl: settings.optimizer"),
            ("train.optim", str(case.argument("optim", "not known")), "", "spans.jsonl: settings.arguments"),
        ],
        [Remedy("take the fused AdamW", {"train.optim": "adamw_torch_fused"}, "", gain)],
        case.cost(spent),
        confidence="likely",
    )


@rule(needs_steps=False)
def recompilation(case: Case) -> Verdict:
    """Compilation in three steps or more after the warm-up, or a twentieth of the loop after it; every new shape of a
    padded batch causes one."""
    first = case.first
    if "compilation" not in first.phase_seconds:
        return None
    late = np.where(first.steady, first.phase("compilation"), 0.0)
    spent, steps = float(late.sum()), int((late > 0).sum())
    if steps < 3 and case.share(spent) < MATTERS:
        return None
    gain = case.gain(spent, "no compilation after the warm-up")
    remedies = [Remedy("pad every batch to one length (pad_to_multiple_of), or pack", {}, "some padding", gain)]
    if case.can_be_packed:
        what = "pack examples into rows of one length"
        remedies.insert(0, Remedy(what, {"train.packing": True}, "an epoch has fewer steps", gain))
    remedies.append(Remedy("look at the reasons: TORCH_LOGS=recompiles,graph_breaks"))
    source = "steps.jsonl: phase_seconds.compilation"
    return finding(
        f"torch.compile compiles again in {steps} steps after warm-up: {share(case.share(spent))} of the loop",
        [
            ("compilation after warm-up", spent, "seconds", source),
            ("steps with a compilation", steps, "count", source),
            *_counted(case.facts.get("compilation", {})),
        ],
        remedies,
        case.cost(spent),
        severity="warning" if case.share(spent) >= MATTERS else "info",
    )


def _counted(compiled: Mapping[str, Any]) -> Iterator[Row]:
    """By dynamo's counters, over the life of the process."""
    for key, what in (("recompiles", "recompilations"), ("graph_breaks", "graph breaks")):
        yield what, compiled.get(key), "count", f"spans.jsonl: compilation.{key}"
    for reason, times in list(compiled.get("break_reasons", {}).items())[:1]:
        yield (f"most frequent break, {times} times", str(reason), "", "spans.jsonl: compilation.break_reasons")
