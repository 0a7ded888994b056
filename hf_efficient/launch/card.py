"""The model card of a run: README.md with the Hub's metadata, the results and the recipe; and a run to the hub: the
model's own files, and a card with the run's headline figures and scores; nothing private."""

import html
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import yaml
from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from hf_efficient.accounting.account import load_run
from hf_efficient.accounting.live import THROUGHPUT, headline
from hf_efficient.errors import HfEfficientError, ModelError, OutputError, SetupError, first_line, writing
from hf_efficient.facts.models import licence_of
from hf_efficient.launch.merge import ADAPTER_CONFIG, check_whole, recipe_of_run, without_adapter
from hf_efficient.model.prune import RECORD, Pruned
from hf_efficient.recipe.load import rendered
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import QuantizationSection, Recipe, compute_dtype
from hf_efficient.records.trained_model import EVALUATION_JSON, EVALUATION_VERSION, TaskScores
from hf_efficient.reporting.labels import figures
from hf_efficient.reporting.run_rows import machine_rows
from hf_efficient.run_dir.json_file import read_record
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
    return rendered(
        Path(__file__).with_name("usage.md.jinja"),
        model=recipe.model,
        adapter=recipe.adapter,
        base=hub_name(recipe.model.id),
        scores=OBJECTIVES[recipe.objective].scores,
        quantization=quantization,
        compute_dtype=compute_dtype(quantization),
    ).rstrip()


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


_FILES = (
    "adapter_config.json", "config.json", "generation_config.json", "chat_template.jinja", "vocab.json", "merges.txt",
    "*.safetensors", "*.safetensors.index.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
"""What loads the model. Records, optimizer states, pickles and trainer states are none of it."""


@dataclass(frozen=True)
class Upload:
    """``files``: of the run, by name; ``card``: what README.md will say; ``url`` of the commit, once it is there."""

    repository: str
    files: tuple[str, ...]
    bytes: int
    card: str
    url: str | None = None


def push(run: Path, repository: str, *, private: bool = False, dry_run: bool = False) -> Upload:
    """Upload the model of a run that ended. Raises ``SetupError``: the name is no repository's; ``ModelError``: no
    trained model, a damaged one, or a run that did not end; ``OutputError``: the hub refuses or cannot be reached."""
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise SetupError(f"--to: {repository!r} is no repository. Write YOUR_NAME/MODEL_NAME.") from error
    if "/" not in repository:  # valid, and the upload would need the owner
        raise SetupError(f"--to: {repository!r} names no owner. Write YOUR_NAME/{repository}.")
    run = run.expanduser()
    check_whole(run)
    files = sorted({path for pattern in _FILES for path in run.glob(pattern) if path.is_file()})
    if not any(path.suffix == ".safetensors" for path in files):
        raise ModelError(without_adapter(run))
    card = _card(run)
    made = Upload(repository, tuple(path.name for path in files), sum(path.stat().st_size for path in files), card)
    if dry_run:
        return made
    with tempfile.TemporaryDirectory() as folder:
        for path in files:
            _copy(path, Path(folder) / path.name)
        (Path(folder) / "README.md").write_text(card, encoding="utf-8")
        return Upload(repository, made.files, made.bytes, card, _uploaded(Path(folder), repository, private=private))


def _uploaded(folder: Path, repository: str, *, private: bool) -> str:
    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload the model")
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        remedy = "Log in with `hf auth login`, with a token that may write." if status in (401, 403) else "Try again."
        raise OutputError(f"--to: the hub refuses {repository}: {first_line(error)}. {remedy}") from error
    except Exception as error:  # the hub's client raises kinds of its own where there is no network
        its_own = type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2")
        if not its_own and not isinstance(error, OSError):
            raise
        raise OutputError(f"--to: the hub cannot be reached: {first_line(error)}. Try again with a network.") from error
    return str(commit)


def _copy(source: Path, target: Path) -> None:
    """Names a local base by its last part: a path names folders of the machine."""
    if source.name != ADAPTER_CONFIG:
        shutil.copyfile(source, target)
        return
    config = json.loads(source.read_text(encoding="utf-8"))
    base = str(config.get("base_model_name_or_path") or "")
    if hub_name(base) is None:
        config["base_model_name_or_path"] = Path(base).name
    target.write_text(json.dumps(config, indent=2), encoding="utf-8")


def _card(run: Path) -> str:
    """The run's own card, with its figures and scores; a short one where the run wrote none."""
    path, recipe = run / "README.md", recipe_of_run(run, trust_remote_code=True)
    is_checkpoint = run.resolve().name.startswith("checkpoint-")  # whose card is PEFT's, with the machine's paths
    is_ours = recipe is not None and path.is_file() and not is_checkpoint
    card: Any = ModelCard.load(path) if is_ours else _short_card(run)
    if recipe is not None and (licence := licence_of(recipe.model.id)):
        card.data.license = licence
    card.text = "\n\n".join([card.text.strip(), *_figures(run), *_scores(run)]) + "\n"
    return str(card)


def _short_card(run: Path) -> ModelCard:
    adapter = run / ADAPTER_CONFIG
    base = json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path") if adapter.is_file() else None
    kind = "peft" if adapter.is_file() else "transformers"
    data = ModelCardData(base_model=hub_name(base or ""), library_name=kind, tags=["hf-efficient"])
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n# {run.resolve().name}\n")


def _figures(run: Path) -> Iterator[str]:
    """Without money, which is the run's owner's own."""
    try:
        account = load_run(run)
    except HfEfficientError:
        return  # a model that our instruments did not see, such as a merged one
    if account.ended in ("error", "died"):
        raise ModelError(f"{run}: the run ended early. Resume it, or push one of its checkpoints.")
    yield "## Figures of the run"
    found, forms = headline(account), figures("compared")
    peak = "peak_rss_bytes" if found["device_peak_allocated_bytes"] is None else "device_peak_allocated_bytes"
    names = ("steps", "wall_seconds", THROUGHPUT, "mfu", peak, "energy_joules", "loss_before", "loss_after")
    known = [(forms[name], value) for name in names if (value := found[name]) is not None]
    yield card_table(["", ""], [(label, form(value)) for (label, form), value in known])


def _scores(run: Path) -> Iterator[str]:
    path = run / "efficiency" / EVALUATION_JSON
    if not path.is_file():
        return
    found: Any = read_record(path, TaskScores, EVALUATION_VERSION, "an evaluation")
    rows = [
        (f"{one.task} {one.metric}", "" if one.before is None else f"{one.before:.4f}", f"{one.after:.4f}")
        for one in found.scores
    ]
    yield f"## Benchmark tasks (lm-eval {found.lm_eval})"
    yield card_table(["task", "before", "after"], rows)
