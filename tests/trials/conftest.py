import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_efficient.trials.process import RESULT, Job, worker_command
from hf_efficient.trials.worker import main


def worked(folder: Path, task: Any, recipe: Path, *overrides: str, **options: Any) -> dict[str, Any]:
    """What a worker leaves in a new folder, in this process."""
    folder.mkdir()
    worker_command(Job(task, str(recipe), overrides, options), folder)
    code = main([str(folder)])
    found: dict[str, Any] = json.loads((folder / RESULT).read_text())
    assert (code == 0) is ("result" in found)
    return found


@pytest.fixture
def recipe_file(tmp_path: Path, tiny_llama_dir: Path, chats_jsonl: Path) -> Path:
    """A full fine-tune of the tiny Llama: 20 chats to train on, 4 to evaluate."""
    values = {
        "name": "tiny",
        "model": {"id": str(tiny_llama_dir)},
        "adapter": {"method": "full"},
        "data": {"train": [{"path": str(chats_jsonl)}], "eval_fraction": 0.17},
        "train": {
            "max_length": 64, "num_train_epochs": 3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3,
            "logging_steps": 2, "eval_strategy": "epoch", "save_steps": 0.5, "bf16": False, "save_strategy": "epoch",
            "load_best_model_at_end": True,
        },
        "evaluate": {"early_stopping": {"patience": 2}},
        "output_dir": str(tmp_path / "out"),
    }  # fmt: skip
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path
