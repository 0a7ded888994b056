"""What the cleaning of training data finds, what it takes by mistake, and how long it takes.

    python benchmarks/curation.py GSM8K_FOLDER [--seeds 10] [--rows 100000] [--json FILE]

The folder holds train.jsonl and test.jsonl with the key `question`. What is to be found is planted: near duplicates,
exact copies, test questions, private data. Peers that are not installed are left out (`pip install datasketch
datatrove`). The large search runs in a process of its own, whose peak memory is that of imports, texts and search.
"""

import argparse
import ast
import datetime
import json
import random
import resource
import statistics
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from curation_peers import finders
from curation_private import planted_private
from rich.console import Console
from rich.table import Table
from shared import load_average, run_to_end, write_result

from hf_efficient.curation.duplicates import contaminated, exact_duplicates, near_duplicates
from hf_efficient.curation.private_data import REGULAR_KINDS, replace_private

PLANTED = 300
SETTINGS = {"5 words, 14 bands of 8": (5, 14, 8), "3 words, 20 bands of 5": (3, 20, 5)}
"""FineWeb's, which is the default, and one that finds shorter rows with two words replaced."""


def planted_near(questions: Sequence[str], seed: int) -> tuple[list[str], dict[int, int]]:
    """With 300 copies at the end in which two words are replaced; copy to original."""
    rng = random.Random(seed)
    vocabulary = sorted({word for question in questions for word in question.split()})
    texts, copies = list(questions), {}
    for original in rng.sample(range(len(questions)), PLANTED):
        words = questions[original].split()
        for place in rng.sample(range(len(words)), 2):
            words[place] = rng.choice([word for word in rng.sample(vocabulary, 2) if word != words[place]])
        copies[len(texts)] = original
        texts.append(" ".join(words))
    return texts, copies


def near_figures(questions: Sequence[str], seeds: int) -> dict[str, Any]:
    """Per setting and tool, means over the seeds: a pair is found where one of the two goes; all else that goes, two
    likenesses among the questions themselves included, is a mistake."""
    told: dict[str, Any] = {}
    for label, (count, bands, rows) in SETTINGS.items():
        told[label] = {"threshold": next(s / 100 for s in range(101) if 1 - (1 - (s / 100) ** rows) ** bands >= 0.5)}
        for name, finder in finders().items():
            recalls, precisions, seconds = [], [], []
            for seed in range(seeds):
                texts, copies = planted_near(questions, seed)
                began = time.perf_counter()
                removed = finder(texts, count, bands, rows, seed)
                seconds.append(time.perf_counter() - began)
                found = sum(copy in removed or original in removed for copy, original in copies.items())
                recalls.append(100 * found / PLANTED)
                precisions.append(100 * found / max(len(removed), 1))
            told[label][name] = {
                "recall_percent": round(statistics.mean(recalls), 2),
                "precision_percent": round(statistics.mean(precisions), 2),
                "recall_percent_of_each": [round(one, 1) for one in recalls],
                "seconds_median": round(statistics.median(seconds), 2),
            }
    return told


def exact_figures(questions: Sequence[str]) -> dict[str, Any]:
    copied = random.Random(0).sample(range(len(questions)), PLANTED)
    texts = [*questions, *(questions[row] for row in copied)]
    right = {len(questions) + number: row for number, row in enumerate(copied)}
    return {name: {"planted": PLANTED, "found": len(right.items() & found.items()), "others": len(found.keys() - right)}
            for name, found in (("exact", exact_duplicates(texts)), ("near", near_duplicates(texts)))}  # fmt: skip


def write_large(path: Path, rows: int) -> int:
    """Rows of 200 tokens: words of Zipf's frequencies; each twentieth is an earlier row with two words replaced."""
    rng = random.Random(0)
    vocabulary = [f"w{number}" for number in range(50_000)]
    weights = list(weights_of(len(vocabulary)))
    recent: list[list[str]] = []
    copies = 0
    with path.open("w", encoding="utf-8") as file:
        for row in range(rows):
            if row % 20 == 19:
                words = list(rng.choice(recent))
                for place in rng.sample(range(200), 2):
                    words[place] = rng.choice(vocabulary)
                copies += 1
            else:
                words = rng.choices(vocabulary, cum_weights=weights, k=200)
                recent = [*recent[-200:], words]
            file.write(" ".join(words) + "\n")
    return copies


def weights_of(count: int) -> Iterator[float]:
    """Cumulative: the n-th word is as frequent as 1 / n."""
    total = 0.0
    for rank in range(1, count + 1):
        total += 1 / rank
        yield total


def large_figures(rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.txt"
        copies = write_large(path, rows)
        code, said = run_to_end([sys.executable, __file__, "--large", str(path)], Path.cwd(), 1800.0)
    if code:
        raise SystemExit(f"the large search ended with {code}:\n{said[-2000:]}")
    return {"rows": rows, "tokens_per_row": 200, "planted": copies, **json.loads(said.splitlines()[-1])}


def search_large(path: Path) -> dict[str, Any]:
    """In its own process: texts are read one by one, as from a data set."""
    began, began_cpu = time.perf_counter(), time.process_time()
    with path.open(encoding="utf-8") as file:
        removed = near_duplicates(file)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "removed": len(removed),
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(time.process_time() - began_cpu, 2),
        "peak_resident_bytes": peak,
    }


