import math

import pytest
import torch
from transformers import AutoModelForCausalLM, EvalPrediction, Trainer, TrainingArguments

from hf_efficient.errors import ModelError
from hf_efficient.metrics.for_trainer import make_compute_metrics, reduce_logits


def collate(rows):
    """Right padding with id 0 and label -100."""
    longest = max(len(row["input_ids"]) for row in rows)
    pad = [longest - len(row["input_ids"]) for row in rows]
    return {
        "input_ids": torch.tensor([row["input_ids"] + [0] * n for row, n in zip(rows, pad, strict=True)]),
        "attention_mask": torch.tensor([[1] * (longest - n) + [0] * n for n in pad]),
        "labels": torch.tensor([row["labels"] + [-100] * n for row, n in zip(rows, pad, strict=True)]),
    }


def examples(count=11):
    """Lengths 6 to 16, 1 to 5 target tokens; the first one labels position 0 as well, which must not
    count."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for i in range(count):
        ids = torch.randint(3, 250, (6 + i,), generator=generator).tolist()
        answer = 1 + i % 5
        rows.append({"input_ids": ids, "labels": [-100] * (len(ids) - answer) + ids[-answer:]})
    rows[0]["labels"][0] = rows[0]["input_ids"][0]
    return rows


@pytest.fixture
def model(tiny_llama_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)
    with torch.no_grad():  # an untrained head is so flat that every token has the same likelihood
        model.lm_head.weight.mul_(40)
    return model


def by_hand(model, rows):
    """Perplexity and accuracy from a plain loop over single examples, in float64."""
    nll, right, tokens = 0.0, 0, 0
    model.eval()
    for row in rows:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0].double()
        for t in range(1, len(row["labels"])):
            label = row["labels"][t]
            if label != -100:
                nll -= torch.log_softmax(logits[t - 1], dim=-1)[label].item()
                right += int(logits[t - 1].argmax().item() == label)
                tokens += 1
    return math.exp(nll / tokens), right / tokens


def make_right_sometimes(model, rows):
    """Replace some labels by what the model would say, so that the accuracy is neither 0 nor 1."""
    for row in rows[::2]:
        with torch.no_grad():
            choice = model(input_ids=torch.tensor([row["input_ids"]])).logits[0].argmax(-1).tolist()
        row["labels"][-1] = choice[-2]
    return rows


def trainer_of(model, rows, tmp_path, batch_size, **arguments):
    compute_metrics, preprocess = make_compute_metrics(["perplexity", "token_accuracy", "exact_match"])
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "remove_unused_columns": False}
    return Trainer(
        model=model,
        args=TrainingArguments(str(tmp_path / "out"), per_device_eval_batch_size=batch_size, **quiet, **arguments),
        data_collator=collate,
        eval_dataset=rows,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=preprocess,
    )


def test_trainer_gives_the_values_of_a_plain_loop_at_every_batch_size(model, tmp_path):
    rows = make_right_sometimes(model, examples())
    perplexity, accuracy = by_hand(model, rows)
    assert accuracy == 6 / 31  # 6 of the rows were given the model's own choice, of 31 target tokens
    seen = {size: trainer_of(model, rows, tmp_path, size).evaluate() for size in (1, 2, 5)}
    for metrics in seen.values():
        assert metrics["eval_perplexity"] == pytest.approx(perplexity, rel=1e-5)
        assert metrics["eval_token_accuracy"] == pytest.approx(accuracy, abs=1e-12)
        assert "eval_exact_match" not in metrics
    # The Trainer's own loss is a mean of batch means, and moves with the batch size.
    losses = {round(metrics["eval_loss"], 4) for metrics in seen.values()}
    assert len(losses) == 3


@pytest.mark.parametrize(
    "arguments", [{"eval_do_concat_batches": False}, {"batch_eval_metrics": True}, {"eval_accumulation_steps": 1}]
)
def test_every_way_the_trainer_hands_the_predictions_over(model, tmp_path, arguments):
    rows = make_right_sometimes(model, examples())
    trainer = trainer_of(model, rows, tmp_path, 2, **arguments)
    for count in (11, 11, 4):  # a later evaluation starts from nothing
        perplexity, accuracy = by_hand(model, rows[:count])
        metrics = trainer.evaluate(rows[:count])
        assert metrics["eval_perplexity"] == pytest.approx(perplexity, rel=1e-5)
        assert metrics["eval_token_accuracy"] == pytest.approx(accuracy, abs=1e-12)


def test_padding_free_batch(model):
    """Several examples in one row [1, total], each starting at an ignored label."""
    rows = [{**row, "labels": [-100, *row["labels"][1:]]} for row in examples(4)]
    logits = [model(input_ids=torch.tensor([row["input_ids"]])).logits[0] for row in rows]
    labels = torch.tensor([[label for row in rows for label in row["labels"]]])
    compute_metrics, preprocess = make_compute_metrics(["perplexity", "token_accuracy"])
    ids, nll = preprocess(torch.cat(logits)[None], labels)
    metrics = compute_metrics(EvalPrediction((ids.numpy(), nll.numpy()), labels.numpy()))
    perplexity, accuracy = by_hand(model, rows)
    assert metrics == {
        "perplexity": pytest.approx(perplexity, rel=1e-5),
        "token_accuracy": pytest.approx(accuracy, abs=1e-12),
    }


def test_reduce_logits_aligns_with_the_labels():
    logits = torch.zeros(1, 3, 4, dtype=torch.bfloat16)
    logits[0, 0, 2] = 100.0  # says of token 1: id 2, certainly
    logits[0, 2, 3] = 100.0  # speaks of a token after the end
    ids, nll = reduce_logits(logits, torch.tensor([[1, 2, 0]]))
    assert ids.tolist() == [[-100, 2, 0]]
    assert ids.dtype == torch.int64
    assert nll.dtype == torch.float32
    assert nll[0].tolist() == [0.0, 0.0, pytest.approx(math.log(4))]


def test_a_model_without_logits():
    with pytest.raises(ModelError) as error:
        reduce_logits((torch.zeros(2, 4),), torch.zeros(2, 4, dtype=torch.int64))
    assert str(error.value) == (
        "evaluate.metrics: the model's evaluation returned no logits, which perplexity and token_accuracy "
        "need. Turn off what skips them (train.use_liger_kernel: false), or leave these metrics out."
    )
