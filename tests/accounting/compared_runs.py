"""Records of runs whose steps have noise, to be compared."""

import json

import numpy as np
import yaml

from tests.accounting.made_records import end, facts, lines, process, span, step, train

RECIPE = {
    "name": "r", "objective": "sft", "model": {"id": "m"}, "output_dir": "x",
    "data": {"train": [{"path": "d.jsonl"}], "eval": [{"path": "e.jsonl"}]},
    "train": {"learning_rate": 0.1, "seed": 1},
}  # fmt: skip


def write_run(
    folder, *, steps=60, seconds=0.01, noise=0.01, seed=1, data=1, loss=2.0, peak=1000, ended="done", price=None,
    torch="2.0", recipe=None, evaluations=(), settings=None,
):  # fmt: skip
    """A step takes ``seconds`` for each of its tokens, and ``noise`` more or less; ``data`` draws the batches, ``seed``
    the noise. ``recipe`` replaces keys of ``train``, or sections. The loss falls with the tokens. Returns its folder"""
    generator = np.random.default_rng(seed)
    tokens = np.random.default_rng(data).integers(50, 150, steps).tolist()
    at, made, trained = 0.0, [], 0
    for number, count in enumerate(tokens, start=1):
        wall = round(seconds * count * float(np.exp(generator.normal(0, noise))), 6)
        trained += count
        record = step(number, round(at, 6), wall, tokens=(200, count, count), forward=wall)
        record["loss"] = round(loss + 1000 / (1000 + trained) + float(generator.normal(0, 0.001)), 5)
        made.append(record)
        at += wall
    output = folder / "efficiency"
    lines(output / "steps.jsonl", *made)
    notes = [{"kind": "evaluation", "process": 0, "step": one, "metrics": {"loss": held}} for one, held in evaluations]
    told = facts(environment={"python": "3.11", "memory_bytes": 2**30, "versions": {"torch": torch}})
    if price is not None:
        told["facts"]["price"] = {"price_usd_per_hour": price, "source": "by hand", "estimated": False}
    if settings is not None:
        told["facts"]["settings"] = settings
    last = end(at + 3, ended=ended, error=None if ended == "done" else "killed", peak_rss_bytes=peak)
    lines(output / "spans.jsonl", process(), span(0.0, imports=2.0), train(0, 2.0), told, *notes, last)
    held = json.loads(json.dumps(RECIPE)) | {"output_dir": str(folder)}
    for key, value in (recipe or {}).items():
        if isinstance(held.get(key), dict) or key not in held:
            held.setdefault(key, {}).update(value)
        else:
            held[key] = value
    (output / "recipe.resolved.yaml").write_text(yaml.safe_dump({"recipe": held, "provenance": {}, "environment": {}}))
    return folder
