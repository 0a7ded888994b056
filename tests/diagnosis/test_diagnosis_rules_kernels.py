"""Attention and optimizer that are computed operator by operator, and layers that are computed twice."""

from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.checkpointing import checkpointing_unneeded
from hf_efficient.diagnosis.rules.compute import attention_kernel, optimizer_kernel
from hf_efficient.records.findings import Abstention
from tests.diagnosis.cases import case_in, settings, step
from tests.diagnosis.memory_facts import GIB, memory

WORK = {"work": {"model_flops": 300, "hardware_flops": 800}}


def optimizing(seconds, **more):
    return [step(n, phases={"forward": 0.4, "backward": 0.6, "optimizer": seconds}, **more) for n in range(1, 11)]


def not_fused(device="cpu", **optimizer):
    held = {"class": "AdamW", "fused": False, **optimizer}
    return {"settings": settings(optimizer=held, device={"type": device}, arguments={"optim": "adamw_torch"})}


def test_an_optimizer_that_is_not_fused_is_found_with_two_thirds_of_its_time(tmp_path):
    found = optimizer_kernel(case_in(tmp_path, optimizing(1.0), facts=not_fused()))
    assert found.title == "the optimizer takes 50% of the loop, operator by operator: it is not fused"
    assert found.remedies[0].overrides == {"train.optim": "adamw_torch_fused"}
    assert found.remedies[0].gain.share == pytest.approx(1 / 3)
    assert found.cost.seconds == pytest.approx(10)


def test_on_a_device_the_optimizer_is_timed_by_its_own_events(tmp_path):
    steps = optimizing(0.0, device_seconds={"forward": 0.2, "optimizer": 0.25})
    found = optimizer_kernel(case_in(tmp_path, steps, facts=not_fused("cuda")))
    assert found.evidence[0].source == "steps.jsonl: device_seconds.optimizer"
    assert found.remedies[0].gain.seconds == pytest.approx(10 * 0.25 * 2 / 3)


def test_a_fused_short_or_other_optimizer_is_no_finding(tmp_path):
    assert optimizer_kernel(case_in(tmp_path / "a", optimizing(1.0), facts=not_fused(fused=True))) is None
    assert optimizer_kernel(case_in(tmp_path / "b", optimizing(0.05), facts=not_fused())) is None
    assert optimizer_kernel(case_in(tmp_path / "c", optimizing(1.0), facts=not_fused(**{"class": "SGD"}))) is None
    assert optimizer_kernel(case_in(tmp_path / "d", optimizing(1.0), facts=not_fused("mps"))) is None


def long_rows(square, linear=1e-4, lengths=(1000, 1500, 2000), more=None):
    """One row a step; ``linear * tokens + square * tokens ** 2`` seconds."""
    made = []
    for number in range(1, 22):
        tokens = lengths[number % len(lengths)]
        seconds = linear * tokens + square * tokens**2
        phases = {"forward": seconds / 3, "backward": 2 * seconds / 3}
        made.append(step(number, rows=1, processed=tokens, phases=phases, **(more or {})))
    return made


def eager(device="cpu", **model):
    return {"settings": settings(model={"attention": "eager", **model}, device={"type": device})}


def test_eager_attention_on_long_rows_is_found_by_what_grows_with_the_square(tmp_path):
    # The mean square of 1000, 1500 and 2000 is 2.41667e6, their mean 1500: 0.15 s linear, 0.24167 s square.
    found = attention_kernel(case_in(tmp_path, long_rows(1e-7), facts=eager()))
    assert found.evidence[1].value == pytest.approx(0.24167 / 0.39167, rel=0.01)
    # The longer ones count more: (1000**2 + 1500**2 + 2000**2) / 4500 = 1611.
    assert "62% of the loop on rows of 1,6" in found.title.replace("61.7%", "62%")
    assert found.remedies[0].overrides == {"model.attn_implementation": "sdpa"}
    assert found.remedies[0].gain.share == pytest.approx(0.7 * 0.617, rel=0.01)


def test_rows_of_one_length_tell_attention_by_its_flops(tmp_path):
    work = {"work": {"model_flops": 80, "hardware_flops": 100}}
    steps = long_rows(1e-7, lengths=(1000,), more=work)
    found = attention_kernel(case_in(tmp_path / "flops", steps, facts=eager("cuda")))
    assert found.evidence[1].value == pytest.approx(0.4)  # 2 * (1 - 0.8)
    assert found.remedies[0].gain.share == pytest.approx(0.8 * 0.4)
    padded = [{**one, "tokens": {**one["tokens"], "non_padding": 750}} for one in steps]
    padded = [{**one, "work": {"model_flops": 45, "hardware_flops": 100}} for one in padded]
    found = attention_kernel(case_in(tmp_path / "padded", padded, facts=eager("cuda")))
    assert found.evidence[1].value == pytest.approx(0.64)
    assert found.remedies[0].gain.share == pytest.approx(0.7 * 0.64)


