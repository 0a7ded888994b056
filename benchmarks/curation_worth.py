"""Is a model better for the same trained tokens where the pipeline has cleaned its data, and are the tokens that the
funnel says it saves those that a run trains on less?

    python benchmarks/curation_worth.py [--seeds 3] [--steps 40] [--json FILE]

Rows are docstrings of this Python's standard library with their requests. So many more are planted that they are 30% of
all: exact copies, copies with two words replaced, letters struck at random, and Latin. A small Llama is trained from
random weights on what `hf-efficient prepare` leaves and on the rows as they are, packed to full rows of 256 tokens, so
that both runs train on equally many. The evaluation rows share 13 words with no row of either.

Then both sets are trained on once, row by row, by a model of next to no size: what the two accounts differ by is held
against the funnel.
"""

import argparse
import datetime
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
import yaml
from planted_runs.data import END, VOCABULARY, train_tokenizer
from rich.console import Console
from rich.table import Table
from shared import load_average, write_result

from hf_efficient import load_recipe, load_run, run_recipe
from hf_efficient.curation.duplicates import contaminated
from hf_efficient.data.docstrings import build_docstring_chats

REAL_ROWS, EVAL_ROWS, TOKEN_ROWS = 1500, 150, 200
SHARE = 0.3
"""Of all rows, that are planted."""

_LATIN = (
    "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore et dolore magna "
    "aliqua enim ad minim veniam quis nostrud exercitation ullamco laboris nisi aliquip ex ea commodo consequat duis "
    "aute irure in reprehenderit voluptate velit esse cillum fugiat nulla pariatur excepteur sint occaecat cupidatat"
)
_PIPELINE = {
    "language": {"keep": ["en"], "min_probability": 0.0},
    "exact_duplicates": {"fold": True},
    "near_duplicates": {"shingle_words": 3, "bands": 20, "rows": 5},
}


def real_rows() -> tuple[list[str], list[str]]:
    """To train on, and to evaluate on."""
    told: dict[str, list[str]] = {"train": [], "eval": []}
    for one in build_docstring_chats():
        told[one["split"]].append(f"{one['prompt'][0]['content']}\n\n{one['completion'][0]['content']}")
    random.Random(0).shuffle(told["train"])
    train = told["train"][:REAL_ROWS]
    shared = contaminated(told["eval"], train)
    return train, [text for row, text in enumerate(told["eval"]) if row not in shared][:EVAL_ROWS]


def planted_rows(real: Sequence[str], rng: random.Random) -> list[str]:
    """As many of each of the four kinds."""
    count = round(len(real) * SHARE / (1 - SHARE))
    vocabulary = sorted({word for text in real for word in text.split()})

    def near() -> str:
        words = rng.choice(real).split(" ")
        for place in rng.sample(range(len(words)), min(2, len(words))):
            words[place] = rng.choice(vocabulary)
        return " ".join(words)

    def struck() -> str:
        return " ".join(
            "".join(rng.choices("asdfghjklqwertyuiop", k=rng.randint(3, 12))) for _ in range(rng.randint(20, 70))
        )

    def latin() -> str:
        return " ".join(rng.choices(_LATIN.split(), k=rng.randint(20, 80))).capitalize() + "."

    kinds = (lambda: rng.choice(real), near, struck, latin)
    return [kinds[number % len(kinds)]() for number in range(count)]


