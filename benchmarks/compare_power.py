"""How often `compare` and `tune` take noise for a difference, and how often they find one: on recorded noise.

Noise is that of real runs, whose steps lie in recorded_steps.json: seconds and tokens. A comparison draws both of its
runs from one recording, in blocks of neighbouring steps (stationary bootstrap, 25 steps on average), so that neighbours
stay alike. Unpaired, each run draws its own steps. In pairs, both train the same batches: the noise
around the line of seconds by tokens is drawn for each, and put on the same tokens. The second is slowed down. Of
`tune`, the search itself runs on trials that are drawn like that, and its one candidate is faster.

    python benchmarks/compare_power.py --json benchmarks/results/compare_power.json
    python benchmarks/compare_power.py --record NAME RUN_DIR     add a run's steps to recorded_steps.json
    python benchmarks/compare_power.py --figures     which figure of 200 steps finds 3%, were its noise known
"""

import argparse
import datetime
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from shared import load_average, result_text, write_result

from hf_efficient.accounting.comparison import BY_STEPS, compared_speed
from hf_efficient.accounting.live import THROUGHPUT
from hf_efficient.accounting.steps import read_columns
from hf_efficient.estimate.significance import ERROR, Steps, needed
from hf_efficient.estimate.throughput import pair_slopes
from hf_efficient.recipe.load import change_recipe, load_recipe, read_resolved
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.records.tuning import TrialRun
from hf_efficient.run_dir.paths import records_folder
from hf_efficient.trials.goal import Goal, Wanted
from hf_efficient.trials.knobs import KNOBS
from hf_efficient.trials.search import LEAST_GAIN, MOST_ROUNDS, Search

RECORDED = Path(__file__).with_name("recorded_steps.json")
COMPARISONS = 200
METHODS = ("paired_steps", "tune", "steps")
DIFFERENCES = {100: (0.0,), 200: (0.0, 0.01, 0.03, 0.05, 0.10)}
"""Planted slowdowns, by steps of each run; `tune` gets those of 200 as gains."""
TARGET = {"claims_at_0": 0.05, "found_at_3_percent_of_200_steps": 0.80}
_BLOCK = 25
_ERROR = ERROR / len(BY_STEPS)  # as `compare` shares it
_TRIED, _MOST_STEPS, _TUNINGS = "optimizer", 200, 5
"""The knob that a drawn tuning tries; steps of a trial; tunings for each comparison, more since few of them claim."""

