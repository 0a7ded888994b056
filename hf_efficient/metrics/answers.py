"""Answers that the model in training gives to a sample of prompts, leaving no trace on it; how many are right."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerBase

from hf_efficient.data.formats import TEMPLATE_FAULTS
from hf_efficient.errors import DataError
from hf_efficient.recording.activations import kept_modes


@dataclass(frozen=True)
class Prompt:
    text: str
    ids: tuple[int, ...]


def render_prompt(
    tokenizer: PreTrainedTokenizerBase, prompt: str | Sequence[Mapping[str, Any]], key: str = "evaluate.generate"
) -> Prompt:
    """The prompt as it stands before the completion in training: messages through the chat template, up to the answer;
    text with the special tokens at its start. ``DataError``: messages without a chat template, or refused by it."""
    if isinstance(prompt, str):
        ids, bare = (tuple(tokenizer(prompt, add_special_tokens=adds)["input_ids"]) for adds in (True, False))
        # Some tokenizers close every text with the end of sequence; after it there would be nothing to continue.
        closed = ids != bare and ids[-1:] == (tokenizer.eos_token_id,) and bare[-1:] != (tokenizer.eos_token_id,)
        return Prompt(prompt, ids[:-1] if closed else ids)
    if not tokenizer.chat_template:
        raise DataError(
            f"{key}: the prompt is a list of chat messages, but the tokenizer has no chat "
            "template. Name one in train.chat_template_path, or a tokenizer that has one in model.tokenizer."
        )
    try:
        messages = [dict(message) for message in prompt]
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except TEMPLATE_FAULTS as error:
        raise DataError(f"{key}: the chat template refuses the messages {prompt!r}: {error}") from error
    return Prompt(text, tuple(tokenizer(text, add_special_tokens=False)["input_ids"]))


def end_of_answer_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Token ids that end an answer: the tokenizer's end of sequence, and the chat template's end of turn, the first
    special token after an answer in a rendered chat (``<|im_end|>`` in ChatML, ``<|eot_id|>`` in Llama 3)."""
    ends = (tokenizer.eos_token_id, _end_of_turn_id(tokenizer))
    return tuple(dict.fromkeys(one for one in ends if one is not None))


def generate_ids(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    batch_size: int,
    stop_ids: Sequence[int],
    sampling: Mapping[str, Any] | None = None,
    streamer: Any = None,
) -> list[list[int]]:
    """The new token ids of each prompt, in order, up to and with the one that ended the answer. Prompts of like length
    share a batch, padded on the left. The model's mode and generation settings are restored. ``sampling``: fields of
    ``GenerationConfig``; None takes the most likely token each time."""
    device = next(model.parameters()).device
    pad_id = next(i for i in (tokenizer.pad_token_id, *stop_ids, 0) if i is not None)
    own = getattr(model.generation_config, "eos_token_id", None)
    stops = list(dict.fromkeys([*stop_ids, *(own if isinstance(own, list) else [] if own is None else [own])]))
    limits: dict[str, Any] = {"max_new_tokens": max_new_tokens, "pad_token_id": pad_id, "eos_token_id": stops or None}
    config = GenerationConfig(do_sample=sampling is not None, use_cache=True, **(sampling or {}), **limits)
    answers: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index].ids))
    with kept_modes(model), _generation_config(model, config), torch.no_grad():
        model.eval()
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            rows = [torch.tensor(prompts[index].ids, device=device) for index in chosen]
            left: Any = {"batch_first": True, "padding_side": "left"}
            ids = pad_sequence(rows, padding_value=pad_id, **left)
            mask = pad_sequence([torch.ones_like(row) for row in rows], **left)
            output = model.generate(input_ids=ids, attention_mask=mask, generation_config=config, streamer=streamer)
            for index, new in zip(chosen, output[:, ids.shape[1] :].tolist(), strict=True):
                ends = [place for place, token in enumerate(new) if token in stops]
                answers[index] = new[: ends[0] + 1] if ends else new
    return answers


