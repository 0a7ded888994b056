"""torchtune's own LoRA recipe in torchtune's own Python, measured; it reads the tokens that bench prepared.

    PYTHON torchtune_arm.py CONFIG.yaml RESULT.json

It imports nothing of hf_efficient. The names in CONFIG.yaml that begin with ``torchtune_arm`` are below.
"""

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch


def token_rows(tokenizer: Any, path: str, packed: bool, max_length: int) -> Any:
    """Rows of JSONL with ``tokens``, every one of them a target."""
    with Path(path).open(encoding="utf-8") as file:
        ids = [json.loads(line)["tokens"] for line in file]
    rows = [{"tokens": one, "labels": one} for one in ids]
    if not packed:
        return rows
    from torchtune.datasets import PackedDataset

    return PackedDataset(rows, max_seq_len=max_length, padding_idx=tokenizer.pad_id)


def schedule(
    optimizer: torch.optim.Optimizer, name: str, warm_up: int, num_training_steps: int, last_epoch: int = -1
) -> torch.optim.lr_scheduler.LRScheduler:
    """``constant_with_warmup`` or ``linear``, which torchtune does not have."""

    def factor(step: int) -> float:
        if step < warm_up:
            return step / warm_up
        if name == "linear":
            return (num_training_steps - step) / max(1, num_training_steps - warm_up)
        return 1.0

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor, last_epoch)


class Meter:
    """Takes the place of the recipe's logger, which is called at the end of each step."""

    def __init__(self) -> None:
        self.ends = [time.perf_counter()]
        self.counts: list[list[tuple[Any, int]]] = [[]]
        self.losses: list[float] = []
        self.norms: list[float] = []

    def sees(self, batch: dict[str, torch.Tensor]) -> None:
        self.counts[-1].append(((batch["labels"] != -100).sum(), batch["tokens"].numel()))

    def log_dict(self, payload: dict[str, Any], step: int) -> None:
        self.losses.append(float(payload["loss"]))
        self.norms.append(float(payload["grad_norm"]))
        self.ends.append(time.perf_counter())
        self.counts.append([])

    def figures(self) -> dict[str, Any]:
        from run_figures import run_figures

        seconds = [end - begin for begin, end in zip(self.ends, self.ends[1:], strict=False)]
        return run_figures(seconds, self.counts[: len(seconds)], self.losses, self.norms)


def _recipe_class() -> Any:
    """torchtune installs its recipes beside itself, in a folder that is no package."""
    import torchtune

    path = Path(torchtune.__file__).parents[1] / "recipes" / "lora_finetune_single_device.py"
    return runpy.run_path(str(path))["LoRAFinetuneRecipeSingleDevice"]


def main() -> None:
    from omegaconf import OmegaConf

    config, result = sys.argv[1:]
    settings = OmegaConf.load(config)
    recipe = _recipe_class()(settings)
    recipe.setup(settings)
    recipe._metric_logger = meter = Meter()
    lose = recipe._loss_step

    def counted(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        meter.sees(batch)
        return lose(batch)

    recipe._loss_step = counted
    recipe.train()
    Path(result).write_text(json.dumps({"result": meter.figures()}), encoding="utf-8")


if __name__ == "__main__":
    main()
