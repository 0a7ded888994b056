"""Which tokens the loss covers, and chat templates that mark the assistant's turns.

A template without ``{% generation %}`` markers gets them: TRL's own version where it has one, else the output
statements that print an answer are marked in the template's own text. A version is used where it renders every chat as
the template does. Where none does, the beginnings of a chat are rendered, and what each answer adds is its target.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import datasets
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template
from trl import SFTConfig
from trl.chat_template_utils import get_training_chat_template, has_generation_markers

from hf_efficient.data.formats import TEMPLATE_FAULTS, Kind
from hf_efficient.errors import DataError
from hf_efficient.recipe.schema import Recipe

_OUTPUT = re.compile(r"\{\{(-?)\s*((?:'[^']*'|\"[^\"]*\"|[^'\"{}])*?)\s*(-?)\}\}")
_TERM = re.compile(r"\s*((?:'[^']*'|\"[^\"]*\"|[^'\"+])+?)\s*(?:\+|$)")
_CONTENT = re.compile(r"(?:\w+\.)?content\b|\w+\[['\"]content['\"]\]")
_ROLE = re.compile(r"\w+\.role\b|\w+\[['\"]role['\"]\]")

# Qwen3 opens the thinking in the literal of the header, and prints the end of the turn after the tool calls.
_QWEN3 = (
    (r"+ '\n<think>\n' +", r"+ '\n' + '<think>\n' +"),
    (
        "{{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}",
        "{%- generation -%}{{- '<|im_end|>\\n' -}}{%- endgeneration %}\n    {%- elif message.role == \"tool\" %}",
    ),
)

_Chat = Sequence[dict[str, str]]
_Row = Mapping[str, Any]


class Targets(NamedTuple):
    """The loss covers the ``completion`` alone, the ``assistant``'s turns alone, or both where neither is set."""

    completion: bool
    assistant: bool


def targets_of(recipe: Recipe, args: SFTConfig, kind: Kind) -> Targets:
    """As ``data.targets`` or the older keys of ``train`` say; else the assistant's turns of chats, the completion of
    prompt and completion, all of a text. ``kind``: of the training examples."""
    asked = recipe.data.targets
    by_trl = args.completion_only_loss is not None or args.assistant_only_loss or "assistant_only_loss" in recipe.train
    if asked is None and (kind != "messages" or by_trl):
        only = args.completion_only_loss
        return Targets(kind.endswith("_pair") if only is None else only, args.assistant_only_loss)
    return Targets(asked == "last", asked in (None, "assistant"))


