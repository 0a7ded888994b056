"""The loss of a distillation by hand, its gradient by autograd, and what of two models can be compared."""

import math

import pytest
import torch
from torch.nn import functional as F

from hf_efficient.errors import ModelError
from hf_efficient.model import distill
from hf_efficient.model.distill import Predictions, check_same_tokens, check_teacher, distilled_loss, paired_blocks
from hf_efficient.model.prune import RECORD
from hf_efficient.recipe.schema import DistillSection

LN2, LN3 = math.log(2), math.log(3)


def section(**fields):
    return DistillSection(teacher={"id": "t"}, **fields)


def test_the_loss_by_hand():
    """The student is even over two tokens, the teacher says 3/4 and 1/4: KL = ln 2 - H(3/4) = 0.130812."""
    student, teacher = torch.zeros(1, 2), torch.tensor([[LN3, 0.0]])
    kl = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert kl == pytest.approx(0.130812, abs=1e-6)
    alone = distilled_loss(student, torch.tensor([0]), Predictions(teacher), alpha=1.0, temperature=1.0)
    assert float(alone) == pytest.approx(kl, abs=1e-6)
    half = distilled_loss(student, torch.tensor([1]), Predictions(teacher), alpha=0.25, temperature=1.0)
    assert float(half) == pytest.approx(0.25 * kl + 0.75 * LN2, abs=1e-6)


def test_temperature_by_hand():
    """Logits ln 9 and 0 over a temperature of 2 are those of 3 to 1; the loss is times four."""
    teacher = torch.tensor([[2 * LN3, 0.0]])
    found = distilled_loss(torch.zeros(1, 2), torch.tensor([0]), Predictions(teacher), alpha=1.0, temperature=2.0)
    assert float(found) == pytest.approx(4 * 0.130812, abs=1e-5)


def test_the_likeliest_tokens_by_hand():
    """The two likeliest of four are 3 to 1 to each other; the student has 1/4 for each: KL = sum p ln(4 p)."""
    kept = Predictions(torch.tensor([[math.log(0.6), math.log(0.2)]]), torch.tensor([[3, 1]], dtype=torch.int32))
    found = distilled_loss(torch.zeros(1, 4), torch.tensor([0]), kept, alpha=1.0, temperature=1.0)
    assert float(found) == pytest.approx(0.75 * math.log(3) + 0.25 * math.log(1), abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("kind", ["whole", "likeliest", "wider", "narrower"])
def test_value_and_gradient_by_autograd(kind, temperature, monkeypatch):
    monkeypatch.setattr(distill, "_LOGITS_AT_ONCE", 33)  # several pieces
    torch.manual_seed(0)
    wide = {"wider": 13, "narrower": 9}.get(kind, 11)
    logits = torch.randn(7, 11, dtype=torch.float64).float().requires_grad_()
    theirs, targets = torch.randn(7, wide), torch.randint(11, (7,))
    kept = theirs.log_softmax(-1).topk(4)
    teacher = Predictions(kept.values, kept.indices.int()) if kind == "likeliest" else Predictions(theirs)
    found = distilled_loss(logits, targets, teacher, alpha=0.3, temperature=temperature)
    (gradient,) = torch.autograd.grad(2 * found, logits)

    shared = 11 if kind == "likeliest" else min(wide, 11)
    ours = (logits[:, :shared] / temperature).log_softmax(-1)
    goal = kept.values if kind == "likeliest" else theirs[:, :shared]
    goal = (goal / temperature).log_softmax(-1)
    ours = ours.gather(1, kept.indices) if kind == "likeliest" else ours
    divergence = F.kl_div(ours, goal, log_target=True, reduction="sum")
    expected = 0.3 * temperature**2 * divergence + 0.7 * F.cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(2 * expected, logits)[0])


class _Config:
    def __init__(self, blocks, width=8, record=None):
        self.num_hidden_layers, self.hidden_size = blocks, width
        if record:
            setattr(self, RECORD, record)

    def get_text_config(self):
        return self


def test_blocks_are_paired():
    assert paired_blocks(_Config(3), _Config(6)) == [1, 3, 5]
    assert paired_blocks(_Config(2), _Config(5)) == [1, 4]
    pruned = _Config(4, record={"blocks": 6, "removed": [2, 4]})
    assert paired_blocks(pruned, _Config(6)) == [0, 1, 3, 5]
    assert paired_blocks(pruned, _Config(8)) == [1, 3, 5, 7]


def test_hidden_states_have_one_width():
    check_teacher(_Config(2, 8), _Config(4, 16), section())
    with pytest.raises(ModelError, match="the student's have 8 values and the teacher's 16"):
        check_teacher(_Config(2, 8), _Config(4, 16), section(hidden_states=1.0))


class _Words:
    def __init__(self, **vocabulary):
        self.get_vocab = lambda: vocabulary


def test_both_have_one_vocabulary():
    check_same_tokens(_Words(a=0, b=1), _Words(a=0, b=1, more=2), section())
    with pytest.raises(ModelError, match="student's token 'b' is 1, and the teacher calls it 2"):
        check_same_tokens(_Words(a=0, b=1), _Words(a=0, b=2), section())
    with pytest.raises(ModelError, match="student's token 'b' is 1, and the teacher has none such"):
        check_same_tokens(_Words(a=0, b=1), _Words(a=0), section())
