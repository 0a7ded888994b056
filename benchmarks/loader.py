"""Do a recipe's data come fast enough for a large GPU? Tokenised and packed, from the cache, and batch by batch.

    python benchmarks/loader.py --data CHATS --model FOLDER [--repeat 4] [--json FILE]

CHATS is JSONL with ``messages``, or with ``question`` and ``answer``; FOLDER holds a tokenizer. Rows of 4,096 tokens
are packed, and the run's own collator makes batches of 2 in the process that asks, as without workers. Compared with
what LoRA on Llama-3.1-8B needs on an H200 at 45% of its 989 TFLOP/s: 4 FLOPs for each of 8.03 billion weights and each
token, 13,900 tokens/s. The waiting share is that of a run whose loader works while the GPU stands still, so the most.
"""

import argparse
import datetime
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from peers import chats
from shared import load_average, write_result
from torch.utils.data import DataLoader

from hf_efficient.data.build import SftData, build_sft_data
from hf_efficient.launch.arguments import settle
from hf_efficient.model.load import load_tokenizer
from hf_efficient.recipe.load import load_recipe

LENGTH, BATCH = 4096, 2
NEEDED = 0.45 * 989e12 / (4 * 8.03e9)


def recipe_file(folder: Path, rows: list[dict[str, Any]], model: str) -> Path:
    data, path = folder / "chats.jsonl", folder / "loader.yaml"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    train = {"max_length": LENGTH, "packing": True, "per_device_train_batch_size": BATCH, "max_steps": 1}
    sections = {
        **{"name": "loader", "objective": "sft", "model": {"id": model}, "adapter": {"method": "lora"}, "train": train},
        **{"data": {"train": [{"path": str(data)}], "cache_dir": str(folder / "cache")}},
    }
    path.write_text(json.dumps(sections), encoding="utf-8")  # JSON is YAML
    return path


def built(path: Path) -> tuple[SftData, float]:
    """The data, and the seconds that they took."""
    settled, args = settle(load_recipe(str(path), []))
    tokenizer = load_tokenizer(settled.model, settled.train)
    began = time.perf_counter()
    data = build_sft_data(settled, tokenizer, args)  # type: ignore[arg-type]
    return data, time.perf_counter() - began


def pass_over(data: SftData) -> float:
    """CPU seconds of all batches, shuffled."""
    loader: Any = DataLoader(data.train, BATCH, shuffle=True, collate_fn=data.collator)
    began = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True, help="folder of a tokenizer")
    parser.add_argument("--repeat", type=int, default=4, help="copies of the chats, each with a number of its own")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    started, load, rows = datetime.datetime.now(datetime.timezone.utc), load_average(), chats(asked.data)
    numbered = [
        {"messages": [{**turn, "content": f"{number}. {turn['content']}"} for turn in row["messages"]]}
        for number in range(asked.repeat)
        for row in rows
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = recipe_file(Path(folder), numbered, asked.model)
        (data, first), (cached, again) = built(path), built(path)
        taken = statistics.median(pass_over(cached) for _ in range(5))
    tokens = data.stats.tokens_total
    figures = {
        **{"load_average_before": load, "rows": len(numbered), "packs": len(data.train), "tokens": tokens},
        **{"build_seconds": round(first, 2), "tokens_per_second_built": round(tokens / first)},
        **{"from_cache": cached.cached, "cache_seconds": round(again, 3)},
        **{"tokens_per_cpu_second": round(tokens / taken), "needed_tokens_per_second": round(NEEDED)},
        "most_waiting_share": round(NEEDED * taken / tokens, 4),
    }
    print(json.dumps(figures, indent=1))
    if asked.json:
        write_result(asked.json, "loader", started, figures)


if __name__ == "__main__":
    main()