Pair = tuple[Steps, Steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--record", nargs=2, metavar=("NAME", "RUN_DIR"), help="add a run's steps, and do no more")
    parser.add_argument("--figures", action="store_true", help="the power of other figures, and do no more")
    parser.add_argument("--comparisons", type=int, default=COMPARISONS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    options = parser.parse_args()
    if options.record:
        record(*options.record)
        return
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    recordings = {
        name: Steps(np.array(held["seconds"]), np.array(held["tokens"], float))
        for name, held in json.loads(RECORDED.read_text(encoding="utf-8")).items()
    }
    if options.figures:
        powers = {name: powers_of(held, options.comparisons) for name, held in recordings.items()}
        for name in FIGURES:
            print(f"{name:<30} " + "  ".join(f"{found[name]:>4.0%}" for found in powers.values()))
        if options.json:
            write_result(options.json, "compare_power_figures", started, {"powers": powers})
        return
    rows: list[dict[str, Any]] = []
    figures = {
        "load_average_at_start": load,
        "target": TARGET,
        "comparisons": {"without a difference": options.comparisons, "with one": options.comparisons // 2},
        "noise": {name: noise_of(held) for name, held in recordings.items()},
        "block": _BLOCK,
        "tune": {"most_rounds": MOST_ROUNDS, "least_gain": LEAST_GAIN, "tunings_for_each_comparison": _TUNINGS},
        "rows": rows,
    }
    for method in options.methods:
        for name, held in recordings.items():
            for row in rows_of(name, held, options.comparisons, method):
                curve = "  ".join(f"{difference:>5}: {share:.1%}" for difference, share in row["claims"].items())
                curve += f"  3% asks for {row['steps_for_3_percent']:,} steps" if "steps_for_3_percent" in row else ""
                length = f"{row['steps']:>4} steps" if "steps" in row else ""
                print(f"{name:<24} {method:<12} {length:<10}  {curve}", flush=True)
                rows.append(row)
                if options.json:
                    write_result(options.json, "compare_power", started, figures)


def record(name: str, run_dir: str) -> None:
    """Steps after warm-up, without evaluation and checkpointing, and what they were of."""
    folder = records_folder(run_dir)
    columns = read_columns(folder / "steps.jsonl")
    kept = columns.steady
    recipe = read_resolved(folder / "recipe.resolved.yaml")
    versions = recipe.environment.get("versions") or {}
    keys = ("model.id", "adapter.method", "train.max_length", "train.packing", "train.per_device_train_batch_size")
    held = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    held[name] = {
        "recipe": {one.key: one.value for one in recipe.values if one.key in keys},
        "cpu": recipe.environment.get("cpu"),
        "usable_cores": recipe.environment.get("usable_cores"),
        "versions": {one: versions.get(one) for one in ("torch", "transformers", "hf_efficient")},
        "seconds": [round(value, 6) for value in columns.step_seconds[kept].tolist()],
        "tokens": [int(value) for value in columns.non_padding[kept].tolist()],
    }
    RECORDED.write_text(result_text(held), encoding="utf-8")


def rows_of(name: str, recorded: Steps, comparisons: int, method: str) -> Iterator[dict[str, Any]]:
    """Shares of the comparisons that claim a difference, by steps and planted slowdown."""
    line = _line(recorded)
    if method == "tune":
        claims = {
            str(planted): _share(_number(_TUNINGS * comparisons, planted), _tunings(recorded, line, planted))
            for planted in DIFFERENCES[200]
        }
        yield {"recording": name, "method": method, "claims": claims}
        return
    paired = method == "paired_steps"
    draw = _in_pairs(recorded, line) if paired else _alone(recorded)
    for steps, differences in DIFFERENCES.items():
        claims = {
            str(planted): _share(_number(comparisons, planted), _differs(draw, steps, planted, paired))
            for planted in differences
        }
        row = {"recording": name, "method": method, "steps": steps, "claims": claims}
        yield {**row, "steps_for_3_percent": _wanted_steps(draw, steps, paired)}


def _shorth(values: np.ndarray) -> float:
    """The mean of the shortest half."""
    ordered, half = np.sort(values), -(-len(values) // 2)
    place = int((ordered[half - 1 :] - ordered[: len(ordered) - half + 1]).argmin())
    return float(ordered[place : place + half].mean())


FIGURES: dict[str, Callable[[np.ndarray], Any]] = {
    "mean": np.mean,
    "median": np.median,
    "mean without the outer fifths": lambda held: np.sort(held)[len(held) // 5 : -(len(held) // 5)].mean(),
    "20% quantile": lambda held: np.quantile(held, 0.2),
    "10% quantile": lambda held: np.quantile(held, 0.1),
    "2% quantile": lambda held: np.quantile(held, 0.02),
    "mean of the shortest half": _shorth,
}
"""Of the logarithms of the steps' times, each over that of its work by the line of seconds and tokens."""


def powers_of(recorded: Steps, comparisons: int) -> dict[str, float]:
    """Shares in which 3% of 200 steps is beyond 95% of the same figure's differences without one: no test of this
    figure does better, since none knows the noise so well."""
    line = _line(recorded)
    draw, found = _in_pairs(recorded, line), dict[str, list[float]]()
    for seed in range(comparisons):
        before, after = draw(200, 0.0, seed)
        assert before.per is not None
        work = np.log(line[0] + line[1] * before.per)
        for name, figure in FIGURES.items():
            difference = figure(np.log(after.seconds) - work) - figure(np.log(before.seconds) - work)
            found.setdefault(name, []).append(float(difference))
    return {
        name: float(np.mean(np.abs(np.array(held) + np.log(1.03)) > np.quantile(np.abs(held), 0.95)))
        for name, held in found.items()
    }


def _number(comparisons: int, planted: float) -> int:
    return comparisons // 2 if planted else comparisons


def _wanted_steps(draw: Callable[[int, float, int], Pair], steps: int, paired: bool) -> int:
    """How many steps `compare` asks for to find 3% in throughput: the median over 20 comparisons."""
    found = [compared_speed(*draw(steps, 0.0, seed), paired=paired, error=_ERROR) for seed in range(20)]
    asked = [needed(one[THROUGHPUT], 0.03) for one in found]
    return round(statistics.median(one for one in asked if one is not None))


def _share(comparisons: int, claims: Callable[[int], bool]) -> float:
    return sum(map(claims, range(comparisons))) / comparisons


def _differs(
    draw: Callable[[int, float, int], Pair], steps: int, planted: float, paired: bool
) -> Callable[[int], bool]:
    """Whether `compare` claims that throughput, median or p95 of the steps differ."""
    return lambda seed: any(
        one.differs for one in compared_speed(*draw(steps, planted, seed), paired=paired, error=_ERROR).values()
    )


def noise_of(recorded: Steps) -> dict[str, float]:
    """What is left of a step's time beside the line by its tokens: deviation as a share, correlation of neighbours."""
    assert recorded.per is not None
    line = _line(recorded)
    left = np.log(recorded.seconds / (line[0] + line[1] * recorded.per))
    return {
        "deviation": round(float(left.std()), 4),
        **{f"correlation_{lag}": round(float(np.corrcoef(left[lag:], left[:-lag])[0, 1]), 2) for lag in (1, 10)},
    }


def places(count: int, length: int, generator: np.random.Generator) -> np.ndarray:
    """Of a stationary bootstrap: a block goes on with probability 1 - 1 / 25 (Politis and Romano, 1994)."""
    found = [int(generator.integers(length))]
    while len(found) < count:
        begins = generator.random() < 1 / _BLOCK
        found.append(int(generator.integers(length)) if begins else (found[-1] + 1) % length)
    return np.array(found)


def _line(recorded: Steps) -> tuple[float, float]:
    """Seconds of a step without tokens, and of a token: Theil and Sen's line; of equal steps their median alone."""
    assert recorded.per is not None
    slopes = pair_slopes(recorded.per, recorded.seconds, least_share=0.1) if np.ptp(recorded.per) else np.zeros(0)
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    return float(np.median(recorded.seconds - slope * recorded.per)), slope


def _in_pairs(recorded: Steps, line: tuple[float, float]) -> Callable[[int, float, int], Pair]:
    assert recorded.per is not None
    tokens = recorded.per
    noise = recorded.seconds / (line[0] + line[1] * tokens)

    def draw(steps: int, planted: float, seed: int) -> Pair:
        generator = np.random.default_rng(seed)
        batches = tokens[places(steps, len(tokens), generator)]
        work = line[0] + line[1] * batches
        mine, its = (noise[places(steps, len(noise), generator)] for _ in range(2))
        return Steps(work * mine, batches), Steps((1 + planted) * work * its, batches)

    return draw


def _alone(recorded: Steps) -> Callable[[int, float, int], Pair]:
    assert recorded.per is not None
    tokens = recorded.per

    def draw(steps: int, planted: float, seed: int) -> Pair:
        generator = np.random.default_rng(seed)
        mine, its = (places(steps, len(tokens), generator) for _ in range(2))
        return Steps(recorded.seconds[mine], tokens[mine]), Steps((1 + planted) * recorded.seconds[its], tokens[its])

    return draw


def _tunings(recorded: Steps, line: tuple[float, float], planted: float) -> Callable[[int], bool]:
    """Whether `tune` accepts the one change that it tries, which is faster by what is planted. Its own search runs, on
    trials that are drawn: all train the same batches, for as long as it asks."""
    tokens = recorded.per
    assert tokens is not None
    noise = recorded.seconds / (line[0] + line[1] * tokens)
    recipe = load_recipe("quickstart/lora", ["train.optim=adamw_torch"])
    goal = Goal(without=frozenset(knob.name for knob in KNOBS) - {_TRIED})
    known: dict[str, Settings] = {}

    def settings_of(changes: Mapping[str, Any]) -> Settings:
        key = repr(changes)
        if key not in known:
            known[key] = Settings(change_recipe(recipe, changes), train_fields(recipe.objective))
        return known[key]

    def claims(seed: int) -> bool:
        generator = np.random.default_rng(seed)
        batches = tokens[places(_MOST_STEPS, len(tokens), generator)]

        def measure(changes: Mapping[str, Any], wanted: Wanted) -> TrialRun:
            took = noise[places(_MOST_STEPS, len(noise), generator)] * (line[0] + line[1] * batches)
            took = took / (1 + planted) if changes else took
            count = max(wanted.steps, int(np.searchsorted(np.cumsum(took), wanted.seconds)) + 1)
            held = batches[:count].astype(int).tolist()
            about: dict[str, Any] = {"row_tokens": 1.0, "device": "cpu", "fast_bfloat16": True, "weights": "float32"}
            return TrialRun(took[:count].tolist(), held, held, **about, loss=1.0)

        search = Search(goal, settings_of, measure, _Silent())
        search.go()
        assert [one.knob for one in search.tried] == [_TRIED]
        return search.tried[0].verdict == "accepted"

    return claims


class _Silent:
    def begins(self, what: str) -> None: ...

    def ends(self, what: str) -> None: ...


if __name__ == "__main__":
    main()
