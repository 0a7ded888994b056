"""Distillation: a student learns a teacher's predictions of the target tokens beside the tokens themselves.

    loss = alpha T^2 KL(p_T || q_T) + (1 - alpha) (-log q(y)) + w (1 - cos)        mean over the target tokens

``p_T`` and ``q_T``: softmax of the teacher's and the student's logits over T; T^2 keeps the size of the gradient.
Source: Hinton, Vinyals and Dean 2015, section 2. With the k likeliest tokens alone, ``p_T`` is their softmax, and
``q_T`` still that of the whole vocabulary.

Both heads project target positions alone, and the gradient of the logits is made in the forward, piece by piece: two
vocabulary-wide tensors are held, and float32 copies of a piece. TRL 1.16 has other trainers: ``DistillationTrainer``
learns from completions of the student's own (``objective: distill_on_policy``). ``GKDTrainer`` (experimental) compares
whole logits of every position, leaves its temperature out of the loss, and has no part for the data's tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from hf_efficient.errors import ModelError
from hf_efficient.facts.environment import replaced
from hf_efficient.model.prune import RECORD
from hf_efficient.model.recipe_trainer import RecipeTrainerMixin
from hf_efficient.recipe.schema import DistillSection

_LOGITS_AT_ONCE = 2**21
VALUES, TOKENS = "teacher_values", "teacher_tokens"
"""Names in a batch of the teacher's likeliest tokens (targets, k) and their log-probabilities."""


class Predictions(NamedTuple):
    """Of a teacher, for the N targets of a batch. ``values``: logits (N, vocabulary), or those of ``tokens`` (N, k).
    ``hidden``: of each block that is compared, (N, width)."""

    values: Tensor
    tokens: Tensor | None = None
    hidden: tuple[Tensor, ...] = ()


def distilled_loss(
    logits: Tensor, targets: Tensor, teacher: Predictions, *, alpha: float, temperature: float
) -> Tensor:
    """The sum over the targets (N,), without the hidden states; ``logits`` (N, vocabulary) are the student's. A teacher
    with another number of rows in its head is compared on those that both have."""
    return _Distilled.apply(logits, targets, teacher, alpha, temperature)


