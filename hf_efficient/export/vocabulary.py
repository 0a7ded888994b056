"""A tokenizer as the metadata of a GGUF file: tokens, merges or scores, special tokens, chat template."""

import json
import re
from typing import Any

from hf_efficient.errors import ModelError
from hf_efficient.metrics.answers import end_of_answer_ids

_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {_LLAMA_3: "llama-bpe", _LLAMA_3.replace("{1,3}", ""): "qwen2", _TEKKEN: "tekken"}
"""How text is cut before the merges, and what llama.cpp calls it (``llm_tokenizer_bpe`` in its ``llama-vocab.cpp``)."""

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def check_vocabulary(tokenizer: Any, rows: int) -> dict[str, Any]:
    """What ``tokenizer.json`` holds. Raises ``ModelError``: GGUF has no tokenizer of this kind, or the model has fewer
    embeddings (``rows``) than there are tokens."""
    held: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str()) if tokenizer.is_fast else {}
    model = held.get("model", {})
    if model.get("type") != "BPE" or not model.get("merges"):
        kind = "BPE without any" if model.get("type") == "BPE" else model.get("type") or type(tokenizer).__name__
        raise ModelError(
            f"--to: a GGUF file of a language model holds a BPE tokenizer with its merges, and this one is {kind}. "
            "Write --to merged."
        )
    if len(tokenizer) > rows:
        raise ModelError(
            f"--to: the tokenizer has {len(tokenizer)} tokens and the model {rows} embeddings, which GGUF cannot hold. "
            "Train with the model's own tokenizer."
        )
    if not model.get("byte_fallback"):
        pre_tokenizer(held)
    return held


def add_vocabulary(writer: Any, tokenizer: Any, rows: int) -> None:
    held = check_vocabulary(tokenizer, rows)
    model = held["model"]
    merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
    is_sentencepiece = bool(model.get("byte_fallback"))
    if is_sentencepiece:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        ranks = {merge.replace(" ", ""): rank for rank, merge in reversed([*enumerate(merges)])}
        names = {index: token for token, index in tokenizer.get_vocab().items()}
        # SentencePiece joins the pair with the highest score first: that of the earliest merge
        writer.add_token_scores([-float(ranks.get(names.get(index, ""), len(merges))) for index in range(rows)])
        writer.add_add_space_prefix(tokenizer.tokenize("a")[0].startswith("▁"))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre_tokenizer(held))
        writer.add_token_merges(merges)
    tokens, types = _tokens(tokenizer, rows, is_sentencepiece=is_sentencepiece)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    _add_special(writer, tokenizer)


def pre_tokenizer(held: dict[str, Any]) -> str:
    """llama.cpp's name of how a byte-level ``tokenizer.json`` cuts a text before the merges; ``ModelError``: none."""
    parts = held.get("pre_tokenizer") or {}
    parts = parts.get("pretokenizers", [parts])
    kinds = [part.get("type") for part in parts]
    if kinds == ["ByteLevel"] and parts[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and (named := _SPLITS.get(parts[0].get("pattern", {}).get("Regex", ""))):
        return named
    raise ModelError(
        "--to: llama.cpp has no name that is known here for how this tokenizer cuts text "
        f"({', '.join(map(str, kinds))}), so its tokens would differ. Write --to merged, and convert that folder by "
        "llama.cpp's own converter."
    )


def _tokens(tokenizer: Any, rows: int, *, is_sentencepiece: bool) -> tuple[list[str], list[int]]:
    from gguf import TokenType

    names = {index: token for token, index in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    tokens, types = [], []
    for index in range(rows):
        name = names.get(index)
        if name is None:
            kind = TokenType.UNUSED
        elif index in added and index == tokenizer.unk_token_id and is_sentencepiece:
            kind = TokenType.UNKNOWN
        elif index in added:
            kind = TokenType.CONTROL if added[index].special else TokenType.USER_DEFINED
        else:
            kind = TokenType.BYTE if is_sentencepiece and _BYTE.fullmatch(name) else TokenType.NORMAL
        if kind == TokenType.USER_DEFINED and is_sentencepiece:
            name = str(name).replace("▁", " ")
        tokens.append(f"[PAD{index}]" if name is None else name)
        types.append(int(kind))
    return tokens, types


def _add_special(writer: Any, tokenizer: Any) -> None:
    for name in ("bos", "eos", "unk", "pad"):
        index = getattr(tokenizer, f"{name}_token_id")
        if index is not None:
            getattr(writer, f"add_{name}_token_id")(index)
    turn = next((index for index in end_of_answer_ids(tokenizer) if index != tokenizer.eos_token_id), None)
    if turn is not None:
        writer.add_eot_token_id(turn)
    ids, bare = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    writer.add_add_bos_token(ids != bare and ids[:1] == [tokenizer.bos_token_id])
    writer.add_add_eos_token(ids != bare and ids[-1:] == [tokenizer.eos_token_id])
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