def test_attention_that_cannot_be_told_apart_is_not_judged(tmp_path):
    steps = long_rows(1e-7, lengths=(1000,))
    assert isinstance(attention_kernel(case_in(tmp_path / "a", steps, facts=eager())), Abstention)
    work = long_rows(1e-7, lengths=(1000,), more=WORK)
    case = case_in(tmp_path / "b", work, facts=eager(activation_checkpointing=True))
    assert isinstance(attention_kernel(case), Abstention)


def test_fused_attention_and_short_rows_are_no_finding(tmp_path):
    assert attention_kernel(case_in(tmp_path / "a", long_rows(1e-7), facts=eager(attention="sdpa"))) is None
    assert attention_kernel(case_in(tmp_path / "b", long_rows(1e-9), facts=eager())) is None
    short = long_rows(1e-6, lengths=(100, 150, 200))
    assert attention_kernel(case_in(tmp_path / "c", short, facts=eager())) is None


def checkpointed(forward=1.0, backward=2.6, work=None):
    work = work or {"model_flops": 300, "hardware_flops": 800}
    phases = {"forward": forward, "backward": backward, "optimizer": 0.4}
    return [step(n, phases=phases, non_padding=200, work=work) for n in range(1, 11)]


def with_checkpointing(kept=100 << 20, on=True, trained=100, device_gib=16, **arguments):
    model = {"activation_checkpointing": on, "parameters": 100, "trainable_parameters": trained}
    device = {"type": "cpu", "memory_bytes": device_gib * GIB}
    return {
        "settings": settings(model=model, device=device, arguments=arguments),
        "memory": memory(400, activations=kept),
    }


def test_checkpointing_beside_idle_memory_is_found_with_the_second_forward(tmp_path):
    found = checkpointing_unneeded(case_in(tmp_path, checkpointed(), facts=with_checkpointing()))
    # By FLOPs 1 - 300 / 0.5 / 800 = 0.25 of 3.6 s = 0.9 s of each step of 4 s; by time the forward's 1 s.
    assert found.remedies[0].gain.share == pytest.approx(0.225)
    assert found.remedies[0].overrides == {"train.gradient_checkpointing": False}
    assert found.evidence[-1].value == 29 * (100 << 20)
    assert found.remedies[0].costs == "about 2.83 GiB more memory"


def test_the_newer_name_is_changed_where_the_run_has_it(tmp_path):
    facts = with_checkpointing(activation_checkpointing=True)
    found = checkpointing_unneeded(case_in(tmp_path, checkpointed(), facts=facts))
    assert found.remedies[0].overrides == {"train.activation_checkpointing": False}


def test_the_second_forward_takes_no_longer_than_the_first(tmp_path):
    found = checkpointing_unneeded(case_in(tmp_path, checkpointed(0.5, 3.1), facts=with_checkpointing()))
    assert found.remedies[0].gain.share == pytest.approx(0.5 / 4)


def test_under_an_adapter_half_of_the_other_flops_is_forward(tmp_path):
    # 0.25 / (0.75 / 2) = two thirds of the forward are layers.
    facts = with_checkpointing(trained=1)
    found = checkpointing_unneeded(case_in(tmp_path, checkpointed(0.9, 2.7), facts=facts))
    assert found.remedies[0].gain.share == pytest.approx(0.6 / 4)


def test_without_flops_the_forward_itself_tells(tmp_path):
    steps = [{**one, "work": None} for one in checkpointed()]
    found = checkpointing_unneeded(case_in(tmp_path, steps, facts=with_checkpointing()))
    assert found.remedies[0].gain.share == pytest.approx(0.25)


def test_checkpointing_that_is_off_or_needed_is_no_finding(tmp_path):
    assert checkpointing_unneeded(case_in(tmp_path / "a", checkpointed(), facts=with_checkpointing(on=False))) is None
    needed = with_checkpointing(kept=GIB)  # 29 GiB more, of 16
    assert checkpointing_unneeded(case_in(tmp_path / "b", checkpointed(), facts=needed)) is None


def test_checkpointing_is_not_judged_without_memory(tmp_path):
    facts = with_checkpointing()
    facts.pop("memory")
    assert isinstance(checkpointing_unneeded(case_in(tmp_path, checkpointed(), facts=facts)), Abstention)
