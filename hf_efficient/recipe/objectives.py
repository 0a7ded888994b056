"""What a recipe can train: its objectives, with TRL's trainer of each, the data that it reads and the model."""

from dataclasses import dataclass
from typing import Literal

ObjectiveName = Literal["sft", "dpo", "kto", "reward", "orpo", "cpo", "grpo"]
DataNeed = Literal["examples", "pairs", "labelled", "prompts"]


@dataclass(frozen=True)
class TrainingObjective:
    """One objective.

    Attributes:
        config, trainer: where TRL has the class of ``train:`` and its trainer.
        data: ``examples`` to imitate, ``pairs`` of a better and a worse answer, answers ``labelled`` good or bad, or
            ``prompts`` that the model answers itself.
        reference: a reference model takes part; ``scores``: the model gives a number, and writes no text.
        rows: of a micro-batch, for each example of ``per_device_train_batch_size``.
    """

    title: str
    config: str
    trainer: str
    data: DataNeed
    reference: bool = False
    scores: bool = False
    rows: int = 1

    @property
    def is_experimental(self) -> bool:
        return self.config.startswith("trl.experimental.")

    @property
    def is_of_preferences(self) -> bool:
        return self.data in ("pairs", "labelled")

    @property
    def generates(self) -> bool:
        """Whether it trains on completions of its own, which rewards are given for."""
        return self.data == "prompts"


FORMATS_OF: dict[DataNeed, tuple[str, ...]] = {
    "examples": ("messages", "sharegpt", "prompt_completion", "alpaca", "text"),
    "pairs": ("preference",),
    "labelled": ("unpaired", "preference"),
    "prompts": ("prompt", "question"),
}
"""Layouts of the rows; a pair is a good and a bad answer."""

_KTO, _ORPO = "Kahneman-Tversky optimization", "odds ratio preference optimization"

OBJECTIVES: dict[str, TrainingObjective] = {
    "sft": TrainingObjective("supervised fine-tuning", "trl.SFTConfig", "trl.SFTTrainer", "examples"),
    "dpo": TrainingObjective(
        "direct preference optimization", "trl.DPOConfig", "trl.DPOTrainer", "pairs", reference=True, rows=2
    ),
    "kto": TrainingObjective(_KTO, "trl.KTOConfig", "trl.KTOTrainer", "labelled", reference=True),
    "reward": TrainingObjective("reward model", "trl.RewardConfig", "trl.RewardTrainer", "pairs", scores=True, rows=2),
    "orpo": TrainingObjective(
        _ORPO, "trl.experimental.orpo.ORPOConfig", "trl.experimental.orpo.ORPOTrainer", "pairs", rows=2
    ),
    "cpo": TrainingObjective(
        "contrastive preference optimization",
        "trl.experimental.cpo.CPOConfig",
        "trl.experimental.cpo.CPOTrainer",
        "pairs",
        rows=2,
    ),
    "grpo": TrainingObjective("group relative policy optimization", "trl.GRPOConfig", "trl.GRPOTrainer", "prompts"),
}
