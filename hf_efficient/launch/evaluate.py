"""Benchmark tasks of lm-evaluation-harness on a run's model, and on its base: the harness's own numbers, paired."""

import importlib.metadata
import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from hf_efficient.data.sources import replaced
from hf_efficient.errors import ModelError, SetupError, first_line, writing
from hf_efficient.estimate.statistics import paired_test
from hf_efficient.launch.checkpoints import EFFICIENCY
from hf_efficient.launch.merge import TrainedAdapter, recipe_of_run
from hf_efficient.launch.trained import find_source, load_source
from hf_efficient.model.load import load_dense_base, load_tokenizer, on_accelerator
from hf_efficient.recipe.schema import ModelSection
from hf_efficient.records.trained_model import EVALUATION_JSON, EVALUATION_VERSION, TaskScore, TaskScores
from hf_efficient.run_dir.json_file import strict_json, write_whole

_TASK_NAME = re.compile(r"^(?:task|group):\s*[\"']?([\w.-]+)[\"']?\s*$", re.MULTILINE)
_ERROR = "_stderr"


@dataclass(frozen=True)
class Evaluation:
    """How the tasks are run. ``few_shot`` and ``limit``: None for the task's own, and all examples."""

    tasks: tuple[str, ...]
    few_shot: int | None = None
    limit: int | None = None
    batch_size: int = 8
    template: bool = False


def evaluate_model(
    target: str, how: Evaluation, *, with_base: bool = True, trust_remote_code: bool = False
) -> TaskScores:
    """Scores of a run directory, or of a model's folder or hub name. Of a run, they are also written to
    ``efficiency/evaluation.json``. ``with_base``: of a run, the model that it was trained from too; of a full fine-tune
    that is loaded first, and let go. Raises ``ImportError``: lm-eval is not installed; ``SetupError``: a task is not
    known, or its data are not here; ``ModelError``: one of the models cannot be loaded."""
    harness = _harness()
    names, manager = _tasks(harness, how.tasks)
    run, source = Path(target).expanduser(), find_source(target, trust_remote_code=trust_remote_code)
    seconds = 0.0

    def scored(model: Any, tokenizer: Any) -> dict[str, Any]:
        nonlocal seconds
        started = time.perf_counter()
        found = _run(harness, model, tokenizer, names, manager, how)
        seconds += time.perf_counter() - started
        return found

    before, base = None, None
    is_whole = with_base and isinstance(source, ModelSection)
    recipe = recipe_of_run(run, trust_remote_code=trust_remote_code) if is_whole else None
    if recipe is not None:
        base = recipe.model.id
        before = scored(_loaded_base(recipe.model, run), load_tokenizer(ModelSection(id=target), {}))
    model, tokenizer = load_source(source)
    after = scored(model, tokenizer)
    if with_base and isinstance(source, TrainedAdapter):
        base = source.model.id
        with model.disable_adapter():
            before = scored(model, tokenizer)
    version = importlib.metadata.version("lm-eval")
    device = str(next(model.parameters()).device)
    scores = _scores(after, before)
    found = TaskScores(
        EVALUATION_VERSION, target, base, version, how.template, how.limit, how.batch_size, device, seconds, scores
    )
    if (run / EFFICIENCY).is_dir():
        path = run / EFFICIENCY / EVALUATION_JSON
        with writing("output_dir", path):
            write_whole(path, strict_json(found))
    return found


def _loaded_base(model: ModelSection, run: Path) -> Any:
    """In the dtype that the run was saved in, with transformers' default attention, as the run's own model."""
    saved = json.loads((run / "config.json").read_text(encoding="utf-8"))
    dtype = saved.get("dtype") or saved.get("torch_dtype") or "auto"
    try:
        base = load_dense_base(model.model_copy(update={"attn_implementation": None, "dtype": dtype}))
    except (ModelError, SetupError) as error:
        raise ModelError(f"{error} `--no-base` scores the trained model alone.") from error
    return on_accelerator(base).eval()


def _harness() -> Any:
    import lm_eval
    import lm_eval.evaluator
    import lm_eval.models.huggingface
    import lm_eval.tasks

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return lm_eval


