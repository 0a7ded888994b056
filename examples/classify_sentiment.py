"""Fine-tune a classifier of sentiment: are the words about a film, a meal or a device kind or not?

    python SCRIPT --model FacebookAI/roberta-base --data reviews.jsonl
    python SCRIPT --cpu

Each line of the file is {"text": "...", "label": 0 or 1}; a tenth of them is held out. Without a file, short reviews
are made here. Without a model, a small one is trained from random weights, with a token for each word of the data, so
that nothing is fetched. The account lies in OUTPUT_DIR/efficiency, as that of any other run.
"""

import argparse
import itertools
import random

import numpy as np
from datasets import Dataset, load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    TrainingArguments,
    set_seed,
)

import hf_efficient

LABELS = ("negative", "positive")


def made_reviews(count: int = 1500) -> Dataset:
    """A review praises two things, or blames two; a word such as "not" turns a praise round."""
    rng = random.Random(0)
    things = ("plot", "cast", "music", "soup", "waiter", "screen", "battery", "manual", "price", "ending")
    praise = ("good", "warm", "bright", "clever", "friendly", "quick", "lovely", "honest")
    blame = ("bad", "dull", "cold", "noisy", "slow", "rude", "broken", "careless")
    joints = ("and", "while", "; after all,", ", as I said,")

    def clause(label: int) -> str:
        turned = rng.random() < 0.3
        words = praise if label != turned else blame
        return f"the {rng.choice(things)} was {'not ' if turned else ''}{rng.choice(words)}"

    labels = [rng.randrange(2) for _ in range(count)]
    texts = [f"{clause(label)} {rng.choice(joints)} {clause(label)}".capitalize() + "." for label in labels]
    return Dataset.from_dict({"text": texts, "label": labels})


def small_model(data: Dataset) -> tuple[BertForSequenceClassification, PreTrainedTokenizerFast]:
    """Two layers and a vocabulary of the words in the data."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    split = pre_tokenizers.Whitespace()
    found = itertools.chain.from_iterable(split.pre_tokenize_str(text.lower()) for text in data["text"])
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *sorted({word for word, _ in found})])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), split
    config = BertConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    return BertForSequenceClassification(config), wrapped


def accuracy(predicted: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    scores, labels = predicted
    return {"accuracy": float((scores.argmax(axis=-1) == labels).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="hub name or local folder")
    parser.add_argument("--data", help="texts with labels, as JSON lines")
    parser.add_argument("--output-dir", default="outputs/classify_sentiment")
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, help="default: 2e-5, or 2e-3 for the small model")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    options = parser.parse_args()

    set_seed(0)
    rows = load_dataset("json", data_files=options.data, split="train") if options.data else made_reviews()
    parts = rows.train_test_split(test_size=0.1, seed=0)
    if options.model:
        names = dict(enumerate(LABELS))
        model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2, id2label=names)
        tokenizer = AutoTokenizer.from_pretrained(options.model)
    else:
        model, tokenizer = small_model(parts["train"])
    parts = parts.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256), remove_columns="text")

    trainer = hf_efficient.EfficientTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=options.output_dir,
            max_steps=options.max_steps,
            learning_rate=options.learning_rate or (2e-5 if options.model else 2e-3),
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            eval_strategy="steps",
            eval_steps=max(options.max_steps // 2, 1),
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            use_cpu=options.cpu,
        ),
        train_dataset=parts["train"],
        eval_dataset=parts["test"],
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
