"""The mixin over, and the trainer under, classes of a user's own."""

import pytest
import torch
from datasets import Dataset
from datasets.fingerprint import Hasher
from tiny_training import arguments, assert_same_run, build_model, collator, losses, records, rows, train_causal
from transformers import Trainer

from hf_efficient.trainer import EfficientTrainer, EfficientTrainerMixin


class Cooperative(Trainer):
    """Overrides with super()."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return (result[0] * 2, result[1]) if return_outputs else result * 2

    def log(self, logs, start_time=None):
        logs["mine"] = 1.0
        super().log(logs, start_time)


class OnItsOwn(Trainer):
    """Overrides without super(), with a signature of its own."""

    def __init__(self, model, args):
        super().__init__(model=model, args=args, data_collator=collator(), train_dataset=rows())

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        loss = self.compute_loss(model, inputs)
        loss.backward()
        return loss.detach()

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return (outputs.loss * 3, outputs) if return_outputs else outputs.loss * 3

    def log(self, logs, start_time=None):
        self.state.log_history.append({**logs, "step": self.state.global_step})


class MixinOverCooperative(EfficientTrainerMixin, Cooperative): ...


class MixinOverOnItsOwn(EfficientTrainerMixin, OnItsOwn): ...


class BelowEfficient(EfficientTrainer):
    """A user's class over ours, without super()."""

    compute_loss = OnItsOwn.compute_loss
    training_step = OnItsOwn.training_step
    log = OnItsOwn.log


def phases(folder):
    return [set(record.phase_seconds) for record in records(folder)]


@pytest.mark.slow
def test_mixin_over_a_cooperative_subclass(tiny_dir, tmp_path):
    plain = train_causal(Cooperative, tiny_dir, tmp_path / "a", gradient_accumulation_steps=2)
    ours = train_causal(MixinOverCooperative, tiny_dir, tmp_path / "b", gradient_accumulation_steps=2)
    assert_same_run(ours, plain)
    assert [entry["mine"] for entry in ours.state.log_history] == [1.0] * 4
    every = {"data_wait", "host_to_device", "forward", "backward", "optimizer", "bookkeeping", "logging"}
    assert phases(tmp_path / "b") == [every] * 3


@pytest.mark.slow
def test_mixin_over_a_subclass_that_goes_its_own_way(tiny_dir, tmp_path):
    runs = []
    for kind in (OnItsOwn, MixinOverOnItsOwn):
        trainer = kind(build_model(tiny_dir, "lora"), arguments(tmp_path / kind.__name__))
        trainer.train()
        runs.append(trainer)
    assert_same_run(runs[1], runs[0])
    # Its own training_step neither prepares the inputs nor runs the backward through the accelerator.
    seen = {"data_wait", "forward", "optimizer", "bookkeeping", "logging"}
    assert phases(tmp_path / "MixinOverOnItsOwn") == [seen] * 3


@pytest.mark.slow
def test_a_subclass_of_ours_that_goes_its_own_way(tiny_dir, tmp_path):
    plain = OnItsOwn(build_model(tiny_dir, "lora"), arguments(tmp_path / "a"))
    plain.train()
    ours = train_causal(BelowEfficient, tiny_dir, tmp_path / "b")
    assert losses(ours) == losses(plain)
    assert phases(tmp_path / "b") == [{"data_wait", "forward", "optimizer", "bookkeeping", "logging"}] * 3


@pytest.mark.slow
def test_model_init_is_trained_and_guarded_anew(tiny_dir, tmp_path):
    runs = []
    for kind in (Trainer, EfficientTrainer):
        trainer = kind(
            model_init=lambda: build_model(tiny_dir, "qlora"),
            args=arguments(tmp_path / kind.__name__, max_steps=2),
            data_collator=collator(),
            train_dataset=rows(),
            eval_dataset=rows(4),
        )
        if kind is EfficientTrainer:
            trainer.evaluate()
        trainer.train()
        runs.append(trainer)
    assert_same_run(runs[1], runs[0])
    layers = [m for m in runs[1].model.modules() if hasattr(m, "support_avx512bf16_for_cpu")]
    assert [layer.support_avx512bf16_for_cpu for layer in layers] == [False] * 14


@pytest.mark.slow
def test_a_batch_size_that_is_found_by_failing(tiny_dir, tmp_path):
    """auto_find_batch_size starts the loop again; the records are those of the loop that went through."""

    class Narrow(EfficientTrainer):
        def training_step(self, model, inputs, *args, **kwargs):
            if inputs["input_ids"].shape[0] > 7:
                raise RuntimeError("CUDA out of memory.")
            return super().training_step(model, inputs, *args, **kwargs)

    train_causal(Narrow, tiny_dir, tmp_path, max_steps=2, per_device_train_batch_size=8, auto_find_batch_size=True)
    found = [(r.step, r.micro_batches) for r in records(tmp_path)]
    assert found == [(1, 1), (2, 1)]


def test_the_mixin_goes_first():
    with pytest.raises(TypeError, match=r"^write: class Behind\(EfficientTrainerMixin, Trainer\)$"):
        type("Behind", (Trainer, EfficientTrainerMixin), {})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"budget": "2h"}, r'budget: write, for instance, budget=\{"hours": 2\}'),
        ({"rates": {"price_usd_per_hour": 1}}, r"rates: write, for instance, rates=Rates\("),
    ],
)
def test_an_argument_of_another_type_is_refused_at_once(tmp_path, options, told):
    with pytest.raises(TypeError, match=told):
        EfficientTrainer(torch.nn.Linear(2, 2), arguments(tmp_path), **options)


class Tokenises(Trainer):
    """A method of its own over the rows, in other processes, before Trainer is built; ``datasets`` also hashes it."""

    def __init__(self, model, args):
        self.hash = Hasher.hash(self.cut)
        held = Dataset.from_list(rows()).map(self.cut, num_proc=2)
        super().__init__(model, args, train_dataset=held, data_collator=collator())

    def cut(self, row):
        return {"input_ids": row["input_ids"][:3]}


def test_a_trainer_may_map_a_method_of_its_own_over_rows(tiny_dir, tmp_path):
    kind = type("Ours", (EfficientTrainerMixin, Tokenises), {})
    first, second = (kind(build_model(tiny_dir, "full"), arguments(tmp_path, max_steps=1)) for _ in range(2))
    assert first.hash == second.hash
    second.train()
    assert second.train_dataset[0]["input_ids"] == rows()[0]["input_ids"][:3]