def _tasks(harness: Any, asked: Sequence[str]) -> tuple[list[str], Any]:
    """Names, and a manager that knows them; each is loaded once, so that what is missing is named before the model."""
    files = [Path(one) for one in asked if one.endswith((".yaml", ".yml"))]
    for path in files:
        if not path.is_file():
            raise SetupError(f"--tasks {path} does not exist. Write a task file of lm-eval, or the name of a task.")
    manager = harness.tasks.TaskManager(include_path=sorted({str(path.parent) for path in files}) or None)
    names = [_name_in(Path(one)) if Path(one) in files else one for one in asked]
    for name in names:
        if name not in manager.all_tasks:
            raise SetupError(f"--tasks {name} is not a task of lm-eval. `lm-eval ls tasks` lists them.")
        try:
            with _faults_of([name]):
                manager.load([name])
        except (OSError, ValueError, RuntimeError) as error:  # datasets wraps what its network raises
            raise SetupError(
                f"--tasks {name} cannot be loaded: {first_line(error)}. Its data may need a network. A task file names "
                "a local file by `dataset_path: json` and `dataset_kwargs: {data_files: FILE}`."
            ) from error
    return names, manager


@contextmanager
def _faults_of(names: Sequence[str]) -> Iterator[None]:
    """What lm-eval raises of a task file that asks for a column, a split or a metric that is not there."""
    try:
        yield
    except (TemplateError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {first_line(error)}"
        raise SetupError(
            f"--tasks {' '.join(names)}: the task file does not work ({what}). Its templates name columns of its "
            "data, its splits those that are there, its metrics those of lm-eval."
        ) from error


def _name_in(path: Path) -> str:
    found = _TASK_NAME.search(path.read_text(encoding="utf-8"))
    if not found:
        raise SetupError(f"--tasks {path} has no line `task: NAME`. Each task file of lm-eval has one.")
    return found[1]


def _run(harness: Any, model: Any, tokenizer: Any, names: list[str], manager: Any, how: Evaluation) -> dict[str, Any]:
    wrapped = harness.models.huggingface.HFLM(pretrained=model, tokenizer=tokenizer, batch_size=how.batch_size)
    # git prints an error where there is no repository
    with replaced(harness.evaluator, "get_git_commit_hash", lambda: None), _faults_of(names):
        return harness.simple_evaluate(
            model=wrapped,
            tasks=names,
            task_manager=manager,
            num_fewshot=how.few_shot,
            limit=how.limit,
            apply_chat_template=how.template,
            batch_size=how.batch_size,
            log_samples=True,
        )


def _scores(after: dict[str, Any], before: dict[str, Any] | None) -> list[TaskScore]:
    found = []
    for task, metrics in after["results"].items():
        for key, value in metrics.items():
            metric, _, filter_name = key.partition(",")
            if filter_name and not metric.endswith(_ERROR) and isinstance(value, (int, float)):
                found.append(_score(task, metric, filter_name, after, before))
    return found


def _score(task: str, metric: str, filter_name: str, after: dict[str, Any], before: dict[str, Any] | None) -> TaskScore:
    def value(results: dict[str, Any], name: str) -> float | None:
        number = results["results"][task].get(f"{name},{filter_name}")
        return float(number) if isinstance(number, (int, float)) else None

    def of_examples(results: dict[str, Any]) -> dict[Any, float]:
        rows = results.get("samples", {}).get(task, [])
        return {
            row["doc_id"]: float(row[metric])
            for row in rows
            if row.get("filter", filter_name) == filter_name and isinstance(row.get(metric), (int, float))
        }

    own = of_examples(after)
    base = of_examples(before) if before else {}
    is_paired = bool(own) and own.keys() == base.keys()
    main = value(after, metric)
    assert main is not None  # the caller read it
    counts = after.get("n-samples", {}).get(task, {})
    return TaskScore(
        task=task,
        metric=metric,
        filter=filter_name,
        few_shot=int(after.get("n-shot", {}).get(task) or 0),
        samples=int(counts.get("effective", len(own))),
        higher_is_better=after.get("higher_is_better", {}).get(task, {}).get(metric) is not False,
        after=main,
        after_error=value(after, metric + _ERROR),
        before=value(before, metric) if before else None,
        before_error=value(before, metric + _ERROR) if before else None,
        paired=paired_test([base[key] for key in own], list(own.values())) if is_paired else None,
    )
