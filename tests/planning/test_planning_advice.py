"""Which changes are proposed, in which order, when they are put together, and the most that fits."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from planned_recipes import MIB, device, memory, tiny_recipe

from hf_efficient.errors import ModelError
from hf_efficient.planning import advice as advice_module
from hf_efficient.planning.advice import Trial, Trials, advise, cheapest_fix, most_that_fits, with_advice, with_largest
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.plan import plan
from hf_efficient.recipe.load import change_recipe
from hf_efficient.records.plan import PlannedAdvice, PlannedChange, PlannedOutcome

ALL = {"weights": 30, "activations": 30, "logits": 20, "optimizer_state": 20}


class HandWorked(Trials):
    """In place of a simulation, memory and speed by a formula, in MiB and tokens per second; logits are left out. Rows
    of 10 with activations, of 1 with activation checkpointing, which takes a quarter of the speed; all weights 100 and
    as much for their optimizer, which 8 bits make 25; LoRA 100, QLoRA 40 at 0.9 of the speed."""

    def __init__(self, config, limit):
        super().__init__(config, device(limit))
        self.limit = limit

    def run(self, recipe, length=None):
        self.done += 1
        train = recipe.train
        rows, checkpointing = train["per_device_train_batch_size"], train.get("gradient_checkpointing", True)
        state = 25 if "8bit" in train.get("optim", "") else 100
        held = {"full": 100 + state, "lora": 100, "qlora": 40}[recipe.adapter.method]
        needed = held + rows * (1 if checkpointing else 10) * train["max_length"] // 256
        speed = 1000 * (0.75 if checkpointing else 1) * (0.9 if recipe.adapter.method == "qlora" else 1)
        return Trial(PlannedOutcome(needed * MIB, needed <= self.limit, 1.0, speed), memory(**ALL))


@pytest.fixture
def advised(tmp_path, monkeypatch):
    """The advice for the tiny recipe on an accelerator of so many MiB, and how many simulations it took."""
    monkeypatch.chdir(tmp_path)

    def build(limit, *overrides):
        recipe = tiny_recipe(tmp_path, *overrides)
        config = model_config(recipe.model)
        start = HandWorked(config, limit).run(recipe)
        trials = HandWorked(config, limit)
        return advise(recipe, trials, start), trials

    return build


def listed(advice):
    return [(change.overrides, change.after.needed_bytes // MIB, change.after.fits) for change in advice.changes]


STORED = ("adapter.method=full", "train.gradient_checkpointing=false", "train.per_device_train_batch_size=8")


def test_changes_that_fit_and_keep_the_training_come_first_and_of_these_the_fastest(advised):
    """280 MiB as it is: 205 with an 8-bit optimizer, 208 with checkpointing, 240 with half of the batch."""
    found, _ = advised(240, *STORED)
    assert found.before.needed_bytes == 280 * MIB
    assert listed(found) == [
        ({"train.optim": "adamw_8bit"}, 205, True),
        ({"train.optim": "paged_adamw_8bit"}, 205, True),
        ({"train.per_device_train_batch_size": 4, "train.gradient_accumulation_steps": 4}, 240, True),
        ({"train.gradient_checkpointing": True}, 208, True),
        (
            {"train.gradient_checkpointing": True, "train.gradient_checkpointing_kwargs": {"every_n_layers": 2}},
            208,
            True,
        ),
        ({"adapter.method": "lora"}, 180, True),
        ({"train.max_length": 128}, 240, True),
        ({"train.loss_type": "chunked_nll"}, 280, False),
    ]
    # Two halvings save 60 of the 80 MiB: what one saves (40), and half as much again.
    found, _ = advised(220, *STORED)
    quartered = {"train.per_device_train_batch_size": 2, "train.gradient_accumulation_steps": 8}
    assert (quartered, 220, True) in listed(found)
    assert ({"train.max_length": 128}, 240, False) in listed(found)  # 64 is too short to be proposed


def test_changes_are_put_together(advised):
    """To 120 MiB: checkpointing and 8-bit AdamW leave 133, of one row at a time 126. LoRA and checkpointing: 108."""
    found, _ = advised(120, *STORED)
    first = found.changes[0]
    assert first.overrides == {"adapter.method": "lora", "train.gradient_checkpointing": True}
    assert first.after.needed_bytes == 108 * MIB
    assert not first.keeps_training
    assert "low-rank updates" in first.costs
    assert "computed twice" in first.costs
    assert [change.after.fits for change in found.changes[1:]] == [False] * (len(found.changes) - 1)
    # To 180 MiB: LoRA alone is enough. So are an 8-bit optimizer (saves 75) and checkpointing (72): 133.
    found, _ = advised(180, *STORED)
    assert listed(found)[:2] == [
        ({"train.optim": "adamw_8bit", "train.gradient_checkpointing": True}, 133, True),
        ({"adapter.method": "lora"}, 180, True),
    ]
    assert found.changes[0].keeps_training


def test_no_more_simulations_than_there_is_time_for(advised, monkeypatch):
    monkeypatch.setattr(advice_module, "MOST_TRIALS", 2)
    found, trials = advised(180, *STORED)
    assert trials.done == 2
    assert [tuple(change.overrides) for change in found.changes] == [
        ("train.loss_type",),
        ("train.gradient_checkpointing",),
    ]
    assert "train.optim=adamw_8bit: not tried: the time for advice was over" in found.left_out


def test_a_change_that_the_run_would_refuse_is_left_out_with_its_reason(advised, monkeypatch):
    def refuse(self, recipe, length=None):
        if recipe.adapter.method == "qlora":
            raise ModelError("adapter.method: no.\nMore.")
        return held(self, recipe, length)

    held = HandWorked.run
    monkeypatch.setattr(HandWorked, "run", refuse)
    found, _ = advised(100)
    assert found.left_out == ["adapter.method=qlora: adapter.method: no."]
    assert {"adapter.method": "qlora"} not in [change.overrides for change in found.changes]


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """A recipe on the tiny model, a device of so many MiB, and the plan of one for the other, really simulated."""
    monkeypatch.chdir(tmp_path)

    def build(mebibytes, *overrides):
        gpu = device(mebibytes)
        for place in ("facts.tables", "planning.advice"):
            monkeypatch.setattr(f"hf_efficient.{place}.accelerator", lambda name: gpu)
        recipe = tiny_recipe(tmp_path, *overrides)
        return recipe, gpu, plan(recipe, ["Toy"])

    return build


@pytest.mark.slow
def test_the_cheapest_fix_really_fits(planned):
    recipe, _, found = planned(475, "train.per_device_train_batch_size=8", "train.gradient_checkpointing=false")
    advised = with_advice(recipe, found)
    assert not advised.gpus[0].fits
    overrides = cheapest_fix(advised)
    again = plan(advice_module.change_recipe(recipe, overrides), ["Toy"])
    assert again.gpus[0].fits
    assert again.gpus[0].needed_bytes == advised.advice.changes[0].after.needed_bytes
    assert again.gpus[0].step_seconds == advised.advice.changes[0].after.step_seconds
    assert advised.advice.before.needed_bytes == advised.gpus[0].needed_bytes


def test_one_simulation_does_not_change_the_next(tmp_path, monkeypatch):
    """transformers writes the attention and the dtype that a model is built with into its configuration."""
    monkeypatch.chdir(tmp_path)
    recipe = tiny_recipe(tmp_path)
    trials = Trials(model_config(recipe.model), device(1000))
    first = trials.run(recipe)
    trials.run(tiny_recipe(tmp_path, "model.attn_implementation=eager", "model.dtype=float32"))
    assert trials.run(recipe) == first
    assert trials.done == 3


def test_the_fix_is_the_first_change_that_fits():
    fits, larger = PlannedOutcome(10, True, 1.0, 100.0), PlannedOutcome(30, False, 1.0, 90.0)
    sharded = {"distributed.strategy": "zero3", "distributed.offload.optimizer": True}
    changes = [
        PlannedChange(overrides, "", "", True, larger, after)
        for overrides, after in (({"train.max_length": 512}, larger), (sharded, fits), ({"train.optim": "sgd"}, fits))
    ]
    advice = PlannedAdvice("Toy", 20, 20, larger, changes)
    assert cheapest_fix(SimpleNamespace(advice=advice)) == sharded
    assert cheapest_fix(SimpleNamespace(advice=replace(advice, changes=changes[:1]))) is None


def test_a_fault_of_one_simulation_leaves_the_others(advised, monkeypatch, caplog):
    run = HandWorked.run

    def broken(self, recipe, length=None):
        if recipe.adapter.method == "lora":
            raise ZeroDivisionError("planted")
        return run(self, recipe, length)

    monkeypatch.setattr(HandWorked, "run", broken)
    found, _ = advised(240, *STORED)
    assert any("adapter.method" not in one.overrides for one in found.changes)
    assert "adapter.method=lora: its simulation failed, a defect of hf_efficient: ZeroDivisionError: planted" in (
        found.left_out
    )
    assert "could not be simulated" in caplog.text


def outcome(needed, limit=1000):
    return PlannedOutcome(needed, needed <= limit, None, None)


def search(needed, known=(), most=10_000):
    """The count found, and the counts looked at."""
    looked = []

    def probe(count):
        looked.append(count)
        return outcome(needed(count))

    found = most_that_fits(probe, 1000, {count: outcome(needed(count)) for count in known}, most)
    return found, looked


def test_on_a_line_two_points_tell_and_one_more_confirms():
    """100 + 7 n: 128 are 996, 129 are 1003."""
    assert search(lambda count: 100 + 7 * count, known=[4]) == (128, [8, 128, 129])
    # At 200: 1500. The half of it fits, and the line through both tells the rest.
    assert search(lambda count: 100 + 7 * count, known=[200]) == (128, [100, 128, 129])
    assert search(lambda count: 1100 + count, known=[4])[0] == 0
    assert search(lambda count: 100 + count, known=[4], most=64) == (64, [8, 64])


@pytest.mark.parametrize(
    ("needed", "expected"),
    [
        (lambda count: count * count, 31),
        (lambda count: 900 + count // 16 * 40, 47),  # in steps, as an allocator's segments
        (lambda count: 500 if count < 77 else 5000, 76),
        (lambda count: 10 * count + (300 if count > 40 else 0), 70),
    ],
)
@pytest.mark.parametrize("start", [1, 50, 900])
def test_where_it_is_no_line(needed, expected, start):
    found, looked = search(needed, known=[start])
    assert found == expected
    assert len(looked) < 20


@pytest.mark.slow
def test_what_is_found_fits_and_one_more_does_not(planned):
    recipe, gpu, found = planned(560)
    largest = with_largest(recipe, found).largest
    assert not largest.rows_bounded
    trials = Trials(model_config(recipe.model), gpu)
    rows = largest.micro_batch_rows
    fits = [
        trials.run(change_recipe(recipe, {"train.per_device_train_batch_size": count})).outcome.fits
        for count in (rows, rows + 1)
    ]
    assert fits == [True, False]
    assert rows > 4
    fits = [trials.run(recipe, length).outcome.fits for length in (largest.row_tokens, largest.row_tokens + 64)]
    assert fits == [True, False]
    assert largest.row_tokens % 64 == 0


@pytest.mark.slow
def test_no_row_is_longer_than_the_models_positions(planned):
    recipe, _, found = planned(4096, "train.per_device_train_batch_size=1")
    largest = with_largest(recipe, found).largest
    assert (largest.row_tokens, largest.tokens_bounded) == (1024, True)


@pytest.mark.slow
def test_not_even_one_row(planned):
    recipe, gpu, found = planned(430)
    largest = with_largest(recipe, found).largest
    assert gpu.memory_bytes == 430 * MIB
    assert (largest.micro_batch_rows, largest.row_tokens) == (0, 0)
