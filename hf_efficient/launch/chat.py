"""A chat with its history, and files of prompts."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_efficient.errors import DataError, first_line
from hf_efficient.launch.trained import Answerer, Message


@dataclass
class Conversation:
    """The messages so far; a turn that fails leaves them as they were."""

    answerer: Answerer
    system: str | None = None
    as_base: bool = False
    messages: list[Message] = field(default_factory=list)

    def ask(self, text: str, on_text: Callable[[str], None] | None = None) -> str:
        first = [{"role": "system", "content": self.system}] if self.system and not self.messages else []
        asked = [*self.messages, *first, {"role": "user", "content": text}]
        prompt = self.answerer.prompt(asked)
        with self.answerer.without_adapter() if self.as_base else nullcontext():
            ((answer, _),) = self.answerer.answer([prompt], on_text=on_text)
        self.messages = [*asked, {"role": "assistant", "content": answer}]
        return answer


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Rows with ``prompt`` (a text) or ``messages`` of a JSONL file, or the lines of a text file as prompts. Raises
    ``DataError``: the file cannot be read, is empty, or a row holds neither."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--prompts: {path} cannot be read: {first_line(error)}.") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise DataError(f"--prompts: {path} is empty. Write a prompt on each line.")
    if path.suffix not in (".jsonl", ".json"):
        return [{"prompt": line} for _, line in numbered]
    return [_row(f"{path}:{number}", line) for number, line in numbered]


def generate(
    answerer: Answerer, rows: Sequence[Mapping[str, Any]], system: str | None, batch_size: int
) -> Iterator[dict[str, Any]]:
    """Each row with its ``answer`` and ``new_tokens``, a batch at a time, in order."""
    first = [{"role": "system", "content": system}] if system else []
    prompts = []
    for number, row in enumerate(rows, 1):
        chat = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
        try:
            prompts.append(answerer.prompt([*first, *chat]))
        except DataError as error:
            raise DataError(f"--prompts: row {number}: {error}") from error
    for start in range(0, len(rows), batch_size):
        part = slice(start, start + batch_size)
        for row, (text, tokens) in zip(rows[part], answerer.answer(prompts[part], batch_size=batch_size), strict=True):
            yield {**row, "answer": text, "new_tokens": tokens}


def _row(place: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"--prompts: {place} is no JSON: {first_line(error)}.") from error
    messages = row.get("messages") if isinstance(row, dict) else None
    is_chat = isinstance(messages, list) and messages and all(isinstance(one, dict) for one in messages)
    if is_chat or (isinstance(row, dict) and isinstance(row.get("prompt"), str)):
        return dict(row)
    raise DataError(f'--prompts: {place} holds neither "prompt", a text, nor "messages", a list of chat messages.')
