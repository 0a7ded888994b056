"""Attention by documents against transformers' own attention of each document alone, and of padded batches."""

import pytest
import torch
from live_models import live
from transformers import AutoConfig, AutoModelForCausalLM

from hf_efficient.errors import ModelError
from hf_efficient.model import fast_layers

LENGTHS = (5, 1, 9, 3)


def build(kind="llama", dtype=torch.float32, implementation=fast_layers.NAME, **options):
    fast_layers.known_attention(fast_layers.NAME)
    model = live(kind, vocab_size=50, hidden_size=32, intermediate_size=48, **options)
    model.set_attn_implementation(implementation)
    return model.to(dtype).train()


def packed():
    """One row of four documents, with TRL's bounds of them."""
    torch.manual_seed(1)
    ids = torch.randint(3, 50, (1, sum(LENGTHS)))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    bounds = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0).tolist()], dtype=torch.int32)
    return ids, positions, bounds


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("kind", "options"), [("llama", {}), ("mistral", {"sliding_window": 4}), ("mistral", {"sliding_window": None})]
)
@pytest.mark.parametrize("with_bounds", [True, False])
def test_a_packed_row_is_its_documents_one_by_one(kind, options, with_bounds):
    model = build(kind, **options)
    alone = build(kind, implementation="eager", **options)
    ids, positions, bounds = packed()
    extra = {"cu_seq_lens_q": bounds} if with_bounds else {}
    together = model(input_ids=ids, position_ids=positions, use_cache=False, **extra).logits[0]
    apart = torch.cat([alone(input_ids=one, use_cache=False).logits[0] for one in ids.split(LENGTHS, 1)])
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(gradients(model, together.pow(2).sum()), gradients(alone, apart.pow(2).sum()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("gpt_bigcode", {"n_layer": 2, "n_head": 4, "n_embd": 32}),  # keeps position_ids from the attention
        ("jetmoe", {"kv_channels": 8, "num_local_experts": 2}),  # takes the output by view
        ("llama4_text", {"attention_chunk_size": 3, "head_dim": 8, "num_local_experts": 2}),
    ],
)
def test_documents_are_known_whatever_a_model_hands_to_its_attention(kind, options):
    model, alone = build(kind, **options).eval(), build(kind, implementation="eager", **options).eval()
    ids, positions, _ = packed()
    with torch.no_grad():
        found = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
        apart = torch.cat([alone(input_ids=one, use_cache=False).logits[0] for one in ids.split(LENGTHS, 1)])
    torch.testing.assert_close(found, apart, rtol=1e-4, atol=1e-5)


def test_a_first_call_with_a_cache_keeps_documents_apart():
    model = build().eval()
    ids, positions, _ = packed()
    with torch.no_grad():
        found, wanted = (model(input_ids=ids, position_ids=positions, use_cache=on).logits for on in (True, False))
    torch.testing.assert_close(found, wanted)


def test_attention_that_sees_what_follows_is_not_made_causal():
    for kind in ("bert", "roberta"):
        model, eager = build(kind).eval(), build(kind, implementation="eager").eval()
        with torch.no_grad():
            ours, theirs = (one(input_ids=packed()[0]).logits for one in (model, eager))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("longest", [0, 512])
def test_in_bfloat16_it_is_as_near_to_float32_as_eager_attention(monkeypatch, longest):
    monkeypatch.setattr(fast_layers, "_LONGEST_DIRECT", longest)
    ids, positions, bounds = packed()
    arguments = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    exact = build(implementation="eager")
    logits = exact(**arguments).logits
    wanted = gradients(exact, logits.pow(2).mean())
    errors = {}
    for implementation in (fast_layers.NAME, "eager"):
        model = build(implementation=implementation, dtype=torch.bfloat16)
        found = model(**arguments, cu_seq_lens_q=bounds).logits
        grads = gradients(model, found.float().pow(2).mean())
        errors[implementation] = [
            float((found.float() - logits).norm() / logits.norm()),
            *(float((a.float() - b).norm() / b.norm()) for a, b in zip(grads, wanted, strict=True)),
        ]
    for ours, eager in zip(errors[fast_layers.NAME], errors["eager"], strict=True):
        assert ours < 1.5 * eager + 1e-3