class _Distilled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, teacher: Predictions, alpha: float, temperature: float
    ) -> Tensor:
        slopes = torch.empty_like(logits)
        total = logits.new_zeros((), dtype=torch.float32)
        rows = max(1, _LOGITS_AT_ONCE // logits.shape[1])
        for start in range(0, len(logits), rows):
            part = slice(start, start + rows)
            known = None if teacher.tokens is None else teacher.tokens[part]
            scores = logits[part].float()
            loss, slope = _of_teacher(scores, teacher.values[part], known, temperature)
            slope *= alpha * temperature
            own = F.log_softmax(scores, -1)
            wanted = targets[part, None]
            total += alpha * temperature**2 * loss - (1 - alpha) * own.gather(1, wanted).sum()
            own = own.exp_().mul_(1 - alpha)
            own.scatter_add_(1, wanted, own.new_full(wanted.shape, alpha - 1))
            slopes[part] = own.add_(slope)
        ctx.save_for_backward(slopes)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return (slopes * grads[0].to(slopes.dtype), *(None,) * 4)


def _of_teacher(scores: Tensor, values: Tensor, tokens: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    """The summed KL of a piece, and temperature times its slope in ``scores``, q - p."""
    shared = scores.shape[1] if tokens is not None else min(scores.shape[1], values.shape[1])
    student = F.log_softmax(scores[:, :shared] / temperature, -1)
    teacher = F.log_softmax(values[:, :shared].float() / temperature, -1)
    probability = teacher.exp()
    if tokens is None:
        loss = (probability * (teacher - student)).sum()
        slope = student.exp_().sub_(probability)
    else:
        places = tokens.long()
        loss = (probability * (teacher - student.gather(1, places))).sum()
        slope = student.exp_().scatter_add_(1, places, -probability)
    return loss, slope if shared == scores.shape[1] else F.pad(slope, (0, scores.shape[1] - shared))


def at_targets(hidden: Tensor, positions: Tensor) -> Tensor:
    """Of (rows, tokens, width) the states that predict a target: (N, width)."""
    return hidden[:, :-1].flatten(0, 1)[positions]


@contextmanager
def head_at(model: Any, positions: Tensor) -> Iterator[None]:
    """Within, the model's head projects these positions alone: its logits are (N, vocabulary)."""
    head = model.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda _, args: (at_targets(args[0], positions),))
    try:
        yield
    finally:
        handle.remove()


def paired_blocks(student: Any, teacher: Any) -> list[int]:
    """For each block of the student that of the teacher whose output it learns: itself, where the student was pruned
    from as many, else evenly spaced with the last to the last. Takes both configurations."""
    student, record = student.get_text_config(), getattr(student, RECORD, None) or {}
    ours, theirs = int(student.num_hidden_layers), int(teacher.get_text_config().num_hidden_layers)
    if record.get("blocks") == theirs:
        return [one for one in range(theirs) if one not in record["removed"]]
    return [round((one + 1) * theirs / ours) - 1 for one in range(ours)]


def check_teacher(student: Any, teacher: Any, section: DistillSection) -> None:
    """``ModelError``: the hidden states of both cannot be compared. Takes both configurations."""
    ours, theirs = (one.get_text_config().hidden_size for one in (student, teacher))
    if section.hidden_states and ours != theirs:
        raise ModelError(
            f"distill.hidden_states: the student's have {ours:,} values and the teacher's {theirs:,}, which cannot be "
            "compared. Write 0, or a student pruned from the teacher."
        )


def check_heads(student: Any, teacher: Any, section: DistillSection) -> None:
    """``ModelError``: TRL compares whole heads, and these have different heights. Takes both configurations."""
    ours, theirs = (one.get_text_config().vocab_size for one in (student, teacher))
    if ours != theirs:
        raise ModelError(
            f"distill.teacher: the head of {section.teacher.id} has {theirs:,} rows and the student's {ours:,}, and "
            "TRL's DistillationTrainer compares whole heads. Write a teacher with as many, or `objective: distill`."
        )


def check_same_tokens(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, section: DistillSection
) -> None:
    """``ModelError``: the two call other tokens by the same number."""
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    other = next((token for token, number in ours.items() if theirs.get(token) != number), None)
    if other is not None:
        there = "has none such" if other not in theirs else f"calls it {theirs[other]:,}"
        raise ModelError(
            f"distill.teacher: {section.teacher.id} has another vocabulary: the student's token {other!r} is "
            f"{ours[other]:,}, and the teacher {there}. Write a teacher with the student's tokenizer."
        )


class DistillTrainerMixin(RecipeTrainerMixin):
    """Leftmost over the recipe's trainer. Trains on ``distilled_loss``; evaluations report the model's own loss, as
    those of a training without a teacher. ``teacher_model``: None where batches bring its likeliest tokens."""

    def __init__(self, *args: Any, distill: DistillSection, teacher_model: Any = None, **kwargs: Any) -> None:
        self._distill, self.teacher_model = distill, teacher_model
        super().__init__(*args, **kwargs)
        if teacher_model is not None:
            teacher_model.eval().requires_grad_(False)
            if getattr(teacher_model, "quantization_method", None) is None:
                teacher_model.to(self.args.device)
        both = distill.hidden_states and teacher_model is not None
        self._pairs = paired_blocks(self.model.config, teacher_model.config) if both else []  # type: ignore[union-attr]

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        inputs = dict(inputs)
        labels = inputs["labels"]
        positions = self._target_positions(labels)
        targets = labels[:, 1:].flatten()[positions]
        values, tokens = inputs.pop(VALUES, None), inputs.pop(TOKENS, None)
        asked = values is None
        seen = self.teacher_predictions(inputs, positions) if asked else Predictions(values, tokens)
        if self._pairs:
            inputs["output_hidden_states"] = True
        loss = functools.partial(self._loss, positions, targets, seen)
        with head_at(self.model, positions), replaced(self, "compute_loss_func", loss):
            return super().compute_loss(model, inputs, *args, **kwargs)

    @torch.no_grad()
    def teacher_predictions(self, inputs: dict[str, Any], positions: Tensor) -> Predictions:
        """The teacher's forward; timed as a phase of its own."""
        teacher: Any = self.teacher_model
        with head_at(teacher, positions), self.accelerator.autocast():
            found = teacher(**{**inputs, "labels": None}, use_cache=False, output_hidden_states=bool(self._pairs))
        hidden = tuple(at_targets(found.hidden_states[one + 1], positions) for one in self._pairs)
        return Predictions(found.logits, None, hidden)

    def _loss(
        self, positions: Tensor, targets: Tensor, teacher: Predictions, outputs: Any, labels: Any, **counted: Any
    ) -> Tensor:
        section = self._distill
        loss = distilled_loss(outputs.logits, targets, teacher, alpha=section.alpha, temperature=section.temperature)
        for block, theirs in enumerate(teacher.hidden):
            ours = at_targets(outputs.hidden_states[block + 1], positions)
            apart = (1 - F.cosine_similarity(ours.float(), theirs.float(), dim=-1)).sum()
            loss = loss + section.hidden_states / len(teacher.hidden) * apart
        items = counted["num_items_in_batch"]
        count = len(targets) if items is None else items
        return loss / torch.as_tensor(count, device=loss.device).clamp(min=1)


def with_likeliest(collator: Any, held: Any) -> Any:
    """The collator, which adds what ``held`` (rows to two tensors) knows of rows that have a ``teacher_row``."""

    def collate(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = collator(rows)
        if "teacher_row" in rows[0]:
            batch[VALUES], batch[TOKENS] = held([row["teacher_row"] for row in rows])
        return batch

    return collate
