"""How far one model is from another: on the trained one's greedy answers, and on the recipe's evaluation data."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from hf_efficient.data.build import SftData
from hf_efficient.errors import DataError, first_line
from hf_efficient.metrics.answers import Prompt, end_of_answer_ids, generate_ids, render_prompt
from hf_efficient.planning.run_data import data_at_hand
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.trained_model import Agreement

_TASKS = ("Explain {} in a sentence.", "Three facts about {}.", "A poem about {}.", "Why {}?", "What is {} in French?")
_TOPICS = ("rain", "a bicycle", "the number 7", "bread", "a computer", "gravity", "money", "music", "a river", "sleep")
QUESTIONS = tuple(task.format(topic) for topic in _TOPICS for task in _TASKS)
"""Fifty, asked where no prompts are given."""

TIE_NATS = 0.01
"""Two tokens whose log-probabilities differ by less are a tie: which is greater is a matter of rounding."""

Forward = Callable[[torch.Tensor], torch.Tensor]
"""Token ids [1, tokens] in, logits [1, tokens, vocabulary] out."""


@dataclass(frozen=True)
class Answered:
    """A prompt, the tokens that the trained model answered, and its log-probabilities at each: [tokens, vocabulary]."""

    prompt: Prompt
    answer: tuple[int, ...]
    log_probabilities: torch.Tensor


@dataclass(frozen=True)
class HeldOut:
    """Rows of token ids with their labels (-100: no target): ``evaluation`` of the recipe, or why there are none, and
    ``training`` ones to calibrate on."""

    evaluation: Sequence[tuple[list[int], list[int]]] = ()
    training: Sequence[list[int]] = ()
    missing: str = ""


def forward_of(model: Any) -> Forward:
    device = next(model.parameters()).device

    def forward(ids: torch.Tensor) -> torch.Tensor:
        ids = ids.to(device)
        with torch.no_grad():
            logits: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return logits

    return forward


def as_prompts(tokenizer: PreTrainedTokenizerBase, questions: Sequence[Any]) -> list[Prompt]:
    """A text is what a user says, where there is a chat template; messages stay as they are."""
    chats = [
        [{"role": "user", "content": one}] if isinstance(one, str) and tokenizer.chat_template else one
        for one in questions
    ]
    return [render_prompt(tokenizer, one, key=f"--prompts: prompt {number}") for number, one in enumerate(chats, 1)]


def check_lengths(prompts: Sequence[Prompt], config: Any, max_new_tokens: int) -> None:
    """Raises ``DataError``: a prompt and its answer are longer than the model's positions."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    for number, one in enumerate(prompts, 1):
        if positions is not None and len(one.ids) + max_new_tokens > positions:
            raise DataError(
                f"--prompts: prompt {number} has {len(one.ids):,} tokens, and the model {positions:,} positions for it "
                f"and {max_new_tokens} new ones. Shorten it, or write a smaller --max-new-tokens."
            )


def answers_of(
    model: Any, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], max_new_tokens: int
) -> list[Answered]:
    """The greedy answers of the trained model; its distributions stay in memory, 4 bytes a token of the vocabulary."""
    ends = end_of_answer_ids(tokenizer)
    answers = generate_ids(model, tokenizer, prompts, max_new_tokens=max_new_tokens, batch_size=8, stop_ids=ends)
    return [
        Answered(prompt, tuple(answer), _log_probabilities(forward_of(model), prompt.ids, answer))
        for prompt, answer in zip(prompts, answers, strict=True)
        if answer
    ]


def agreement(
    forward: Forward, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Any], reference: Sequence[Answered]
) -> Agreement:
    """Of the exported model, read back. Both see the trained one's answers, so no early difference hides later ones."""
    kl, agreed, same, ties = [], [], 0, 0
    for one in reference:
        theirs = _log_probabilities(forward, one.prompt.ids, one.answer)
        ours = one.log_probabilities
        kl.append((ours.exp() * (ours - theirs)).sum(-1))
        likeliest, tokens = ours.max(-1), theirs.argmax(-1, keepdim=True)
        equal = likeliest.indices == tokens[:, 0]
        agreed.append(equal)
        same += int(equal.all())
        ties += int((~equal & (likeliest.values - ours.gather(1, tokens)[:, 0] < TIE_NATS)).sum())
    distances, equals = torch.cat(kl), torch.cat(agreed)
    read = [one.ids for one in as_prompts(tokenizer, questions)]
    return Agreement(
        prompts=len(reference),
        positions=len(distances),
        kl_mean=float(distances.mean()),
        kl_max=float(distances.max()),
        top1=float(equals.float().mean()),
        ties=ties,
        same_answers=same,
        same_prompts=sum(one.prompt.ids in read for one in reference),
    )


def _log_probabilities(forward: Forward, prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
    """Of each token of the answer, given all before it: [tokens, vocabulary], float32 on the CPU."""
    logits = forward(torch.tensor([[*prompt, *answer]]))[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1).cpu()


def held_out(recipe: Recipe | None, most: int, calibration: int = 0) -> HeldOut:
    """The first ``most`` examples that the recipe evaluates on, and ``calibration`` of its training, as the run saw
    them."""
    if recipe is None or not most + calibration:
        return HeldOut()
    try:
        found = data_at_hand(recipe)
    except DataError as error:
        return HeldOut(missing=first_line(error))
    if isinstance(found, str):
        return HeldOut(missing=found)
    data = found[1]
    if not isinstance(data, SftData):
        return HeldOut(missing="the recipe has no examples with answers of its own")
    training = data.train[:calibration]["input_ids"]
    if data.eval is None:
        return HeldOut(training=training, missing="the recipe has no evaluation data" * bool(most))
    rows = [one for row in data.eval.select(range(min(most, len(data.eval)))) for one in _documents(row)]
    return HeldOut(rows[:most], training)


def _documents(row: dict[str, Any]) -> Iterator[tuple[list[int], list[int]]]:
    """The examples in a row, which may be packed."""
    start = 0
    for length in row.get("seq_lengths") or [len(row["input_ids"])]:
        yield row["input_ids"][start : start + length], row["labels"][start : start + length]
        start += length


def loss_of(forward: Forward, rows: Sequence[tuple[list[int], list[int]]]) -> tuple[float, int]:
    """Mean cross-entropy of the target tokens, in nats, and their number."""
    total, count = 0.0, 0
    for ids, labels in rows:
        wanted = torch.tensor(labels[1:])
        logits = forward(torch.tensor([ids]))[0, :-1].float().cpu()
        total += float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"))
        count += int((wanted != -100).sum())
    return total / max(count, 1), count
