from __future__ import annotations

import pytest
import torch
from transformers import Trainer

from hf_efficient.isolate.measuring import forward_training
from hf_efficient.isolate.variants import FORWARD, Setup, in_folder, varied
from hf_efficient.recipe.load import load_recipe


@pytest.mark.parametrize("with_graph", [True, False])
def test_neither_backward_nor_update_happens(recipe_file, tmp_path, monkeypatch, with_graph):
    original = in_folder(load_recipe(recipe_file), tmp_path / "w")
    recipe = varied(original, 3, FORWARD.changes(original))
    seen = []
    step = Trainer.training_step

    def watched(self, model, *args, **kwargs):
        weights = torch.cat([one.detach().flatten() for one in model.parameters()])
        loss = step(self, model, *args, **kwargs)
        seen.append((weights, [one.grad for one in model.parameters()], torch.is_grad_enabled()))
        return loss

    monkeypatch.setattr(Trainer, "training_step", watched)
    graphs = []
    loss_of = Trainer.compute_loss

    def kept(self, *args, **kwargs):
        loss = loss_of(self, *args, **kwargs)
        graphs.append((loss[0] if isinstance(loss, tuple) else loss).requires_grad)
        return loss

    monkeypatch.setattr(Trainer, "compute_loss", kept)
    found = forward_training(Setup(recipe, original, 2, 1), with_graph=with_graph)
    assert len(found.step_seconds) == 2
    assert graphs == [with_graph] * len(seen)
    assert all(torch.equal(weights, seen[0][0]) for weights, _, _ in seen)
    assert all(grad is None for _, grads, _ in seen for grad in grads)
