"""A run or a model that answers: loaded as it was trained, sampled, streamed; a chat, and files of prompts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase, TextStreamer

from hf_efficient.data.sources import READERS, Row
from hf_efficient.errors import DataError, ModelError, SetupError, first_line
from hf_efficient.launch.merge import (
    ADAPTER_CONFIG,
    TrainedAdapter,
    check_whole,
    find_adapter,
    load_trained,
    without_adapter,
)
from hf_efficient.metrics.answers import Prompt, end_of_answer_ids, generate_ids, render_prompt
from hf_efficient.model.load import load_dense_base, load_tokenizer, on_accelerator
from hf_efficient.recipe.schema import ModelSection

Message = dict[str, Any]


def find_source(target: str, *, trust_remote_code: bool = False) -> TrainedAdapter | ModelSection:
    """A run with an adapter, or a whole model: a full fine-tune, a folder, a GGUF file or a hub name. Raises
    ``ModelError``: a folder without either, or a reward model."""
    folder = Path(target).expanduser()
    if (folder / ADAPTER_CONFIG).is_file():
        adapter = find_adapter(folder, trust_remote_code=trust_remote_code)
        if adapter.scores:
            raise ModelError(f"{folder} holds a reward model, which writes no text. `hf-efficient merge` merges it.")
        return adapter
    if folder.is_dir() and not (folder / "config.json").is_file() and not any(folder.glob("*.gguf")):
        raise ModelError(without_adapter(folder))
    check_whole(folder)
    return ModelSection(id=target, trust_remote_code=trust_remote_code)


def load_source(found: TrainedAdapter | ModelSection) -> tuple[Any, PreTrainedTokenizerBase]:
    model, tokenizer = (
        (load_dense_base(found), load_tokenizer(found, {})) if isinstance(found, ModelSection) else load_trained(found)
    )
    return on_accelerator(model).eval(), tokenizer


class Sampling(NamedTuple):
    """``temperature`` 0 takes the most likely token each time."""

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0


class Answerer:
    def __init__(self, target: str, sampling: Sampling, *, trust_remote_code: bool = False) -> None:
        source = find_source(target, trust_remote_code=trust_remote_code)
        self.model, self.tokenizer = load_source(source)
        self._has_adapter = isinstance(source, TrainedAdapter)
        self.sampling = sampling
        self._stop_ids = end_of_answer_ids(self.tokenizer)
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        self._room = limit - sampling.max_new_tokens if isinstance(limit, int) else None
        if isinstance(limit, int) and limit <= sampling.max_new_tokens:
            wanted = f"{sampling.max_new_tokens} new tokens leave no room for a prompt in the model's {limit} positions"
            raise SetupError(f"--max-new-tokens: {wanted}. Write {limit // 2} or fewer.")

    def without_adapter(self) -> AbstractContextManager[Any]:
        if not self._has_adapter:
            raise ModelError("--compare base: the model has no adapter. Write a run of LoRA or QLoRA, or leave it out.")
        return self.model.disable_adapter()

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """Raises ``DataError``: no chat template, or longer than the model's positions leave room for."""
        made = render_prompt(self.tokenizer, messages, key="chat")
        if self._room is not None and len(made.ids) > self._room:
            raise DataError(
                f"the prompt has {len(made.ids):,} tokens, and the model's positions leave room for {self._room:,} "
                f"beside {self.sampling.max_new_tokens:,} new ones. Shorten it, or write a smaller --max-new-tokens."
            )
        return made

    def answer(
        self, prompts: Sequence[Prompt], *, batch_size: int = 1, on_text: Callable[[str], None] | None = None
    ) -> list[tuple[str, int]]:
        """Text and number of new tokens of each; ``on_text`` gets the one answer as it grows."""
        _, temperature, top_p = self.sampling
        streamer: Any = None
        if on_text is not None:
            streamer = TextStreamer(self.tokenizer, skip_prompt=True, skip_special_tokens=True)
            streamer.on_finalized_text = lambda text, stream_end=False: on_text(text)
        answers = generate_ids(
            self.model,
            self.tokenizer,
            prompts,
            max_new_tokens=self.sampling.max_new_tokens,
            batch_size=batch_size,
            stop_ids=self._stop_ids,
            sampling={"temperature": temperature, "top_p": top_p, "top_k": 0} if temperature else None,
            streamer=streamer,
        )
        texts = self.tokenizer.batch_decode(answers, skip_special_tokens=True)
        return [(text.strip(), len(ids)) for text, ids in zip(texts, answers, strict=True)]


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
        if path.suffix in (".jsonl", ".json"):
            rows = [_checked(row) for row in READERS[".jsonl"](path)]
        else:
            rows = [{"prompt": line} for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except DataError as error:
        raise DataError(f"--prompts: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--prompts: {path} cannot be read: {first_line(error)}.") from error
    if not rows:
        raise DataError(f"--prompts: {path} is empty. Write a prompt on each line.")
    return rows


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


def _is_message(one: Message) -> bool:
    """A content may have parts, and be missing beside calls of tools."""
    content = one.get("content")
    return isinstance(one.get("role"), str) and (isinstance(content, (str, list)) or bool(one.get("tool_calls")))


def _checked(row: Row) -> dict[str, Any]:
    messages, prompt = row.value.get("messages"), row.value.get("prompt")
    if messages:
        fine = isinstance(messages, list) and all(isinstance(one, dict) for one in messages)
    else:
        fine = isinstance(prompt, str) and bool(prompt.strip())
    if not fine:
        raise DataError(f'{row.where} holds neither "prompt", a text, nor "messages", a list of chat messages.')
    if messages and not all(map(_is_message, messages)):
        raise DataError(f'{row.where}: each message is to have a "role" and a "content", both texts.')
    return dict(row.value)