def test_rows_of_several_documents_need_no_flattening():
    model, alone = build(), build(implementation="eager")
    torch.manual_seed(2)
    ids = torch.randint(3, 50, (2, 6))
    positions = torch.tensor([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 5]])
    found = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    first = torch.cat([alone(input_ids=one, use_cache=False).logits[0] for one in ids[:1].split(3, 1)])
    torch.testing.assert_close(found[0], first, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1], alone(input_ids=ids[1:], use_cache=False).logits[0], rtol=1e-5, atol=1e-6)


def test_padded_batches_and_generation_are_those_of_sdpa():
    model, sdpa = build().eval(), build(implementation="sdpa").eval()
    torch.manual_seed(3)
    ids = torch.randint(3, 50, (2, 6))
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        ours, theirs = (one(input_ids=ids, attention_mask=mask).logits for one in (model, sdpa))
        torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], rtol=1e-5, atol=1e-6)
        answers = [one.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0) for one in (model, sdpa)]
    assert answers[0].tolist() == answers[1].tolist()


def test_checkpointing_recomputes_the_same():
    model, ids, positions, bounds = build(), *packed()
    arguments = {"input_ids": ids, "position_ids": positions, "use_cache": False, "cu_seq_lens_q": bounds}
    plain = gradients(model, model(**arguments).logits.pow(2).sum())
    model.gradient_checkpointing_enable()
    for again, once in zip(gradients(model, model(**arguments).logits.pow(2).sum()), plain, strict=True):
        torch.testing.assert_close(again, once, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "doge"])
def test_an_attention_with_soft_caps_sinks_or_a_mask_of_its_own_is_refused(kind):
    with fast_layers.checked_attention(fast_layers.NAME) as built:
        built.append(build())
    refused = r"model\.attn_implementation: documents .* Write `model.attn_implementation: eager` and .*packing: false"
    with pytest.raises(ModelError, match=refused), fast_layers.checked_attention(fast_layers.NAME) as built:
        built.append(build(kind))
    with fast_layers.checked_attention("sdpa") as built:
        built.append(build(kind))


def test_a_model_with_a_table_of_attention_classes_is_refused():
    config = AutoConfig.for_model("falcon", hidden_size=32, num_attention_heads=4, num_hidden_layers=1, vocab_size=50)
    fast_layers.known_attention(fast_layers.NAME)
    with (
        pytest.raises(ModelError, match=r"this model\. Write `model\.attn_implementation: sdpa` and .*packing: false"),
        fast_layers.checked_attention(fast_layers.NAME),
    ):
        AutoModelForCausalLM.from_config(config, attn_implementation=fast_layers.NAME)
    with pytest.raises(KeyError, match="other"), fast_layers.checked_attention(fast_layers.NAME):
        raise KeyError("other")


def test_a_window_that_only_the_mask_knows(monkeypatch):
    """As PhiMoE's, which hands no ``sliding_window`` to its attention."""
    model, alone = build("mistral", sliding_window=4), build("mistral", implementation="eager", sliding_window=4)
    for layer in model.model.layers:
        layer.self_attn.sliding_window = None
    monkeypatch.setattr(model.config, "sliding_window", 4)
    ids, positions, _ = packed()
    found = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
    apart = torch.cat([alone(input_ids=one, use_cache=False).logits[0] for one in ids.split(LENGTHS, 1)])
    torch.testing.assert_close(found, apart, rtol=1e-5, atol=1e-6)


def test_bounds_with_an_empty_document_at_the_end():
    model, (ids, _, bounds) = build(), packed()
    wanted, found = (
        model(input_ids=ids, use_cache=False, cu_seq_lens_q=one).logits
        for one in (bounds, torch.cat([bounds, bounds[-1:]]))
    )
    torch.testing.assert_close(found, wanted)
