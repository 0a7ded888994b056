"""Recipes, arguments, rows and files for the tests of data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trl import SFTConfig

from hf_efficient.errors import DataError
from hf_efficient.recipe.schema import Recipe


def system(text: str = "s") -> dict[str, str]:
    return {"role": "system", "content": text}


def user(text: str = "q") -> dict[str, str]:
    return {"role": "user", "content": text}


def answer(text: str = "a") -> dict[str, str]:
    return {"role": "assistant", "content": text}


def jsonl(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def recipe(
    path: object, objective: str = "sft", show: int = 8, source: dict[str, Any] | None = None, **data: Any
) -> Recipe:
    """With one source, ``path``, or those of a list."""
    train = path if isinstance(path, list) else [{"path": str(path), **(source or {})}]
    return Recipe.model_validate(
        {
            "name": "r",
            "objective": objective,
            "model": {"id": "m"},
            "output_dir": "o",
            "data": {"train": train, **data},
            "evaluate": {"generate": {"examples": show}},
        }
    )


def arguments(of: type = SFTConfig, **settings: Any) -> Any:
    return of(**{"output_dir": "o", "use_cpu": True, "bf16": False, "report_to": "none", **settings})


def refused(call: Callable[..., object], *args: Any, **settings: Any) -> str:
    """What the error says."""
    with pytest.raises(DataError) as caught:
        call(*args, **settings)
    return str(caught.value)
