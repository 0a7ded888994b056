"""Blocks and neurons that do nothing are found and taken out, and plain transformers loads what is left."""

import json

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MixtralConfig,
)

from hf_efficient.errors import ModelError
from hf_efficient.model.prune import RECORD, neurons_left, prune, pruned_config, removed_count
from hf_efficient.recipe.schema import PruneSection

ROWS = [{"input_ids": [3, 1, 4, 1, 5, 9, 2, 6]}, {"input_ids": [5, 3, 5, 8, 9, 7], "seq_lengths": [2, 4]}]
SHAPE = {
    "vocab_size": 32, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 5,
    "head_dim": 8, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def model():
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE, intermediate_size=32, initializer_range=0.4)).eval()


def logits(model):
    with torch.no_grad():
        return model(torch.tensor([ROWS[0]["input_ids"]])).logits


def test_the_blocks_that_do_nothing_go(model, tmp_path):
    for number in (1, 3):
        model.model.layers[number].self_attn.o_proj.weight.data.zero_()
        model.model.layers[number].mlp.down_proj.weight.data.zero_()
    before = logits(model)
    found = prune(model, PruneSection(layers=0.4), ROWS)
    assert (found.removed, found.blocks) == ((1, 3), 5)
    assert [round(one, 6) for one in found.importance[1::2]] == [0, 0]
    assert min(found.importance[::2]) > 0.01
    assert torch.equal(logits(model), before)
    assert found.line() == ("pruned: 2 of 5 blocks (1, 3) taken out, those that change the hidden states least")
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), before)
    assert loaded.config.num_hidden_layers == 3
    assert json.loads((tmp_path / "config.json").read_text())[RECORD]["removed"] == [1, 3]
    ids = torch.tensor([ROWS[0]["input_ids"]])
    cached = loaded.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert torch.equal(
        cached, model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None, use_cache=False)
    )


def test_the_neurons_that_do_nothing_go(model, tmp_path):
    """Two thirds of them weigh nothing in the output, half of the rest by their activation alone."""
    idle = {}
    for number, block in enumerate(model.model.layers):
        order = torch.randperm(32, generator=torch.Generator().manual_seed(number))
        block.mlp.down_proj.weight.data[:, order[:12]] = 0
        block.mlp.up_proj.weight.data[order[12:24]] = 0
        idle[number] = set(order[24:].tolist())
    before = logits(model)
    found = prune(model, PruneSection(layers=0, mlp=0.75), ROWS)
    assert (found.removed, found.neurons, found.neurons_left) == ((), 32, 8)
    torch.testing.assert_close(logits(model), before)
    assert model.config.intermediate_size == 8
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(logits(AutoModelForCausalLM.from_pretrained(tmp_path)), before)


def test_what_is_left_is_whole_and_keeps_its_attention():
    """Gemma3 alternates local and global attention: the list in its configuration loses the places that go."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    torch.manual_seed(0)
    config = Gemma3TextConfig(**SHAPE, intermediate_size=32, layer_types=kinds, sliding_window=4)
    model = Gemma3ForCausalLM(config).eval()
    found = prune(model, PruneSection(layers=2), ROWS)
    left = [kind for number, kind in enumerate(kinds) if number not in found.removed]
    assert model.config.layer_types == left
    assert [block.self_attn.is_sliding for block in model.model.layers] == [kind != "full_attention" for kind in left]


def test_a_training_model_trains_on(model):
    model.train()
    model.model.layers[2].eval()
    prune(model, PruneSection(layers=1), ROWS)
    assert sorted({block.training for block in model.model.layers}) == [False, True]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"layers": 5}, "takes out 5 blocks, and the model has 5. Write 4 or fewer"),
        ({"layers": 0.95}, "takes out 5 blocks"),
    ],
)
def test_too_many_blocks(model, section, words):
    with pytest.raises(ModelError, match=words):
        prune(model, PruneSection(**section), ROWS)


def test_what_cannot_be_pruned(model):
    mixture = AutoModelForCausalLM.from_config(MixtralConfig(**SHAPE, intermediate_size=32, num_local_experts=2))
    with pytest.raises(ModelError, match=r"model\.prune\.mlp: .* is not made of gate_proj"):
        prune(mixture, PruneSection(layers=1, mlp=0.5), ROWS)
    with pytest.raises(ModelError, match="there are no rows of training data"):
        prune(model, PruneSection(layers=1), [])


def test_a_plan_foresees_the_sizes(model):
    section = PruneSection(layers=2, mlp=0.25)
    planned = pruned_config(AutoConfig.for_model("llama", **SHAPE, intermediate_size=32), section)
    prune(model, section, ROWS)
    real = model.config
    for name in ("num_hidden_layers", "intermediate_size"):
        assert getattr(planned, name) == getattr(real, name)
    assert (removed_count(PruneSection(layers=0.2), 30), neurons_left(PruneSection(mlp=0.25), 1536)) == (6, 1152)
