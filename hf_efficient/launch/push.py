"""A run to the hub: the model's own files, and a card with the run's headline figures and scores; nothing private."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from hf_efficient.accounting.account import load_run
from hf_efficient.accounting.live import headline
from hf_efficient.errors import HfEfficientError, ModelError, OutputError, SetupError, first_line
from hf_efficient.facts.models import licence_of
from hf_efficient.launch.card import card_table, hub_name
from hf_efficient.launch.merge import check_whole, recipe_of_run, without_adapter
from hf_efficient.records.account import RunAccount
from hf_efficient.records.trained_model import EVALUATION_JSON, EVALUATION_VERSION, TaskScores
from hf_efficient.run_dir.json_file import read_record
from hf_efficient.text import seconds, share, size

_FILES = (
    "adapter_config.json", "config.json", "generation_config.json", "chat_template.jinja", "vocab.json", "merges.txt",
    "*.safetensors", "*.safetensors.index.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
"""What loads the model. Records, optimizer states, pickles and trainer states are none of it."""
_ADAPTER = "adapter_config.json"


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
    if source.name != _ADAPTER:
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
    card: Any = ModelCard.load(path) if is_ours else ModelCard(f"---\n{_metadata(run)}---\n\n# {run.resolve().name}\n")
    if recipe is not None and (licence := licence_of(recipe.model.id)):
        card.data.license = licence
    card.text = "\n\n".join([card.text.strip(), *_figures(run), *_scores(run)]) + "\n"
    return str(card)


def _metadata(run: Path) -> str:
    adapter = run / _ADAPTER
    base = json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path") if adapter.is_file() else None
    kind = "peft" if adapter.is_file() else "transformers"
    data = ModelCardData(base_model=hub_name(base or ""), library_name=kind, tags=["hf-efficient"])
    return yaml.safe_dump(data.to_dict())


def _figures(run: Path) -> Iterator[str]:
    """Without money, which is the run's owner's own."""
    try:
        account = load_run(run)
    except HfEfficientError:
        return  # a model that our instruments did not see, such as a merged one
    if account.ended in ("error", "died"):
        raise ModelError(f"{run}: the run ended early. Resume it, or push one of its checkpoints.")
    yield "## Figures of the run"
    yield card_table(["", ""], [(name, value) for name, value in _rows(account) if value])


def _rows(account: RunAccount) -> Iterator[tuple[str, str | None]]:
    found = headline(account)
    memory = found["device_peak_allocated_bytes"] or found["peak_rss_bytes"]
    rate, joules, before, after = (
        found[name] for name in ("non_padding_tokens_per_second", "energy_joules", "loss_before", "loss_after")
    )
    yield "steps", f"{account.steps.count:,}"
    yield "time", seconds(account.time.wall_seconds)
    yield "tokens per second, without padding", None if rate is None else f"{rate:,.0f}"
    mfu = found["mfu"]
    yield "MFU", None if mfu is None else share(mfu)
    yield "peak memory", None if memory is None else size(int(memory))
    yield "energy", None if joules is None else f"{joules / 3.6e6:.3g} kWh"
    yield "loss on the evaluation data before", None if before is None else f"{before:.4f}"
    yield "and after", None if after is None else f"{after:.4f}"


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