def _end_of_turn_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    if not tokenizer.chat_template:
        return None
    answer = "An answer to find again"
    chat = [{"role": "user", "content": "A question"}, {"role": "assistant", "content": answer}]
    try:
        text = str(tokenizer.apply_chat_template(chat, tokenize=False))
    except TEMPLATE_FAULTS:
        return None  # a template for other roles than these says nothing of their end
    _, found, rest = text.rpartition(answer)
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.update(tokenizer.all_special_ids)
    following = tokenizer(rest, add_special_tokens=False)["input_ids"] if found else []
    return next((i for i in following if i in special), None)


@contextmanager
def _generation_config(model: torch.nn.Module, config: GenerationConfig) -> Iterator[None]:
    # generate() fills what its configuration leaves open from the model's own (a chat model's temperature and top_p, of
    # which it then warns that greedy generation ignores them). A PEFT model carries one and its base another.
    holders = [vars(module) for module in model.modules() if "generation_config" in vars(module)]
    own = [attributes["generation_config"] for attributes in holders]
    for attributes in holders:
        attributes["generation_config"] = config
    try:
        yield
    finally:
        for attributes, original in zip(holders, own, strict=True):
            attributes["generation_config"] = original


@dataclass(frozen=True)
class Answer:
    """One answer; ``prompt`` has the template's markers, ``match`` is equality after ``normalise``."""

    question: str
    prompt: str
    expected: str
    generated: str
    match: bool


def normalise(text: str) -> str:
    """The text as exact match compares it: outer whitespace removed, every inner run of it one space, nothing else."""
    return " ".join(text.split())


class AnswerEvaluator:
    """Generates answers greedily during an evaluation; returns ``{"exact_match": share}``. Several processes share the
    examples, and return the same numbers. Training mode, generation settings and weights are restored, and no random
    numbers drawn, so training takes the same steps. An example is ``{"prompt": text or list of chat messages, "answer":
    expected text}``. ``batch_size``: per process; does not change the answers beyond rounding. ``on_answers`` receives
    the answers, in the order of the examples, on the main process alone. ``DataError``: messages without a template."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        examples: Sequence[Mapping[str, Any]],
        *,
        max_new_tokens: int = 64,
        batch_size: int = 8,
        on_answers: Callable[[list[Answer]], None] | None = None,
    ) -> None:
        self.tokenizer, self.on_answers = tokenizer, on_answers
        self.max_new_tokens, self.batch_size = max_new_tokens, batch_size
        self._asked: list[tuple[str, Prompt, str]] = []  # question, prompt, expected answer
        for example in examples:
            prompt = example["prompt"]
            question = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
            self._asked.append((question, render_prompt(tokenizer, prompt), str(example["answer"])))
        self._stop_ids = end_of_answer_ids(tokenizer)

    def __call__(self, trainer: Any) -> dict[str, float]:
        accelerator = trainer.accelerator
        model = accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
        share = share_of(len(self._asked), accelerator.process_index, accelerator.num_processes)
        prompts = [self._asked[index][1] for index in share]
        how: Any = {"max_new_tokens": self.max_new_tokens, "batch_size": self.batch_size, "stop_ids": self._stop_ids}
        ids = generate_ids(model, self.tokenizer, prompts, **how)
        texts = [text.strip() for text in self.tokenizer.batch_decode(ids, skip_special_tokens=True)]
        generated = dict(zip(share, texts, strict=True))
        if accelerator.num_processes > 1:
            from accelerate.utils import gather_object

            generated = dict(gather_object(list(generated.items())))
        answers = []
        for index, (question, prompt, expected) in enumerate(self._asked):
            text = generated[index]
            answers.append(Answer(question, prompt.text, expected, text, normalise(text) == normalise(expected)))
        if self.on_answers is not None and accelerator.is_main_process:
            self.on_answers(answers)
        return {"exact_match": sum(one.match for one in answers) / len(answers)}


def share_of(count: int, process: int, processes: int) -> list[int]:
    """Indices of the examples that a process answers: every ``processes``-th, from ``process`` on. All shares have the
    same length (the last ones repeat example 0): with sharded weights each process takes part in every ``generate``."""
    share = list(range(process, count, processes))
    return share + [0] * (-(-count // processes) - len(share))
