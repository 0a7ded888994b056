"""How far an exported model is from the one that was trained: greedy answers, and the distributions along them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from hf_efficient.facts.libraries import is_installed
from hf_efficient.metrics.answers import Prompt, end_of_answer_ids, generate_ids, render_prompt
from hf_efficient.records.trained_model import Agreement

_TASKS = ("Explain {} in a sentence.", "Three facts about {}.", "A poem about {}.", "Why {}?", "What is {} in French?")
_TOPICS = ("rain", "a bicycle", "the number 7", "bread", "a computer", "gravity", "money", "music", "a river", "sleep")
QUESTIONS = tuple(task.format(topic) for topic in _TOPICS for task in _TASKS)
"""Fifty, asked where no prompts are given."""


@dataclass(frozen=True)
class Answered:
    """A prompt, the tokens that the trained model answered, and its log-probabilities at each: [tokens, vocabulary]."""

    prompt: Prompt
    answer: tuple[int, ...]
    log_probabilities: torch.Tensor


def as_prompts(tokenizer: PreTrainedTokenizerBase, questions: Sequence[Any]) -> list[Prompt]:
    """A text is what a user says, where there is a chat template; messages stay as they are."""
    chats = [
        [{"role": "user", "content": one}] if isinstance(one, str) and tokenizer.chat_template else one
        for one in questions
    ]
    return [render_prompt(tokenizer, one, key="--prompts") for one in chats]


def answers_of(
    model: Any, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], max_new_tokens: int
) -> list[Answered]:
    """The greedy answers of the trained model; its distributions stay in memory, 4 bytes a token of the vocabulary."""
    ends = end_of_answer_ids(tokenizer)
    answers = generate_ids(model, tokenizer, prompts, max_new_tokens=max_new_tokens, batch_size=8, stop_ids=ends)
    return [
        Answered(prompt, tuple(answer), _log_probabilities(model, prompt.ids, answer))
        for prompt, answer in zip(prompts, answers, strict=True)
        if answer
    ]


def agreement(
    model: Any, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Any], reference: Sequence[Answered]
) -> Agreement:
    """Of the exported model, read back. Both see the trained one's answers, so no early difference hides later ones."""
    kl, agreed, same = [], [], 0
    for one in reference:
        theirs = _log_probabilities(model, one.prompt.ids, one.answer)
        ours = one.log_probabilities
        kl.append((ours.exp() * (ours - theirs)).sum(-1))
        equal = ours.argmax(-1) == theirs.argmax(-1)
        agreed.append(equal)
        same += int(equal.all())
    distances, equals = torch.cat(kl), torch.cat(agreed)
    read = [one.ids for one in as_prompts(tokenizer, questions)]
    return Agreement(
        prompts=len(reference),
        positions=len(distances),
        kl_mean=float(distances.mean()),
        kl_max=float(distances.max()),
        top1=float(equals.float().mean()),
        same_answers=same,
        same_prompts=sum(one.prompt.ids in read for one in reference),
    )


def llama_cpp_agreement(path: Path, tokenizer: PreTrainedTokenizerBase, reference: Sequence[Answered]) -> int | None:
    """Prompts that llama.cpp, which reads texts by the file's own tokenizer, answers greedily as the trained model did;
    None without ``cyllama``, which brings llama.cpp compiled."""
    if not is_installed("cyllama"):
        return None
    from cyllama.llama import llama_cpp

    llama_cpp.disable_logging()
    llama_cpp.ggml_backend_load_all()
    weights, room = llama_cpp.LlamaModelParams(), llama_cpp.LlamaContextParams()
    weights.n_gpu_layers = 0
    room.n_ctx = room.n_batch = max(len(one.prompt.ids) + len(one.answer) for one in reference) + 8
    model = llama_cpp.LlamaModel(str(path), weights)
    context, greedy = llama_cpp.LlamaContext(model, room), llama_cpp.LlamaSampler(llama_cpp.LlamaSamplerChainParams())
    greedy.add_greedy()
    same = 0
    for one in reference:
        adds = not tokenizer.chat_template  # which writes its own
        ids = model.get_vocab().tokenize(one.prompt.text, add_special=adds, parse_special=True)
        context.kv_cache_clear()
        same += all(token == wanted for token, wanted in zip(_greedy(context, greedy, ids), one.answer, strict=False))
    return same


def _greedy(context: Any, sampler: Any, ids: list[int]) -> Iterator[int]:
    from cyllama.llama.llama_cpp import llama_batch_get_one

    place = 0
    while True:
        context.decode(llama_batch_get_one(ids, place))
        place += len(ids)
        ids = [sampler.sample(context, -1)]
        yield ids[0]


def _log_probabilities(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
    """Of each token of the answer, given all before it: [tokens, vocabulary], float32 on the CPU."""
    ids = torch.tensor([[*prompt, *answer]], device=next(model.parameters()).device)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1).cpu()
