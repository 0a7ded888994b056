"""Answers that the model in training gives to a sample of prompts, and how many of them are exactly right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_efficient.errors import DataError
from hf_efficient.metrics.exact_match import ExactMatch, normalise
from hf_efficient.metrics.generation import Prompt, end_of_answer_ids, generate_answers, render_prompt

__all__ = ["Answer", "AnswerEvaluator"]


@dataclass(frozen=True)
class Answer:
    """One generated answer.

    Attributes:
        question: the last message of the prompt, or the whole of a prompt that is plain text.
        prompt: the text that the model was given, the chat template's markers included.
        expected: the reference.
        generated: what the model answered, special tokens removed.
        match: whether the two are equal after ``exact_match.normalise``.
    """

    question: str
    prompt: str
    expected: str
    generated: str
    match: bool


class AnswerEvaluator:
    """Generates answers greedily during an evaluation; returns ``{"exact_match": share}``.

    It is called with the trainer. Under several processes each answers its share of the examples, and all of
    them return the same numbers. The model is left as it was found: training mode, generation settings,
    weights. Answers are greedy and draw no random numbers, so a training run with it takes the same steps as
    one without.

    Args:
        tokenizer: the model's; needs a chat template where a prompt is a list of messages. It is not changed.
        examples: each ``{"prompt": text or list of chat messages, "answer": expected text}``.
        max_new_tokens: longest answer, in tokens.
        batch_size: how many prompts are answered at once, per process; does not change the answers beyond
            rounding.
        on_answers: receives the answers, in the order of the examples, on the main process alone.

    Raises:
        DataError: no examples, an example without ``prompt`` or ``answer``, or chat messages without a
            template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        examples: Sequence[Mapping[str, Any]],
        *,
        max_new_tokens: int = 64,
        batch_size: int = 8,
        on_answers: Callable[[list[Answer]], None] | None = None,
    ) -> None:
        if not examples:
            raise DataError(
                "evaluate.generate: there are no evaluation examples to answer. Give data.eval or data.eval_fraction."
            )
        self.tokenizer = tokenizer
        self.max_new_tokens = max_new_tokens
        self.batch_size = batch_size
        self.on_answers = on_answers
        self._questions: list[str] = []
        self._prompts: list[Prompt] = []
        self._expected: list[str] = []
        for number, example in enumerate(examples):
            for key in ("prompt", "answer"):
                if key not in example:
                    raise DataError(
                        f"evaluate.generate: example {number} has no {key!r}, only {sorted(example)}. "
                        "An example to be answered is {'prompt': text or list of messages, 'answer': text}."
                    )
            self._questions.append(_question(example["prompt"]))
            self._prompts.append(render_prompt(tokenizer, example["prompt"]))
            self._expected.append(str(example["answer"]))
        self._stop_ids = end_of_answer_ids(tokenizer)

    def __call__(self, trainer: Any) -> dict[str, float]:
        """Answer all prompts with the trainer's model.

        Returns:
            ``{"exact_match": share between 0 and 1}``, the same on every process.
        """
        accelerator = trainer.accelerator
        model = accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
        share = share_of(len(self._prompts), accelerator.process_index, accelerator.num_processes)
        texts = generate_answers(
            model,
            self.tokenizer,
            [self._prompts[index] for index in share],
            max_new_tokens=self.max_new_tokens,
            batch_size=self.batch_size,
            stop_ids=self._stop_ids,
        )
        generated = dict(zip(share, texts, strict=True))
        if accelerator.num_processes > 1:
            from accelerate.utils import gather_object

            generated = dict(gather_object(list(generated.items())))
        answers = [
            Answer(question, prompt.text, expected, text, normalise(text) == normalise(expected))
            for question, prompt, expected, text in zip(
                self._questions,
                self._prompts,
                self._expected,
                (generated[index] for index in range(len(self._prompts))),
                strict=True,
            )
        ]
        if self.on_answers is not None and accelerator.is_main_process:
            self.on_answers(answers)
        metrics = ExactMatch().compute(
            predictions=[answer.generated for answer in answers],
            references=[answer.expected for answer in answers],
        )
        return dict(metrics or {})


def _question(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def share_of(count: int, process: int, processes: int) -> list[int]:
    """Indices of the examples that a process answers: every ``processes``-th, from ``process`` on.

    All shares have the same length (the last processes answer example 0 again), so that all processes call
    ``generate`` equally often: a model whose weights are spread over them needs every one in every call.
    """
    share = list(range(process, count, processes))
    return share + [0] * (-(-count // processes) - len(share))