def write_model(folder: Path, texts: Sequence[str], seed: int, hidden: int = 96) -> None:
    """A Llama of some 700,000 random weights, whose tokenizer knows the real rows."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = train_tokenizer(list(texts))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END).save_pretrained(folder)


def write_rows(path: Path, texts: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def trained(folder: Path, name: str, *, clean: bool, model: str = "model", **train: Any) -> Any:
    """The account of a run."""
    recipe = {
        "name": "worth",
        "model": {"id": str(folder / model), "dtype": "float32"},
        "adapter": {"method": "full"},
        "data": {
            "train": [{"path": str(folder / "raw.jsonl")}],
            "eval": [{"path": str(folder / "eval.jsonl")}],
            "cache_dir": str(folder / "cache"),
            "prepared_dir": str(folder / "prepared"),
            **({"pipeline": _PIPELINE} if clean else {}),
        },
        "train": {
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 16,
            "learning_rate": 2e-3,
            "warmup_steps": 10,
            "eval_strategy": "no",
            "save_strategy": "no",
            "logging_steps": 10,
            "bf16": False,
            "gradient_checkpointing": False,
            **train,
        },
        "efficiency": {"plan": False, "preflight": False},
        "output_dir": str(folder / name),
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    run_recipe(load_recipe(path))
    return load_run(folder / name)


def write_data(folder: Path, seed: int, most: int | None = None) -> tuple[list[str], dict[str, Any]]:
    """Raw and evaluation rows; returns the real ones, and how many there are of each."""
    real, held = real_rows()
    real = real[:most]
    rng = random.Random(seed)
    raw = [*real, *planted_rows(real, rng)]
    rng.shuffle(raw)
    write_rows(folder / "raw.jsonl", raw)
    write_rows(folder / "eval.jsonl", held)
    return real, {"rows": len(raw), "planted": len(raw) - len(real), "evaluated": len(held)}


def pair(folder: Path, seed: int, steps: int) -> dict[str, Any]:
    """Both runs of a seed, which also decides what is planted; the account of a run that ends with an evaluation."""
    real, counts = write_data(folder, seed)
    write_model(folder / "model", real, seed)
    told: dict[str, Any] = {"seed": seed, **counts}
    for name, clean in (("raw", False), ("clean", True)):
        account = trained(
            folder,
            f"{name}-{seed}",
            clean=clean,
            max_steps=steps,
            max_length=256,
            packing=True,
            packing_strategy="wrapped",
            eval_strategy="steps",
            eval_steps=steps,
            seed=seed,
        )
        told[name] = {
            "trained_tokens": account.tokens.non_padding,
            "eval_loss": account.evaluations[-1].metrics["loss"],
            "training_seconds": round(account.time.training_seconds, 1),
        }
        print(f"seed {seed}, {name}: {told[name]}", flush=True)
    return told | {"kept": kept(folder, real)}


def kept(folder: Path, real: Sequence[str]) -> dict[str, Any]:
    manifest = read_manifest(folder)
    texts = set(pq.read_table(next((folder / "prepared").glob("*/train/rows.parquet")))["text"].to_pylist())
    stages = {one["name"]: one["rows_in"] - one["rows_out"] for one in manifest["stages"]}
    return {"rows": manifest["rows"], "real_rows": sum(text in texts for text in real), "removed_by_stage": stages}


def read_manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next((folder / "prepared").glob("*/manifest.json")).read_text(encoding="utf-8"))
    return found


def saved_tokens(folder: Path) -> dict[str, Any]:
    """Of an epoch of each set, row by row, none cut: the difference of the accounts beside the funnel's."""
    real, told = write_data(folder, 0, TOKEN_ROWS)
    write_model(folder / "tiny", real, 0, hidden=16)
    counts = {}
    for name, clean in (("raw", False), ("clean", True)):
        settings = {"num_train_epochs": 1, "max_length": 2048, "packing": False}
        account = trained(folder, f"epoch-{name}", clean=clean, model="tiny", **settings)
        counts[name] = account.tokens.non_padding
    stages = read_manifest(folder)["stages"]
    funnel = sum(one["tokens_in"] - one["tokens_out"] for one in stages if one["name"] != "blend")
    return {**told, "trained_tokens": counts, "difference": counts["raw"] - counts["clean"], "funnel_removed": funnel}


def main() -> None:
    """Train the pairs, print the table, and exit with 1 where a loss is not lower or the tokens differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    with tempfile.TemporaryDirectory() as folder:
        tokens = saved_tokens(Path(folder))
    print(f"tokens of an epoch: {tokens}", flush=True)
    pairs: list[dict[str, Any]] = []
    figures = {"load_average_before": load, "steps": options.steps, "saved_tokens": tokens, "pairs": pairs}
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            pairs.append(pair(Path(folder), seed, options.steps))
        if options.json:  # what is measured is kept, whatever comes
            write_result(options.json, "curation_worth", started, figures, ("rensa", "py3langid"))
    table = Table("seed", "evaluation loss, raw", "cleaned", "tokens of each run", title="Equal trained tokens")
    for one in pairs:
        losses = [f"{one[name]['eval_loss']:.3f}" for name in ("raw", "clean")]
        table.add_row(str(one["seed"]), *losses, f"{one['raw']['trained_tokens']:,}")
    Console(width=110).print(table)
    lower = all(one["clean"]["eval_loss"] < one["raw"]["eval_loss"] for one in pairs)
    # Full rows are packed from whole examples, so that as many steps differ by what is left at the end of rows.
    equal = all(abs(one["raw"]["trained_tokens"] / one["clean"]["trained_tokens"] - 1) < 0.005 for one in pairs)
    raise SystemExit(int(not lower or not equal or tokens["difference"] != tokens["funnel_removed"]))


if __name__ == "__main__":
    main()
