"""What a recipe can train: its objectives, with TRL's trainer of each, the data that it reads and the model."""

from dataclasses import dataclass
from typing import Literal

ObjectiveName = Literal["sft", "dpo", "kto", "reward", "orpo", "cpo", "grpo", "distill", "distill_on_policy"]
DataNeed = Literal["examples", "pairs", "labelled", "prompts", "unanswered"]


@dataclass(frozen=True)
class TrainingObjective:
    """One objective.

    Attributes:
        short, module: how TRL calls it, and where it has the class of ``train:`` and the trainer.
        data: ``examples`` to imitate, ``pairs`` of a better and a worse answer, answers ``labelled`` good or bad,
            ``prompts`` that the model answers itself, or ``unanswered``: those, and examples without their answers.
        reference: a reference model takes part; ``scores``: the model gives a number, and writes no text.
        teacher: another model's predictions are learned.
        rows: of a micro-batch, for each example of ``per_device_train_batch_size``.
    """

    title: str
    short: str
    data: DataNeed
    module: str = "trl"
    reference: bool = False
    scores: bool = False
    teacher: bool = False
    rows: int = 1

    @property
    def config(self) -> str:
        return f"{self.module}.{self.short}Config"

    @property
    def trainer(self) -> str:
        return f"{self.module}.{self.short}Trainer"

    @property
    def is_experimental(self) -> bool:
        return self.module != "trl"

    @property
    def imitates(self) -> bool:
        """Whether it reads the examples of supervised fine-tuning, and runs in its loop."""
        return self.data == "examples"

    @property
    def is_of_preferences(self) -> bool:
        return self.data in ("pairs", "labelled")

    @property
    def generates(self) -> bool:
        """Whether it trains on completions of its own."""
        return self.data in ("prompts", "unanswered")

    @property
    def is_rewarded(self) -> bool:
        """Whether rewards are given for its completions."""
        return self.data == "prompts"


FORMATS_OF: dict[DataNeed, tuple[str, ...]] = {
    "examples": ("messages", "sharegpt", "prompt_completion", "alpaca", "text"),
    "pairs": ("preference",),
    "labelled": ("unpaired", "preference"),
    "prompts": ("prompt", "question"),
    "unanswered": ("messages", "sharegpt", "prompt_completion", "alpaca", "prompt", "question"),
}
"""Layouts of the rows; a pair is a good and a bad answer."""

OBJECTIVES: dict[str, TrainingObjective] = {
    "sft": TrainingObjective("supervised fine-tuning", "SFT", "examples"),
    "dpo": TrainingObjective("direct preference optimization", "DPO", "pairs", reference=True, rows=2),
    "kto": TrainingObjective("Kahneman-Tversky optimization", "KTO", "labelled", reference=True),
    "reward": TrainingObjective("reward model", "Reward", "pairs", scores=True, rows=2),
    "orpo": TrainingObjective("odds ratio preference optimization", "ORPO", "pairs", "trl.experimental.orpo", rows=2),
    "cpo": TrainingObjective("contrastive preference optimization", "CPO", "pairs", "trl.experimental.cpo", rows=2),
    "grpo": TrainingObjective("group relative policy optimization", "GRPO", "prompts"),
    "distill": TrainingObjective("distillation", "SFT", "examples", teacher=True),
    # Another objective, and no key of ``distill``: ``train:`` has the fields of another class.
    "distill_on_policy": TrainingObjective("on-policy distillation", "Distillation", "unanswered", teacher=True),
}
