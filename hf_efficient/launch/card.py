"""The model card of a run: README.md with the Hub's metadata, the results and the recipe."""

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from hf_efficient.errors import writing
from hf_efficient.model.prune import RECORD, Pruned
from hf_efficient.recipe.load import rendered
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import QuantizationSection, Recipe, compute_dtype
from hf_efficient.reporting.run_rows import machine_rows
from hf_efficient.text import seconds

_PROSE = ("description", "system")
_DATA_FILES = {".jsonl", ".json", ".csv", ".parquet", ".gguf"}


def write_model_card(
    folder: Path, recipe: Recipe, results: Mapping[str, float], environment: Mapping[str, Any], data: Mapping[str, Any]
) -> Path:
    """Write ``README.md``, in place of the one that PEFT or the Trainer wrote; of absolute paths only the last part.
    ``results`` holds ``eval_NAME`` and ``eval_NAME_before``; other names are figures of the run."""
    path = folder / "README.md"
    known = {key.replace("_", " "): _without_local_paths(value) for key, value in data.items() if value is not None}
    summary = [(key, _number(value)) for key, value in known.items()]
    details = yaml.safe_dump(_public(recipe), sort_keys=False, allow_unicode=True)
    machine = {key: value for key, value in environment.items() if not key.startswith("git_")}
    versions = environment.get("versions") or {}
    sections = [
        f"# {_literal(recipe.name)}",
        recipe.description,
        "## What was trained",
        card_table(["", ""], [*_training_rows(recipe), *_smaller_rows(folder, recipe)]),
        card_table(["data", ""], summary) if summary else "",
        *_results(results),
        "## How to load it",
        _usage(recipe),
        "## Recipe",
        f"<details>\n<summary>All values, defaults included</summary>\n\n{_fenced(details, 'yaml')}\n\n</details>",
        "## Versions and hardware",
        card_table(["", ""], [*machine_rows(machine), *((name, one) for name, one in versions.items() if one)]),
    ]
    content = f"---\n{_metadata(recipe).to_yaml()}\n---\n\n" + "\n\n".join(part for part in sections if part) + "\n"
    with writing("output_dir", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        ModelCard(content).save(path)
    return path


def _metadata(recipe: Recipe) -> ModelCardData:
    adapter = recipe.adapter
    data_sets = [name for source in recipe.data.train if (name := hub_name(source.path))]
    variants = [name for name, on in (("dora", adapter.dora), ("rslora", adapter.rslora)) if on]
    return ModelCardData(
        base_model=hub_name(recipe.model.id),
        library_name="transformers" if adapter.method == "full" else "peft",
        pipeline_tag="text-classification" if OBJECTIVES[recipe.objective].scores else "text-generation",
        tags=["hf-efficient", recipe.objective, adapter.method, *variants],
        datasets=list(dict.fromkeys(data_sets)) or None,
        model_name=recipe.name,
    )


def hub_name(name: str) -> str | None:
    """None for paths, files, packages and builtins: the Hub refuses a card that names them as ``base_model``."""
    path = Path(name).expanduser()
    if path.exists() or path.suffix.lower() in _DATA_FILES:
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name


def _training_rows(recipe: Recipe) -> list[tuple[str, str]]:
    weights = ["" if source.weight == 1.0 else f" (weight {source.weight:g})" for source in recipe.data.train]
    sources = [f"{_without_local_paths(one.path)}{tail}" for one, tail in zip(recipe.data.train, weights, strict=True)]
    rows = [
        ("base model", str(_without_local_paths(recipe.model.id))),
        ("objective", OBJECTIVES[recipe.objective].title),
        ("method", _method(recipe)),
        ("training data", ", ".join(sources)),
    ]
    names = ("learning_rate", "num_train_epochs", "max_steps", "max_length", "packing", "seed")
    return rows + [(name, _number(recipe.train[name])) for name in names if name in recipe.train]


def _smaller_rows(folder: Path, recipe: Recipe) -> list[tuple[str, str]]:
    """What was taken out, what was rounded in the training, and who taught it."""
    rows, saved = [], folder / "config.json"
    if held := json.loads(saved.read_text(encoding="utf-8")).get(RECORD) if saved.is_file() else None:
        rows.append(("pruned", Pruned(**held).line().removeprefix("pruned: ")))
    if qat := recipe.model.qat:
        rows.append(("rounded in the training", f"weights to {qat.bits} bits, in groups of {qat.group_size}"))
    if distill := recipe.distill:
        bits = f", in {distill.teacher.quantization.bits} bits" if distill.teacher.quantization else ""
        weights = f"; alpha {distill.alpha:g}, temperature {distill.temperature:g}"
        if OBJECTIVES[recipe.objective].generates:
            weights = ", of completions of the model's own"
        rows.append(("teacher", f"{_without_local_paths(distill.teacher.id)}{bits}{weights}"))
    return rows


def _method(recipe: Recipe) -> str:
    adapter = recipe.adapter
    if adapter.method == "full":
        return "full fine-tuning, all weights"
    kind = "DoRA" if adapter.dora else "LoRA"
    scale = "rank-stabilised, " if adapter.rslora else ""
    targets = adapter.target_modules if isinstance(adapter.target_modules, str) else ", ".join(adapter.target_modules)
    text = f"{kind}, {scale}rank {adapter.r}, alpha {adapter.alpha:g}, dropout {adapter.dropout:g}, on {targets}"
    if adapter.modules_to_save:
        text += f"; {', '.join(adapter.modules_to_save)} in full"
    if adapter.method == "qlora":
        section = adapter.quantization or QuantizationSection()
        double = " with double quantization" if section.double_quant else ""
        four = f"4-bit {section.type.upper()}{double}, computed in {compute_dtype(section)}"
        text += f"; base in {'8-bit LLM.int8()' if section.bits == 8 else four}"
    return text


def _results(results: Mapping[str, float]) -> list[str]:
    metrics = list(dict.fromkeys(key.removesuffix("_before") for key in results if key.startswith("eval_")))
    figures = {key: _number(value) for key, value in results.items()}
    rows = [(key.removeprefix("eval_"), figures.get(f"{key}_before", ""), figures.get(key, "")) for key in metrics]
    others = []
    for key, value in results.items():
        if key.endswith("_seconds"):
            others.append((f"{key.removesuffix('_seconds').replace('_', ' ')} time", seconds(value)))
        elif not key.startswith("eval_"):
            others.append((key.replace("_", " "), figures[key]))
    parts = ["## Results"] if results else []
    if any(before for _, before, _ in rows):
        parts.append(card_table(["on the evaluation data", "before", "after"], rows))
    elif rows:
        parts.append(card_table(["on the evaluation data", "after"], [(name, after) for name, _, after in rows]))
    return [*parts, card_table(["run", ""], others)] if others else parts


def _usage(recipe: Recipe) -> str:
    quantization = recipe.adapter.quantization or QuantizationSection()
    text = rendered(
        Path(__file__).with_name("usage.md.jinja"),
        model=recipe.model,
        adapter=recipe.adapter,
        base=hub_name(recipe.model.id),
        scores=OBJECTIVES[recipe.objective].scores,
        quantization=quantization,
        compute_dtype=compute_dtype(quantization),
    )
    return text.rstrip()


def _literal(text: str) -> str:
    """Text on one line that neither Markdown nor HTML reads as its own."""
    return re.sub(r"([\\`*\[\]])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def card_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [[_literal(str(cell)).replace("|", "\\|") for cell in line] for line in (header, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], ["---"] * len(header), *lines[1:]])


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.4g}"


def _fenced(text: str, language: str) -> str:
    """A code block whose fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _public(recipe: Recipe) -> dict[str, Any]:
    """The recipe as the card shows it: no local paths, and not what the run costs or may cost."""
    values = recipe.resolved()
    del values["budget"], values["efficiency"]["confirms"]
    values["cost"] = {"grid": values["cost"]["grid"]}
    return dict(_without_local_paths(values))


def _without_local_paths(value: Any) -> Any:
    """The value with every absolute path in it shortened to its last part; texts that people write stay as they are."""
    if isinstance(value, Mapping):
        return {key: item if key in _PROSE else _without_local_paths(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_local_paths(item) for item in value]
    if not isinstance(value, str):
        return value
    if PureWindowsPath(value).is_absolute():
        return PureWindowsPath(value).name
    return PurePosixPath(value).name or value if value.startswith(("/", "~")) else value
