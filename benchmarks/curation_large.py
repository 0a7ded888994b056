"""Does the memory of `prepare` stay bounded on an input that is larger than it, and how long does it take?

    python benchmarks/curation_large.py [--gigabytes 5] [--tasks N] [--without STAGE] [--folder DIR] [--json FILE]

The input is written first: JSONL of some 5 kB a row, words of the standard library's docstrings in any order, of which
a tenth of the rows are exact copies and a tenth near copies. `hf-efficient prepare` then runs in a process of its own,
with private data, lengths, exact and near copies, a held-out share and its contamination. Twice a second the resident
memory of all its processes is read, a page that they share once, and the size of what it keeps on the disk. The folder
needs three times the input.
"""

import argparse
import datetime
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import yaml
from planted_runs.data import END, train_tokenizer
from shared import load_average, write_result

from hf_efficient.data.docstrings import build_docstring_chats

_EVERY = 0.5
"""Seconds between two readings, which take some 25 ms: more often they would slow the work down."""
_PIPELINE = {"private_data": {}, "length": {"min_characters": 200}, "near_duplicates": {}}


def write_input(path: Path, size: int, row_bytes: int, texts: list[str]) -> dict[str, int]:
    """Rows until the file has so many bytes. No two but copies share thirteen words: none is found contaminated."""
    rng, words = random.Random(0), " ".join(texts).split()
    each = round(row_bytes * len(words) / sum(len(word) + 1 for word in words))
    recent: list[str] = []
    told = {"rows": 0, "exact_copies": 0, "near_copies": 0, "bytes": 0}
    with path.open("w", encoding="utf-8") as file:
        while told["bytes"] < size:
            kind = told["rows"] % 10
            if kind < 8 or not recent:
                row = " ".join(rng.choices(words, k=each))
                recent = [*recent[-500:], row]
            else:
                row = rng.choice(recent)
                told["exact_copies" if kind == 8 else "near_copies"] += 1
                row += f" seen {told['rows']} times" if kind == 9 else ""
            told["bytes"] += file.write(json.dumps({"text": row}) + "\n")
            told["rows"] += 1
    return told


def measured(command: list[str], folder: Path) -> dict[str, Any]:
    """Run to the end: seconds, peak of resident bytes (PSS), peak of the bytes below the folder, what it said."""
    began, peak, disk, cpu = time.perf_counter(), 0, 0, 0.0
    with (folder / "said.txt").open("wb") as out:
        process = psutil.Popen(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        while process.poll() is None:
            try:
                family = [process, *process.children(recursive=True)]
                peak = max(peak, sum(one.memory_full_info().pss for one in family))
                cpu = max(cpu, sum(sum(one.cpu_times()[:2]) for one in family))
            except psutil.Error:
                pass
            disk = max(disk, sum(one.stat().st_size for one in (folder / "prepared").rglob("*") if one.is_file()))
            time.sleep(_EVERY)
    said = (folder / "said.txt").read_text(encoding="utf-8", errors="replace")
    if process.returncode:
        raise SystemExit(f"prepare ended with {process.returncode}:\n{said[-3000:]}")
    seconds = round(time.perf_counter() - began, 1)
    facts = {"seconds": seconds, "cpu_seconds": round(cpu, 1)}
    return {**facts, "peak_resident_bytes": peak, "peak_disk_bytes": disk, "said": said.splitlines()}


def main() -> None:
    """Write, prepare, print, and exit with 1 where memory was above two gigabytes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--row-bytes", type=int, default=5000)
    parser.add_argument("--tasks", type=int, help="in tasks of datatrove's local executor")
    parser.add_argument("--without", choices=list(_PIPELINE), action="append", default=[], help="of the stages")
    parser.add_argument("--folder", type=Path, help="with room; a temporary one is made in it")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        texts = [one["completion"][0]["content"] for one in build_docstring_chats()]
        written = write_input(folder / "rows.jsonl", int(options.gigabytes * 1e9), options.row_bytes, texts)
        print(written, flush=True)
        from transformers import PreTrainedTokenizerFast

        tokenizer = train_tokenizer(texts[:1000])
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder / "model")
        executor = {"executor": {"tasks": options.tasks}} if options.tasks else {}
        stages = {name: one for name, one in _PIPELINE.items() if name not in options.without}
        data = {"train": "rows.jsonl", "eval_fraction": 0.001, "pipeline": {**stages, **executor}}
        recipe = {"name": "large", "model": {"id": "model"}, "data": data, "output_dir": "out"}
        (folder / "large.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
        main_of = "from hf_efficient.cli.app import main; main()"
        told = measured([sys.executable, "-c", main_of, "prepare", "large.yaml"], folder)
        (manifest,) = (folder / "prepared/large").glob("[!.]*/manifest.json")
        stages = json.loads(manifest.read_text(encoding="utf-8"))["stages"]
    finally:
        shutil.rmtree(folder)
    said = told.pop("said")
    print("\n".join(said))
    names = ("name", "rows_in", "rows_out", "tokens_out", "seconds")
    figures = {"load_average_before": load, **written, "tasks": options.tasks, "without": options.without, **told}
    figures["stages"] = [{name: one[name] for name in names} for one in stages]
    print({name: one for name, one in figures.items() if name != "stages"})
    if options.json:
        write_result(options.json, "curation_large", started, figures, ("rensa", "ftfy", "phonenumberslite"))
    raise SystemExit(int(told["peak_resident_bytes"] > 2e9))


if __name__ == "__main__":
    main()
