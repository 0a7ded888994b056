"""A machine that trains nothing: what a trial takes follows from the recipe's changes."""

import math
import random
from typing import Any

from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.records.tuning import TrialRun
from hf_efficient.trials.goal import Goal
from hf_efficient.trials.search import Search
from tests.conftest import small_recipe

NAIVE: dict[str, Any] = {
    "max_steps": 400, "max_length": 512, "pad_to_multiple_of": 512, "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 4, "bf16": False, "gradient_checkpointing": True, "eval_strategy": "steps",
    "eval_steps": 5, "save_steps": 5,
}  # fmt: skip
TIMES = {"train.packing": 0.4, "train.bf16": 0.5, "train.gradient_checkpointing": 0.8}
"""What is left of a step's time, by the key that is changed."""


class Machine:
    """``times`` and ``memory`` are factors, ``losses`` factors of the loss, by changed key; ``faults`` are raised."""

    def __init__(self, times=TIMES, memory=(), losses=(), faults=(), noise=0.005, seed=0, **run: Any) -> None:
        self.times, self.memory, self.losses, self.faults = dict(times), dict(memory), dict(losses), dict(faults)
        self.noise, self.run, self.random = noise, run, random.Random(seed)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, changes, wanted):
        self.asked.append(dict(changes))
        for key, fault in self.faults.items():
            if key is None or key in changes:
                raise fault
        seconds = 2.0 * math.exp(self.noise * self.random.gauss(0, 1)) * product(self.times, changes)
        held = {
            "step_seconds": [seconds] * 6, "step_tokens": [800] * 6, "step_positions": [2048] * 6, "row_tokens": 200.0,
            "device": "cpu", "fast_bfloat16": True, "weights": "float32", "loss": 2.0 * product(self.losses, changes),
            "loss_tokens": 6400, "peak_bytes": round(1e9 * product(self.memory, changes)), "steps": 400,
            "wall_seconds": 10 + 8 * seconds,
        }  # fmt: skip
        pauses = {"evaluation_seconds": 4.0, "save_seconds": 0.5} if wanted.pauses else {}
        return TrialRun(**{**held, **pauses, **self.run})


class SweptMachine:
    """A step takes 1 s and half a second for each row, which has 100 tokens; ``faults`` are raised, by rows and length.
    A trial takes 10 s more than a step, and one that plans takes more memory."""

    def __init__(self, faults=()) -> None:
        self.faults = dict(faults)
        self.asked: list[tuple[dict[str, Any], Any]] = []
        self.walls: list[float] = []

    def __call__(self, values, wanted):
        self.asked.append((dict(values), wanted))
        rows, length = values["train.per_device_train_batch_size"], values.get("train.max_length", 512)
        if (rows, length) in self.faults:
            raise self.faults[rows, length]
        seconds = 1 + 0.5 * rows
        self.walls.append(10 + seconds)
        return TrialRun(
            step_seconds=[seconds] * 5, step_tokens=[100 * rows] * 5, step_positions=[100 * rows] * 5, row_tokens=100.0,
            device="cpu", fast_bfloat16=True, weights="float32", peak_bytes=5000 if wanted.plan else 1000,
            wall_seconds=10 + seconds,
        )  # fmt: skip


def product(factors, changes):
    return math.prod(factor for key, factor in factors.items() if key in changes)


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def begins(self, what):
        self.lines.append(what)

    def ends(self, what):
        self.lines[-1] += f": {what}"


def searched(machine, train=NAIVE, **goal: Any) -> Search:
    recipe = small_recipe(
        adapter={"method": "lora"}, data={"train": [{"path": "x"}], "eval_fraction": 0.1}, train=dict(train)
    )

    def settings_of(changes):
        return Settings(change_recipe(recipe, changes), train_fields("sft"))

    search = Search(Goal(**{"minutes": 60.0, **goal}), settings_of, machine, Heard())
    search.go()
    return search


def accepted(search: Search) -> list[str]:
    return [one.knob for one in search.tried if one.verdict == "accepted"]


def verdict(search: Search, knob: str) -> str:
    return next(one.verdict for one in search.tried if one.knob == knob)
