"""Rows judged by models: a classifier of good and bad rows, perplexity, a reward model, a language model's points.

Each scores all rows that reach it before it judges the first. Scores are kept on disk, so that no row is scored twice.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from hf_efficient.curation.asked import Kept, Sampling, asked_model
from hf_efficient.curation.duplicates import PACKAGED, sentence_encoder
from hf_efficient.curation.rows import Gone, Row, text_of
from hf_efficient.curation.stages import Judge, Rows, Stage
from hf_efficient.data import formats
from hf_efficient.data.cache import hash_of
from hf_efficient.data.documents import needed
from hf_efficient.errors import DataError
from hf_efficient.model.load import load_dense_base, load_tokenizer, on_accelerator
from hf_efficient.recipe import schema

Score = Callable[[Sequence[Row]], Sequence[float]]
"""Of each row, more is better; NaN: there is none."""
Examples = Callable[[str], Iterator[str]]
"""The texts of the sources under a key: ``quality.classifier.good``."""

_AT_ONCE = 64  # rows that are scored before their scores are kept
_LONGEST = 1024  # tokens of a row by which it is judged
_BATCH_TOKENS = 2048  # of which all logits are in memory together
_LARGEST_LOSS = 20.0  # of a text, in nats: more, or a non-finite one, is written as this
_JUDGED_CHARACTERS = 6000
_POINTS = "Answer with one number from 0 (of no use) to 5 (excellent), and nothing else."
_POINTS_ALONE = Sampling(0.0, 16)
_NUMBER = re.compile(r"(?<![\d.-])(?:[0-4](?:\.\d+)?|5(?:\.0+)?)(?![\d.]*\d)")


def quality_stages(
    recipe: schema.Recipe, section: schema.QualitySection, kept: Kept, examples: Examples
) -> list[Stage]:
    named = {
        "classifier": section.classifier and functools.partial(_classifier, section.classifier, kept, examples),
        "perplexity": section.perplexity and functools.partial(_perplexity, section.perplexity, recipe, kept),
        "reward": section.reward and functools.partial(_reward, section.reward, kept),
        "judge": section.judge and functools.partial(_judge, section.judge, recipe, kept),
    }
    alone = ("classifier", "judge")  # by the others a share of all rows goes
    return [Stage(f"quality.{name}", maker, by_row=name in alone) for name, maker in named.items() if maker]


def points(answer: str) -> float:
    """The last number from 0 to 5 in an answer; NaN without one."""
    found = _NUMBER.findall(answer)
    return float(found[-1]) if found else float("nan")


def _scored(rows: Rows, kept: Kept, who: list[Any], score: Callable[[], Score]) -> np.ndarray:
    """8 bytes a row in memory. ``score`` loads a model, only where a row has no score yet."""
    made, loaded, source = list[float](), functools.cache(score), rows.read()
    while chunk := list(islice(source, _AT_ONCE)):
        keys = [hash_of([*who, row.example]) for row in chunk]
        found = [kept.get(one) for one in keys]
        new = [number for number, one in enumerate(found) if one is None]
        values = loaded()([chunk[number] for number in new]) if new else []
        for number, value in zip(new, values, strict=True):
            found[number] = float(value)
        kept.put([(keys[number], found[number]) for number in new])
        made += found
    return np.array(made)


def _above(values: np.ndarray, least: float, why: str) -> Judge:
    def judge(index: int, row: Row) -> Row | Gone:
        return row if values[index] >= least else Gone(f"{why} below {least:.3g}", f"({values[index]:.3g})")

    return judge


def _classifier(section: schema.ClassifierSection, kept: Kept, examples: Examples, rows: Rows) -> Judge:
    encoder = section.encoder or PACKAGED
    good, bad = (list(examples(f"quality.classifier.{side}")) for side in ("good", "bad"))
    for side, texts in (("good", good), ("bad", bad)):
        if len(texts) < 10:
            raise DataError(f"data.pipeline.quality.classifier.{side}: has {len(texts)} rows. Give at least 10.")
    encode = functools.cache(lambda: sentence_encoder(encoder))

    @functools.cache
    def trained() -> tuple[Any, float]:
        linear, selection = needed("sklearn.linear_model"), needed("sklearn.model_selection")
        model = linear.LogisticRegression(class_weight="balanced", max_iter=1000)
        vectors, labels = encode()([*good, *bad]), [True] * len(good) + [False] * len(bad)
        accuracy = selection.cross_val_score(model, vectors, labels, cv=5, scoring="balanced_accuracy").mean()
        return model.fit(vectors, labels), float(accuracy)

    def score() -> Score:
        return lambda some: trained()[0].predict_proba(encode()([row.text for row in some]))[:, 1]

    who = ["classifier", encoder, hash_of([good, bad])]
    accuracy = kept.get(hash_of([*who, "accuracy"]))
    if accuracy is None:
        accuracy = trained()[1]
        kept.put([(hash_of([*who, "accuracy"]), accuracy)])
    told = f"{accuracy:.0%} right on {len(good):,} good and {len(bad):,} bad rows in cross-validation, balanced"
    rows.notes.append(told + ("; that is hardly better than chance" if accuracy < 0.6 else ""))
    return _above(_scored(rows, kept, who, score), section.min_score, "probability to be good")


def _perplexity(section: schema.PerplexitySection, recipe: schema.Recipe, kept: Kept, rows: Rows) -> Judge:
    def score() -> Score:
        model = on_accelerator(load_dense_base(recipe.model)).eval()
        tokenizer = load_tokenizer(recipe.model, recipe.train)
        return lambda some: perplexities(model, tokenizer, [row.text for row in some])

    values = _scored(rows, kept, ["perplexity", recipe.model.id, recipe.model.revision, _LONGEST], score)
    most = float(np.quantile(values, 1 - section.drop_highest)) if section.max is None else section.max
    rows.notes.append(
        f"by {recipe.model.id}: median {np.median(values):.3g}, rows from {section.min:.3g} to {most:.3g} stay"
    )
    least = _above(values, section.min, "perplexity")

    def judge(index: int, row: Row) -> Row | Gone:
        if values[index] <= most:
            return least(index, row)
        return Gone(f"perplexity above {most:.3g}", f"({values[index]:.3g})")

    return judge


@torch.inference_mode()
def perplexities(model: Any, tokenizer: Any, texts: Sequence[str]) -> list[float]:
    """exp of the mean negative log-likelihood of a text's tokens, up to the 1,024th, after a token that begins it."""
    begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    found = tokenizer(list(texts), add_special_tokens=False, truncation=True, max_length=_LONGEST)["input_ids"]
    ids = [[*([] if begin is None else [begin]), *one] for one in found]
    device, result = next(model.parameters()).device, [float("nan")] * len(ids)
    order = sorted(range(len(ids)), key=lambda number: len(ids[number]), reverse=True)
    while order:
        count = max(_BATCH_TOKENS // max(len(ids[order[0]]), 1), 1)
        batch, order = order[:count], order[count:]
        longest = len(ids[batch[0]])
        padded = torch.tensor([ids[number] + [0] * (longest - len(ids[number])) for number in batch], device=device)
        sizes = torch.tensor([len(ids[number]) for number in batch], device=device)
        mask = torch.arange(longest, device=device) < sizes[:, None]
        logits = model(input_ids=padded, attention_mask=mask.long(), use_cache=False).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(
            logits.float().transpose(1, 2), padded[:, 1:].masked_fill(~mask[:, 1:], -100), reduction="none"
        )
        means = (losses.sum(dim=1) / (sizes - 1)).nan_to_num(_LARGEST_LOSS).clamp(max=_LARGEST_LOSS)
        for number, value in zip(batch, means.exp().tolist(), strict=True):
            result[number] = value
    return result


def _reward(section: schema.RewardModelSection, kept: Kept, rows: Rows) -> Judge:
    def score() -> Score:
        own = schema.ModelSection(id=section.model)
        model = on_accelerator(load_dense_base(own, scores=True, head_is_trained=True)).eval()
        tokenizer = load_tokenizer(own, {})
        return lambda some: [_rewarded(model, tokenizer, row) for row in some]

    values = _scored(rows, kept, ["reward", section.model], score)
    least = float(np.quantile(values, section.drop_lowest)) if section.min_score is None else section.min_score
    rows.notes.append(f"by {section.model}: median {np.median(values):.3g}")
    return _above(values, least, "reward")


@torch.inference_mode()
def _rewarded(model: Any, tokenizer: Any, row: Row) -> float:
    """One row at a time: padding would need a token that the model knows as such."""
    chat = _chat_of(row.example) if tokenizer.chat_template else None
    text = text_of(row.example) if chat is None else tokenizer.apply_chat_template(chat, tokenize=False)
    ids = tokenizer(text, add_special_tokens=chat is None, truncation=True, max_length=_LONGEST, return_tensors="pt")
    return float(model(**ids.to(next(model.parameters()).device)).logits[0, 0])


def _chat_of(example: dict[str, Any]) -> list[dict[str, str]] | None:
    if (found := formats.question_and_answer(example)) is None:
        return None
    asked = found["prompt"]
    asked = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    return [*asked, {"role": "assistant", "content": found["answer"]}]


def _judge(section: schema.JudgeSection, recipe: schema.Recipe, kept: Kept, rows: Rows) -> Judge:
    key = "data.pipeline.quality.judge.by"
    asked, values, source = asked_model(section.by, key, recipe, kept), list[float](), rows.read()
    while chunk := list(islice(source, _AT_ONCE)):
        answers = asked.replies([judged_prompt(section.instruction, row.text) for row in chunk], _POINTS_ALONE)
        if answers is None:
            told = f"{key}.budget: does not suffice after {len(values):,} rows ({asked.spent})."
            raise DataError(f"{told} Write more; what was answered is kept, and counts again.")
        values += [points(answer) for answer in answers]
    rows.notes.append(asked.spent)
    rows.usd += asked.usd
    least = _above(np.array(values), section.min_score, "points of the judge")
    return lambda index, row: Gone("the judge gave no points") if np.isnan(values[index]) else least(index, row)


def judged_prompt(instruction: str, text: str) -> str:
    return f"{instruction}\n\n---\n{text[:_JUDGED_CHARACTERS]}\n---\n\n{_POINTS}"
