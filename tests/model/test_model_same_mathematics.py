"""Every combination of the fast step computes what plain transformers and PEFT compute for each example alone."""

import itertools

import pytest
import torch
from live_models import DIMENSIONS
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_efficient.launch.build import RecipeTrainer
from hf_efficient.model.fast_layers import NAME, fuse_lora, fuse_norms, known_attention
from hf_efficient.model.recipe_trainer import CHUNKED_NLL, apply_sft_fields, objective, sft_arguments

LAYOUTS = ("padded", "padding_free", "packed")


def examples():
    """Six documents of 5 to 15 tokens, one of a single target; the first tokens of each are no targets."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for index, length in enumerate((5, 9, 15, 7, 12, 6)):
        ids = torch.randint(3, 96, (length,), generator=generator).tolist()
        masked = length - 1 if index == 3 else index % 3 + 1
        found.append({"input_ids": ids, "labels": [-100] * masked + ids[masked:]})
    return found


def plain_model():
    """LoRA whose B is not zero, so that its products count."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **DIMENSIONS), dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return adapted


def gradients(model):
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.fixture(scope="module")
def alone():
    """The loss of each target token, by document, and the gradients of their mean; a document is a forward."""
    model = plain_model()
    documents = []
    for one in examples():
        logits = model(input_ids=torch.tensor([one["input_ids"]])).logits[0, :-1]
        documents.append(F.cross_entropy(logits, torch.tensor(one["labels"][1:]), reduction="none"))
    count = sum(label != -100 for one in examples() for label in one["labels"][1:])
    (sum(one.sum() for one in documents) / count).backward()
    return [one.detach() for one in documents], gradients(model)


def batch(layout, rows):
    if layout == "packed":
        halves = [rows[:3], rows[3:]]
        rows = [
            {
                **{key: [item for one in half for item in one[key]] for key in ("input_ids", "labels")},
                "seq_lengths": [len(one["input_ids"]) for one in half],
            }
            for half in halves
        ]
    return DataCollatorForLanguageModeling(pad_token_id=0, padding_free=layout != "padded")(rows)


def fast(tmp_path, layout, loss_type, fused, checkpointing):
    model = plain_model()
    model.get_base_model().set_attn_implementation(known_attention(NAME))
    if fused:
        assert fuse_lora(model)[0] == 14
        assert fuse_norms(model) == 5
    if checkpointing:
        model.enable_input_require_grads()
    args = sft_arguments(
        output_dir=str(tmp_path), loss_type=loss_type, use_cpu=True, bf16=False, gradient_checkpointing=checkpointing,
        report_to=[], packing=layout == "packed", padding_free=layout == "padding_free", max_length=64,
    )  # fmt: skip
    apply_sft_fields(model, args)
    trainer = RecipeTrainer(
        model=model, args=args, train_dataset=examples(), compute_loss_func=objective(args), record_steps=False,
        data_collator=DataCollatorForLanguageModeling(pad_token_id=0, padding_free=layout != "padded"),
    )  # fmt: skip
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
    return trainer, model


@pytest.mark.parametrize(
    ("layout", "loss_type", "fused", "checkpointing"),
    list(itertools.product(LAYOUTS, ("nll", CHUNKED_NLL), (False, True), (False, True))),
)
def test_losses_of_tokens_and_gradients(layout, loss_type, fused, checkpointing, alone, tmp_path):
    trainer, model = fast(tmp_path, layout, loss_type, fused, checkpointing)

    def loss_of(rows):
        count = sum(label != -100 for one in rows for label in one["labels"][1:])
        return trainer.compute_loss(model, batch(layout, rows), num_items_in_batch=torch.tensor(count))

    documents, expected = alone
    loss_of(examples()).backward()
    found = gradients(model)
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert float((found[name] - one).norm() / one.norm()) < 1e-5, name
    with torch.no_grad():
        for index, losses in enumerate(documents):
            first = next(at for at, label in enumerate(examples()[index]["labels"]) if label != -100)
            for at in {first, len(losses)}:  # of a document the first target and the last
                rows = [{**one, "labels": [-100] * len(one["labels"])} for one in examples()]
                rows[index]["labels"][at] = rows[index]["input_ids"][at]
                assert float(loss_of(rows)) == pytest.approx(float(losses[at - 1]), rel=1e-4)