def marked_template(examples: Collection[_Row] | datasets.Dataset, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """A template with ``{% generation %}`` markers that renders all chats as the tokenizer's own; None where there is
    none. Raises ``TEMPLATE_FAULTS``: the own one refuses a chat."""
    own = tokenizer.get_chat_template()
    if has_generation_markers(own):
        return own
    versions: list[str | None] = []
    with suppress(ValueError, *TEMPLATE_FAULTS):  # no version of it, or a probe of TRL that it cannot render
        versions.append(get_training_chat_template(tokenizer))
    if (made := with_markers(own)) is not None and _marks_whole_turns(tokenizer, made):
        versions.append(made)
    found = (one for one in versions if one is not None)
    return next((one for one in found if _renders_alike(tokenizer, map(chat_of, examples), own, one)), None)


def _renders_alike(tokenizer: PreTrainedTokenizerBase, chats: Iterable[_Chat], own: str, other: str) -> bool:
    for chat in chats:
        expected = _render(tokenizer, chat, own)
        try:
            if _render(tokenizer, chat, other) != expected:
                return False
        except TEMPLATE_FAULTS:
            return False
    return True


def _marks_whole_turns(tokenizer: PreTrainedTokenizerBase, template: str) -> bool:
    roles = (("user", "q1"), ("assistant", "the-answer-1"), ("user", "q2"), ("assistant", "the-answer-2"))
    chat = [{"role": role, "content": content} for role, content in roles]
    special: dict[str, Any] = dict(tokenizer.special_tokens_map)
    rendered: Any
    try:
        rendered = render_jinja_template([chat], chat_template=template, return_assistant_tokens_mask=True, **special)
    except TEMPLATE_FAULTS:
        return False
    (text,), (spans,) = rendered
    marked = [text[begin:end] for begin, end in spans]
    answers = all(any(message["content"] in part for part in marked) for message in chat[1::2])
    return (
        answers
        and not any(message["content"] in part for part in marked for message in chat[::2])
        and spans[-1][1] >= len(text.rstrip())
    )


def _render(tokenizer: PreTrainedTokenizerBase, chat: _Chat, template: str | None = None, **settings: Any) -> str:
    return str(tokenizer.apply_chat_template(list(chat), tokenize=False, chat_template=template, **settings))


def with_markers(template: str) -> str | None:
    """The template with markers around the content and the end of each assistant turn; None where no output statement
    is recognised: one that prints role, content and more, or content and the end-of-sequence token."""
    for statement, marked in _QWEN3:
        template = template.replace(statement, marked)
    changed = _OUTPUT.sub(_marked, template)
    return changed if has_generation_markers(changed) else None


def _marked(output: re.Match[str]) -> str:
    """The statement with what is to be learnt inside a marker; other statements as they are."""
    left, expression, right = output.groups()
    terms = [term for term in _TERM.findall(expression) if term]
    place = next((index for index, term in enumerate(terms) if _CONTENT.match(term)), None)
    if place is None:
        return output.group()
    role = next((match for term in terms[:place] if (match := _ROLE.match(term))), None)
    if role is not None:
        test = f"{role.group()} == 'assistant'"
        place = next((index for index, term in enumerate(terms) if term.startswith("'<think>")), place)
    elif "eos_token" in terms[place + 1 :]:
        header = "".join(terms[:place])
        test = "true"
        place = place if "assistant" in header else 0
        if place == 0 and header.strip("\"' "):
            return output.group()
    else:
        return output.group()
    before = f"{{{{- {' + '.join(terms[:place])} -}}}}" if place else ""
    learnt = f"{{%- generation -%}}{{{{- {' + '.join(terms[place:])} -}}}}{{%- endgeneration -%}}"
    # A block takes the line break after it and the blanks before it, an output does not: + keeps them.
    return (
        f"{{%{left or '+'} if {test} -%}}{before}{learnt}"
        f"{{%- else -%}}{{{{- {expression} -}}}}{{%- endif {right or '+'}%}}"
    )


def tokenise_by_beginnings(
    examples: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, completion: bool, workers: int | None
) -> datasets.Dataset:
    """``input_ids``, ``labels`` and ``where`` of chats whose template has no version with markers; ``completion``: only
    its turns are targets. ``DataError``: the template renders the beginning of a chat otherwise than the whole."""

    def tokenised(row: dict[str, Any]) -> dict[str, Any]:
        chat = chat_of(row)
        text = _render(tokenizer, chat)
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        spans = list(answers_by_beginnings(tokenizer, chat, text, row["where"]))
        spans = spans[sum(turn["role"] == "assistant" for turn in row["prompt"]) :] if completion else spans
        learnt = [any(begin < end and first < last for first, end in spans) for begin, last in encoded.offset_mapping]
        labels = [token if target else -100 for token, target in zip(encoded.input_ids, learnt, strict=True)]
        return {"input_ids": encoded.input_ids, "labels": labels, "where": row["where"]}

    return examples.map(tokenised, remove_columns=examples.column_names, num_proc=workers)


def answers_by_beginnings(
    tokenizer: PreTrainedTokenizerBase, chat: _Chat, text: str, where: str
) -> Iterator[tuple[int, int]]:
    """First and last + 1 character of each assistant turn in ``text``, the rendered chat."""
    for index, message in enumerate(chat):
        if message["role"] != "assistant":
            continue
        try:
            through = _render(tokenizer, chat[: index + 1])
            before = _render(tokenizer, chat[:index], add_generation_prompt=True) if index else ""
            bare = _render(tokenizer, chat[:index]) if index else ""
        except TEMPLATE_FAULTS:
            through = before = bare = "\0"
        before = before if through.startswith(before) else bare
        if not (text.startswith(through) and through.startswith(before)):
            raise DataError(
                f"{where}: the chat template renders the first {index + 1} messages otherwise than in the whole chat, "
                "so the assistant's turns cannot be found. Write `data.targets: last` or `all`, or name a "
                "template with {% generation %} markers in train.chat_template_path."
            )
        yield len(before), len(through)


def chat_of(row: _Row) -> list[dict[str, str]]:
    return row["messages"] if "messages" in row else row["prompt"] + row["completion"]
