"""Memory by category in real trainings: exact bytes by hand, and the same run as without counting."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import (
    VOCABULARY,
    arguments,
    assert_same_run,
    build_model,
    collator,
    lines,
    rows,
    tiny_config,
    train_causal,
)
from torch.utils.data import SequentialSampler
from transformers import LlamaForCausalLM, Trainer

from hf_efficient.accounting.account import account_of
from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.recording.activations import ForwardWatch
from hf_efficient.trainer import EfficientTrainer, EfficientTrainerMixin

WIDTH, LAYERS, RANK = 64, 2, 4
TABLES = 2 * VOCABULARY * WIDTH  # embedding and head
NORMS = (2 * LAYERS + 1) * WIDTH
LINEARS = 7 * LAYERS  # all of 64 x 64
ROTARY_BYTES = 2 * 4 * 16  # two buffers of half a head's width
ADAPTER = LINEARS * RANK * (WIDTH + WIDTH)


def categories(output: Path) -> dict[str, int]:
    found = account_of(output / "efficiency").memory
    known = {category.name: category.bytes for category in found.categories}
    assert sum(known.values()) == found.peak_rss_bytes
    known.pop("rest")
    return known


def gaps(output: Path) -> dict[str, str]:
    return {gap.what: gap.why for gap in account_of(output / "efficiency").not_measured}


def told(output: Path, name: str) -> list[dict[str, Any]]:
    """Everything that was told of a category in turn."""
    found: list[dict[str, Any]] = []
    for line in lines(output, "spans.jsonl"):
        for one in line.get("facts", {}).get("memory", {}).get("categories", ()):
            if one["name"] == name and (not found or one != found[-1]):
                found.append(one)
    return found


def test_bytes_of_a_full_fine_tune_with_adamw(tiny_dir, tmp_path):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, "full", max_steps=2)
    parameters = TABLES + NORMS + LINEARS * WIDTH * WIDTH
    found = categories(tmp_path)
    assert found["weights"] == 4 * parameters + ROTARY_BYTES
    assert found["gradients"] == 4 * parameters
    # Two moments in float32, and a count of steps for each of the 21 tensors.
    assert found["optimizer_state"] == 2 * 4 * parameters + 4 * (2 + 2 * LAYERS + 1 + LINEARS)
    assert "adapter" not in found


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_bytes_of_an_adapter_and_its_base(tiny_dir, tmp_path, method):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, method, max_steps=2)
    linear = 4 * WIDTH * WIDTH
    if method == "qlora":
        # NF4 in blocks of 64: half a byte per weight and 16 floats of code; of the 64 scales a byte each, one float
        # for all of them, their offset, and 256 floats of their code.
        linear = WIDTH * WIDTH // 2 + 16 * 4 + 64 + 4 + 4 + 256 * 4
    found = categories(tmp_path)
    assert found["weights"] == 4 * (TABLES + NORMS) + LINEARS * linear + ROTARY_BYTES
    assert found["adapter"] == found["gradients"] == 4 * ADAPTER
    assert found["optimizer_state"] == 2 * 4 * ADAPTER + 4 * 2 * LINEARS


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("sgd", 0),
        # A row and a column of squares for each of the two factors of an adapter, and their root mean square.
        ("adafactor", 2 * LINEARS * 4 * (RANK + WIDTH + 1)),
    ],
)
def test_other_optimizers(tiny_dir, tmp_path, optimizer, expected):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=2, optim=optimizer)
    assert categories(tmp_path)["optimizer_state"] == expected
    assert {what for what in gaps(tmp_path) if "energy" not in what and what != "cost"} == {
        "imports, model load and data preparation, each by itself",
        "the interpreter's own end",
    }


def saved_in_graph(loss: torch.Tensor) -> dict[int, torch.Tensor]:
    """What the nodes of a graph say themselves that they saved: one tensor per storage, without Python's numbers."""
    found, seen, waiting = {}, set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions)
        for name in dir(node):
            if name.startswith("_saved_"):
                value = getattr(node, name)
                for one in value if isinstance(value, (tuple, list)) else [value]:
                    if isinstance(one, torch.Tensor) and one.dtype != torch.float64:
                        found[one.untyped_storage()._cdata] = one
    return found


@pytest.mark.parametrize("method", ["full", "lora"])
def test_activations_are_what_the_graph_saved(tiny_dir, method):
    model = build_model(tiny_dir, method).train()
    batch = collator()(rows(2))
    watch = ForwardWatch(model, [], VOCABULARY)
    torch.manual_seed(0)
    watch.start()
    loss = model(**batch).loss
    watch.close()
    found = watch.kept()
    torch.manual_seed(0)
    output = model(**batch)
    assert torch.equal(output.loss, loss)
    saved = saved_in_graph(output.loss)
    for tensor in (*model.parameters(), *model.buffers()):
        saved.pop(tensor.untyped_storage()._cdata, None)
    sizes = {key: tensor.untyped_storage().nbytes() for key, tensor in saved.items()}
    positions = batch["input_ids"].numel()
    log_softmax = 4 * positions * VOCABULARY
    assert [size for key, size in sizes.items() if saved[key].shape[-1:] == (VOCABULARY,)] == [log_softmax]
    assert found.logits == {"cpu": log_softmax + output.logits.untyped_storage().nbytes()}
    assert found.activations == {"cpu": sum(sizes.values()) - log_softmax}


