"""How fast do packed token rows come from JSONL, Parquet, WebDataset and memory-mapped Arrow, in order and shuffled?

    python benchmarks/layouts.py [--rows 4000] [--rounds 5] [--json FILE]

Each layout holds the same rows of 512 token ids (int32), and gives batches of eight as tensors. Arrow is what a run
reads: a folder of Dataset.save_to_disk, memory-mapped. JSONL and WebDataset are read in the order in which they were
written, and shuffled through a buffer of 1,000 rows; Parquet is read by row groups of 500 rows in random
order, shuffled inside. The layouts take turns, and the files come from the page cache. All times are of the process's
CPU, which other processes do not change. The time to the first batch is what a resumed run waits for once more.
"""

import argparse
import datetime
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.table import Table
from shared import load_average, write_result

TOKENS, BATCH, GROUP, BUFFER = 512, 8, 500, 1000
Row = Any
Reader = Callable[[Path, random.Random | None], Iterator[Row]]


def buffered(rows: Iterable[Row], rng: random.Random | None) -> Iterator[Row]:
    """Through a buffer, from which a random row goes for each that comes."""
    held: list[Row] = []
    for row in rows:
        if rng is None:
            yield row
            continue
        held.append(row)
        if len(held) > BUFFER:
            place = rng.randrange(len(held))
            held[place], held[-1] = held[-1], held[place]
            yield held.pop()
    if rng is not None:
        rng.shuffle(held)
    yield from held


def write_jsonl(folder: Path, rows: np.ndarray) -> None:
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({"input_ids": row.tolist()}) + "\n")


def read_jsonl(folder: Path, rng: random.Random | None) -> Iterator[Row]:
    with (folder / "rows.jsonl").open("rb") as file:
        yield from buffered((json.loads(line)["input_ids"] for line in file), rng)


def write_parquet(folder: Path, rows: np.ndarray) -> None:
    pq.write_table(
        pa.table({"input_ids": list(rows)}), folder / "rows.parquet", compression="zstd", row_group_size=GROUP
    )


def read_parquet(folder: Path, rng: random.Random | None) -> Iterator[Row]:
    file = pq.ParquetFile(folder / "rows.parquet")
    groups = list(range(file.num_row_groups))
    if rng is not None:
        rng.shuffle(groups)
    for group in groups:
        column = file.read_row_group(group)["input_ids"].combine_chunks()
        rows = column.values.to_numpy().reshape(len(column), -1)
        yield from rows if rng is None else (rows[place] for place in rng.sample(range(len(rows)), len(rows)))


def write_arrow(folder: Path, rows: np.ndarray) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset(pa.table({"input_ids": list(rows)})).save_to_disk(str(folder / "arrow"))


def read_arrow(folder: Path, rng: random.Random | None) -> Iterator[Row]:
    import datasets

    held = datasets.load_from_disk(str(folder / "arrow")).with_format("numpy")
    order = list(range(len(held)))
    if rng is not None:
        rng.shuffle(order)
    for start in range(0, len(order), BATCH):  # as a loader asks: a batch at a time
        yield from held[order[start : start + BATCH]]["input_ids"]


def write_webdataset(folder: Path, rows: np.ndarray) -> None:
    import webdataset

    with webdataset.TarWriter(str(folder / "rows.tar")) as file:
        for number, row in enumerate(rows):
            file.write({"__key__": f"{number:08}", "input_ids.npy": row})


def read_webdataset(folder: Path, rng: random.Random | None) -> Iterator[Row]:
    import webdataset

    held = webdataset.WebDataset(str(folder / "rows.tar"), shardshuffle=False, empty_check=False).decode()
    yield from buffered((row["input_ids.npy"] for row in held), rng)


LAYOUTS: dict[str, tuple[Callable[[Path, np.ndarray], None], Reader]] = {
    "JSONL": (write_jsonl, read_jsonl),
    "Parquet": (write_parquet, read_parquet),
    "WebDataset": (write_webdataset, read_webdataset),
    "Arrow, memory-mapped": (write_arrow, read_arrow),
}


def pass_over(read: Reader, folder: Path, rng: random.Random | None) -> tuple[float, float, int]:
    """CPU seconds to the first batch, CPU seconds of all, and the sum of all tokens, which no layout may change."""
    began = time.process_time()
    batch: list[Row] = []
    first, total = 0.0, 0
    for row in read(folder, rng):
        batch.append(row)
        if len(batch) == BATCH:
            tensor = torch.as_tensor(np.asarray(batch, dtype=np.int32))
            first = first or time.process_time() - began
            total += int(tensor.sum())
            batch = []
    return first, time.process_time() - began, total


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Write all, read all in turns, print the table; exit with 1 where a layout gives other tokens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    rows = np.random.default_rng(0).zipf(1.3, (options.rows // BATCH * BATCH, TOKENS)).clip(max=49_000).astype(np.int32)
    told: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as held:
        folders = {name: Path(held) / str(number) for number, name in enumerate(LAYOUTS)}
        for name, (write, _) in LAYOUTS.items():
            folders[name].mkdir()
            began = time.process_time()
            write(folders[name], rows)
            told[name] = {"write_cpu_seconds": round(time.process_time() - began, 3), "bytes": size_of(folders[name])}
        times: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        right = True
        for number in range(options.rounds):
            for shuffled in (False, True):
                for name in list(LAYOUTS)[:: 1 if number % 2 == 0 else -1]:
                    rng = random.Random(number) if shuffled else None
                    first, seconds, total = pass_over(LAYOUTS[name][1], folders[name], rng)
                    right = right and total == int(rows.sum(dtype=np.int64))
                    times.setdefault((name, shuffled), []).append((first, seconds))
    table = Table("layout", "MB", "tokens/CPU second in order", "shuffled", "first batch", title="The same packed rows")
    for name, one in told.items():
        for shuffled, word in ((False, "in_order"), (True, "shuffled")):
            taken = [seconds for _, seconds in times[name, shuffled]]
            one[f"tokens_per_cpu_second_{word}"] = round(rows.size / statistics.median(taken))
            one[f"first_batch_cpu_seconds_{word}"] = round(
                statistics.median(one for one, _ in times[name, shuffled]), 4
            )
        rates = [f"{one[f'tokens_per_cpu_second_{word}'] / 1e6:.1f} M" for word in ("in_order", "shuffled")]
        table.add_row(
            name, f"{one['bytes'] / 1e6:.1f}", *rates, f"{one['first_batch_cpu_seconds_shuffled'] * 1000:.0f} ms"
        )
    Console(width=110).print(table)
    figures = {"load_average_before": load, "rows": len(rows), "tokens_per_row": TOKENS, "layouts": told}
    if options.json:
        write_result(options.json, "layouts", started, figures, ("webdataset", "pyarrow", "datasets"))
    raise SystemExit(int(not right))


if __name__ == "__main__":
    main()
