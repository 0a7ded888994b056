"""The first loss of every objective: what the mathematics says, and TRL's own, with and without the mixin."""

import copy
import math

import pytest
import torch
from datasets import Dataset
from tiny_training import arguments, preference_rows, reward_model, tiny_config
from transformers import LlamaForCausalLM

from hf_efficient import EfficientDPOTrainer, EfficientKTOTrainer, EfficientRewardTrainer
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.train_fields import trl_class
from hf_efficient.trainer import EfficientTrainerMixin

OURS = {"dpo": EfficientDPOTrainer, "kto": EfficientKTOTrainer, "reward": EfficientRewardTrainer}


def model_of(objective):
    if objective == "reward":
        model = reward_model()
        torch.nn.init.zeros_(model.score.weight)
        return model
    torch.manual_seed(1)
    return LlamaForCausalLM(tiny_config(attention_dropout=0.0))


def first_loss(kind, objective, tokenizer, folder, **fields):
    """Loss of the first batch, and what the trainer notes with it."""
    library = OBJECTIVES[objective]
    args = arguments(folder, trl_class(library.config), **fields)
    model = model_of(objective)
    more = {"ref_model": copy.deepcopy(model)} if library.reference else {}
    rows = preference_rows()
    if objective == "kto":  # in the order in which it trains
        sides = [(row["prompt"], row[side], side == "chosen") for row in rows for side in ("chosen", "rejected")]
        rows = [{"prompt": prompt, "completion": answer, "label": good} for prompt, answer, good in sides]
    data = Dataset.from_list(rows)
    trainer = kind(model=model, args=args, train_dataset=data, processing_class=tokenizer, **more)
    loss = trainer.compute_loss(trainer.model, next(iter(trainer.get_train_dataloader())))
    noted = getattr(trainer, "_metrics", None) or trainer._stored_metrics
    return float(loss.detach()), {name: values[-1] for held in noted.values() for name, values in held.items()}


@pytest.mark.parametrize(
    ("objective", "fields", "expected"),
    [
        ("dpo", {"beta": 0.01}, math.log(2)),
        ("dpo", {"beta": 0.5}, math.log(2)),
        ("dpo", {"beta": 0.1, "loss_type": ["ipo"]}, 1 / (4 * 0.1**2)),
        ("dpo", {"beta": 0.5, "loss_type": ["ipo"]}, 1 / (4 * 0.5**2)),
        ("kto", {"beta": 0.1}, 0.5),
        ("kto", {"beta": 0.5}, 0.5),
        ("reward", {}, math.log(2)),
        ("orpo", {}, None),
        ("cpo", {}, None),
        ("cpo", {"loss_type": "simpo", "cpo_alpha": 0.0}, None),
    ],
)
def test_the_first_loss(objective, fields, expected, tiny_tokenizer, tmp_path):
    library = trl_class(OBJECTIVES[objective].trainer)
    ours = OURS.get(objective) or type("Ours", (EfficientTrainerMixin, library), {})
    (loss, noted), (own, own_noted) = (
        first_loss(kind, objective, copy.deepcopy(tiny_tokenizer), tmp_path / kind.__name__, **fields)
        for kind in (library, ours)
    )
    assert own == pytest.approx(loss, rel=1e-6)
    assert own_noted == pytest.approx(noted, rel=1e-6)
    if expected is not None:
        assert loss == pytest.approx(expected, rel=1e-6)
        assert noted["margin" if objective == "reward" else "rewards/margins"] == 0
