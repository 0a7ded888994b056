"""Does `prepare` keep the same rows in one process, in several tasks, and where it is killed and started again?

    python benchmarks/curation_kills.py [--kills 20] [--rows 1500] [--executor-every 7] [--json FILE]

Rows are docstrings of this Python's standard library, a tenth of them copies, some with a mail address. They are
prepared once in one process, once in four tasks of datatrove's executor on two workers. Then so many times more, each
killed by SIGKILL at a random moment of its time and started again; every seventh by the executor, of which the main
process alone is killed. Compared are the rows that are written, byte by byte, and the funnel with its samples, but for
its times.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared import load_average, write_result

from hf_efficient.curation import parts
from hf_efficient.curation.pipeline import prepare
from hf_efficient.data.docstrings import build_docstring_chats
from hf_efficient.recipe.schema import Recipe

PIPELINE = {"private_data": {}, "length": {"min_characters": 40}, "near_duplicates": {}}
EXECUTOR = {"kind": "local", "tasks": 4, "workers": 2}


def write_rows(folder: Path, count: int) -> list[str]:
    """Two sources; returns their paths."""
    rng = random.Random(0)
    texts = [one["completion"][0]["content"] for one in build_docstring_chats()]
    rows: list[str] = []
    for number in range(count):
        text = f"{rng.choice(texts)}\n\nSee also part {number % (count // 2)}."
        text = text if number % 9 else f"{text} Write to someone{number}@example.org.  \r\n"
        rows.append(rng.choice(rows) if number % 10 == 9 else text)
    paths = [folder / "first.jsonl", folder / "second.jsonl"]
    for path, part in zip(paths, (rows[: count // 3], rows[count // 3 :]), strict=True):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in part), encoding="utf-8")
    return [str(path) for path in paths]


def recipe_of(sources: Sequence[str], folder: Path, executor: dict[str, Any] | None = None) -> Recipe:
    pipeline = {**PIPELINE, "executor": executor}
    data = {
        "train": [{"path": one} for one in sources],
        "eval_fraction": 0.01,
        "pipeline": pipeline,
        "prepared_dir": str(folder),
    }
    return Recipe.model_validate({"name": "kills", "model": {"id": "m"}, "output_dir": "o", "data": data})


def result(folder: Path) -> tuple[bytes, bytes, str]:
    """What may not differ: training rows, held-out rows, and the funnel without times."""
    (version,) = folder.glob("[!.]*")
    stages = json.loads((version / "manifest.json").read_text(encoding="utf-8"))["stages"]
    funnel = json.dumps([{**one, "seconds": 0} for one in stages])
    return (version / "train/rows.parquet").read_bytes(), (version / "eval/rows.parquet").read_bytes(), funnel


def start(recipe: Recipe, tokenizer: Any, bytes_of_part: int) -> Any:
    """In a process of its own, which has all imports from this one."""
    parts._PART_BYTES = bytes_of_part
    process = multiprocessing.get_context("fork").Process(target=prepare, args=(recipe, tokenizer, lambda *_: None))
    process.start()
    return process


def killed_runs(
    folder: Path,
    tokenizer: Any,
    sources: Sequence[str],
    kills: int,
    rng: random.Random,
    bytes_of_part: int = 40_000,
    every: int = 7,
) -> dict[str, Any]:
    """Seconds and equality of all runs; a kill that came too late, after the end, is made again, earlier."""
    told: dict[str, Any] = {"seconds": {}, "kills": []}
    first: tuple[bytes, bytes, str] | None = None
    for name, executor in (("one process", None), ("four tasks", EXECUTOR))[: 2 if every else 1]:
        began = time.perf_counter()
        process = start(recipe_of(sources, folder / "whole", executor), tokenizer, bytes_of_part)
        process.join()
        told["seconds"][name] = round(time.perf_counter() - began, 2)
        found = result(folder / "whole")
        shutil.rmtree(folder / "whole")
        first = first or found
        told[f"{name} as one process"] = found == first
        print(name, told["seconds"][name], flush=True)
    for number in range(kills):
        name, executor = ("four tasks", EXECUTOR) if every and number % every == 2 else ("one process", None)
        recipe, seconds = recipe_of(sources, folder / "killed", executor), told["seconds"][name]
        while True:
            moment = rng.random() * seconds
            process = start(recipe, tokenizer, bytes_of_part)
            process.join(moment)
            if process.exitcode is None:
                break
            shutil.rmtree(folder / "killed")
            seconds *= 0.8
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        half_written = any(not (one / "manifest.json").is_file() for one in (folder / "killed").glob("[!.]*"))
        done = sorted(path.name for path in (folder / "killed").glob(".work*/*.json"))
        finished_parts = len(list((folder / "killed").glob(".work*/parts/*/counts.json")))
        again = start(recipe, tokenizer, bytes_of_part)
        again.join()
        same = again.exitcode == 0 and result(folder / "killed") == first
        one = {"way": name, "after_seconds": round(moment, 2), "parts_done": finished_parts, "stages_done": len(done)}
        told["kills"].append({**one, "same": same, "half_written": half_written})
        print(told["kills"][-1], flush=True)
        shutil.rmtree(folder / "killed")
    return told


def main() -> None:
    """Kill, print, and exit with 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--executor-every", type=int, default=7, help="so often by the executor; 0: never")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from planted_runs.data import END, train_tokenizer
    from transformers import PreTrainedTokenizerFast

    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        sources = write_rows(folder, options.rows)
        text = Path(sources[0]).read_text(encoding="utf-8").splitlines()[:2000]
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=train_tokenizer(text), eos_token=END, pad_token=END)
        every = options.executor_every
        told = killed_runs(folder, tokenizer, sources, options.kills, random.Random(0), every=every)
    same = [one["same"] and not one["half_written"] for one in told["kills"]]
    print(f"{sum(same)} of {len(same)} killed runs left the same; {told['seconds']}")
    if options.json:
        figures = {"load_average_before": load, "rows": options.rows, **told}
        write_result(options.json, "curation_kills", started, figures, ("datatrove", "rensa"))
    sys.exit(int(not all([*same, told.get("four tasks as one process", True)])))


if __name__ == "__main__":
    main()