def test_a_checkpointed_layer_keeps_one_hidden_state(tmp_path):
    """Of two models, one has a layer more."""
    kept = []
    for layers in (1, 2):
        torch.manual_seed(1)
        model = LlamaForCausalLM(tiny_config(num_hidden_layers=layers))
        settings = {"model": model, "checkpointing": True, "max_steps": 1}
        train_causal(EfficientTrainer, tmp_path, tmp_path / str(layers), **settings)
        kept.append(categories(tmp_path / str(layers)))
        (note,) = {one["note"] for one in told(tmp_path / str(layers), "activations")}
    lengths = [len(row["input_ids"]) for row in rows()]
    positions = int(note.split("of a micro-batch of ")[1].split()[0])
    assert positions in {2 * length for length in lengths}
    assert kept[1]["activations"] - kept[0]["activations"] == 4 * positions * WIDTH
    assert kept[1]["logits"] == kept[0]["logits"] == 2 * 4 * positions * VOCABULARY
    assert note.endswith(", without what checkpointed layers compute again")


class InOrder(EfficientTrainer):
    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


def test_a_clearly_larger_micro_batch_is_measured_again(tiny_dir, tmp_path):
    lengths = [10, 12, 13, 8, 40, 20]
    data = [{"input_ids": list(range(3, 3 + length))} for length in lengths]
    settings = {"data": data, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    train_causal(InOrder, tiny_dir, tmp_path, "full", **settings)
    # 12 is less than 1.25 times 10; 13 is more.
    assert [one["note"] for one in told(tmp_path, "logits")] == [
        f"of a micro-batch of {positions} positions" for positions in (10, 13, 40)
    ]
    assert categories(tmp_path)["logits"] == 2 * 4 * 40 * VOCABULARY


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_counting_changes_no_bit(tiny_dir, tmp_path, method, checkpointing):
    """With dropout, so that a single number drawn more would show; over micro-batches, some of them watched."""
    settings = {"checkpointing": checkpointing, "max_steps": 4, "gradient_accumulation_steps": 2}
    on = train_causal(EfficientTrainer, tiny_dir, tmp_path / "on", method, **settings)
    off = train_causal(EfficientTrainer, tiny_dir, tmp_path / "off", method, mixin={"record_steps": False}, **settings)
    assert_same_run(on, off)
    assert categories(tmp_path / "on")["activations"] > 0


class Refuses(Trainer):
    """A forward in the middle of which a gradient is taken by ``torch.func``, as some fused losses do."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        torch.func.grad(lambda x: (x * x).sum())(torch.ones(2))
        return loss


def test_a_forward_that_bears_no_watching_is_run_again(tiny_dir, tmp_path, caplog):
    class Ours(EfficientTrainerMixin, Refuses):
        pass

    plain = train_causal(Refuses, tiny_dir, tmp_path / "plain")
    ours = train_causal(Ours, tiny_dir, tmp_path / "ours")
    assert_same_run(ours, plain)
    assert [one for one in caplog.messages if "report.html" not in one] == []
    assert gaps(tmp_path / "ours")["memory of activations and logits"] == (
        "torch refuses hooks on the saved tensors of this forward (it uses torch.func)"
    )
    assert categories(tmp_path / "ours").keys() == {"weights", "adapter", "gradients", "optimizer_state"}


class Fails(Trainer):
    def compute_loss(self, *args, **kwargs):
        raise RuntimeError("out of luck")


class OverFails(EfficientTrainerMixin, Fails): ...


def test_an_error_of_the_forward_stays_its_own(tiny_dir, tmp_path):
    with pytest.raises(RuntimeError, match="out of luck"):
        train_causal(OverFails, tiny_dir, tmp_path)


def test_the_callback_alone_counts_all_but_activations_and_changes_nothing(tiny_dir, tmp_path, plain_run):
    trainer = train_causal(Trainer, tiny_dir, tmp_path, callbacks=[AccountCallback()])
    assert_same_run(trainer, plain_run(3))
    assert categories(tmp_path) == {
        "weights": 4 * (TABLES + NORMS + LINEARS * WIDTH * WIDTH) + ROTARY_BYTES,
        "adapter": 4 * ADAPTER,
        "gradients": 4 * ADAPTER,
        "optimizer_state": 2 * 4 * ADAPTER + 4 * 2 * LINEARS,
    }
    assert gaps(tmp_path)["memory of activations and logits"] == "no event is given a batch"


@pytest.mark.slow
def test_under_torch_compile_the_forward_is_left_alone(tmp_path, monkeypatch):
    from torch._dynamo.backends import registry

    compiles = registry.lookup_backend("aot_eager")

    def slowly(*args, **kwargs):
        time.sleep(1.0)
        return compiles(*args, **kwargs)

    monkeypatch.setitem(registry._COMPILER_FNS, "aot_eager", slowly)

    class Perceptron(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, inputs):
            return {"loss": torch.tanh(self.layer(inputs)).square().sum()}

    def run(kind, output):
        torch.manual_seed(0)
        torch._dynamo.reset()
        trainer = kind(
            model=Perceptron(),
            args=arguments(output, torch_compile=True, torch_compile_backend="aot_eager"),
            train_dataset=[{"inputs": torch.full((4,), float(i))} for i in range(8)],
        )
        trainer.train()
        return trainer

    assert_same_run(run(EfficientTrainer, tmp_path / "ours"), run(Trainer, tmp_path / "plain"))
    assert gaps(tmp_path / "ours")["memory of activations and logits"].startswith("the model is compiled")
    steps = lines(tmp_path / "ours", "steps.jsonl")
    first = steps[0]["phase_seconds"]
    assert first["compilation"] >= 1.0 > first["forward"] + first["backward"]
    assert all("compilation" not in step["phase_seconds"] for step in steps[1:])
    account = account_of(tmp_path / "ours/efficiency")
    assert account.time.phase_seconds["compilation"] == pytest.approx(first["compilation"])