def contamination_figures(train: Sequence[str], test: Sequence[str]) -> dict[str, Any]:
    """Planted test questions stand alone, or with words around them as in a row of a training set."""
    rng = random.Random(0)
    planted = rng.sample(test, PLANTED)
    frames = ("{}", "Question: {} Answer: I do not know.", "Solve this! {}\n#### 7")
    texts = [*train, *(rng.choice(frames).replace("{}", question) for question in planted)]
    began = time.perf_counter()
    found = contaminated(texts, test)
    seconds = time.perf_counter() - began
    clean = sorted(row for row in found if row < len(train))
    return {
        "planted": PLANTED,
        "found": len(found) - len(clean),
        "clean_rows": len(train),
        "clean_rows_removed": len(clean),
        "clean_removed_percent": round(100 * len(clean) / len(train), 3),
        "shared_by_clean_rows": [found[row] for row in clean],
        "seconds": round(seconds, 2),
    }


def private_figures(questions: Sequence[str], docstrings: Sequence[str]) -> dict[str, Any]:
    """A planted item is found where its text is gone and its kind's name stands in its place alone."""
    rng = random.Random(0)
    planted: Counter[str] = Counter()
    missed: dict[str, list[str]] = {}
    found: Counter[str] = Counter()
    for kind, item in planted_private(rng, 1_002):
        words = rng.choice(questions).split()
        words.insert(rng.randrange(len(words) + 1), item)
        before = [*words]
        before[words.index(item)] = f"[{kind.upper()}]"
        planted[kind] += 1
        if replace_private(" ".join(words), REGULAR_KINDS)[0] == " ".join(before):
            found[kind] += 1
        else:
            missed.setdefault(kind, []).append(item)
    return {
        "planted": dict(planted),
        "found": dict(found),
        "found_percent": round(100 * found.total() / planted.total(), 2),
        "missed": missed,
        "in_questions": _without_planting(questions),
        "in_docstrings": _without_planting(docstrings),
    }


def _without_planting(texts: Sequence[str]) -> dict[str, Any]:
    began = time.perf_counter()
    counts = [replace_private(text, REGULAR_KINDS)[1] for text in texts]
    seconds = time.perf_counter() - began
    changed = sum(map(bool, counts))
    without_mail = sum(any(kind != "mail" for kind in count) for count in counts)
    return {
        "rows": len(texts),
        "rows_changed": changed,
        "rows_changed_percent": round(100 * changed / len(texts), 3),
        "rows_changed_by_other_than_mail": without_mail,
        "items": dict(sum((Counter(count) for count in counts), Counter[str]())),
        "characters_per_second": round(sum(map(len, texts)) / seconds),
    }


def standard_docstrings() -> list[str]:
    """All of this Python's standard library, whole, tests included. Real addresses of authors are among them."""
    root, found = Path(sysconfig.get_paths()["stdlib"]), []
    for path in sorted(root.rglob("*.py")):
        if "site-packages" not in path.parts:
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (SyntaxError, ValueError):  # files that test the parser
                continue
            owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            found += [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, owners)]
    return sorted({text for text in found if text})


def table_of(figures: dict[str, Any]) -> Table:
    table = Table("what", "figure", title="Cleaning of training data")
    for label, tools in figures["near_duplicates"].items():
        for name, one in tools.items():
            if name != "threshold":
                said = f"recall {one['recall_percent']}%, precision {one['precision_percent']}%"
                table.add_row(f"{label}: {name}", f"{said}, {one['seconds_median']} s")
    for part in ("exact_duplicates", "large", "contamination", "private_data"):
        table.add_row(part, json.dumps({key: one for key, one in figures[part].items() if key != "missed"}))
    return table


def main() -> None:
    """Run all parts, print a table, and exit with 1 where a bound of the documentation does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="with train.jsonl and test.jsonl")
    parser.add_argument("--seeds", type=int, default=10, help="plantings of near duplicates")
    parser.add_argument("--rows", type=int, default=100_000, help="of the large search")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--large", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.large:
        print(json.dumps(search_large(options.large)))
        return
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    train, test = (
        [json.loads(line)["question"] for line in (options.folder / f"{name}.jsonl").open(encoding="utf-8")]
        for name in ("train", "test")
    )
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "large": lambda: large_figures(options.rows),
        "near_duplicates": lambda: near_figures(train, options.seeds),
        "exact_duplicates": lambda: exact_figures(train),
        "contamination": lambda: contamination_figures(train, test),
        "private_data": lambda: private_figures([*train, *test], standard_docstrings()),
    }
    figures = {"load_average_before": load, **{name: part() for name, part in parts.items()}}
    Console(width=160).print(table_of(figures))
    if options.json:
        packages = ("rensa", "datasketch", "datatrove", "phonenumberslite", "python-stdnum")
        write_result(options.json, "curation", started, figures, packages)
    raise SystemExit(int(not holds(figures)))


def holds(figures: dict[str, Any]) -> bool:
    """Recall and precision within 3 points of each peer, all exact copies and test questions, 99% of private items."""
    near = [
        abs(tools["hf_efficient"][one] - tools[name][one]) <= 3
        for tools in figures["near_duplicates"].values()
        for name in tools.keys() - {"threshold"}
        for one in ("recall_percent", "precision_percent")
    ]
    exact, large, private = figures["exact_duplicates"]["exact"], figures["large"], figures["private_data"]
    return all([
        *near,
        exact["found"] == exact["planted"] and not exact["others"],
        large["seconds"] <= 60 and large["peak_resident_bytes"] <= 2e9,
        figures["contamination"]["found"] == PLANTED,
        figures["contamination"]["clean_removed_percent"] <= 0.1,
        private["found_percent"] >= 99,
        private["in_questions"]["rows_changed_percent"] <= 0.5,
        private["in_docstrings"]["rows_changed_percent"] <= 0.5,
    ])  # fmt: skip


if __name__ == "__main__":
    main()
