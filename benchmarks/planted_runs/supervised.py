"""Supervised fine-tuning by trl, on requests and docstrings as text."""

from typing import Any

import datasets
from trl import SFTConfig, SFTTrainer

from hf_efficient.callbacks.profilers import SynchronisationsCallback
from hf_efficient.trainer import EfficientTrainerMixin
from planted_runs.cases import Setup
from planted_runs.data import texts, tokenizer
from planted_runs.training import arguments, small_llama

__all__ = ["EfficientSFTTrainer", "sft_trainer"]

_EXAMPLES = 1200
_EVALUATED = 16


class EfficientSFTTrainer(EfficientTrainerMixin, SFTTrainer):
    """``SFTTrainer`` with records."""


def sft_trainer(setup: Setup, **fields: Any) -> Any:
    """A trainer of the first examples.

    Args:
        setup: of the run.
        fields: of ``SFTConfig``.
    """
    held = texts(setup.corpus)[: _EXAMPLES + _EVALUATED]
    datasets.disable_progress_bars()
    return EfficientSFTTrainer(
        model=small_llama(setup),
        args=arguments(setup, SFTConfig, **{"completion_only_loss": False, **fields}),
        train_dataset=datasets.Dataset.from_list(held[_EVALUATED:]),
        eval_dataset=datasets.Dataset.from_list(held[:_EVALUATED]),
        callbacks=[SynchronisationsCallback()],
        processing_class=tokenizer(setup.corpus),
    )
