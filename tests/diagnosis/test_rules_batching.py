"""Padding, the dtype of products, and micro-batches that are too small."""

import pytest

from hf_efficient.diagnosis.rules.batching import (
    accumulation,
    grouped_padding_share,
    padding_waste,
    saved_by_doubling,
    small_micro_batch,
)
from hf_efficient.diagnosis.rules.compute import emulated_bfloat16, float32_products
from hf_efficient.records.findings import Abstention
from tests.diagnosis.made import GIB, case_in, judged, memory, settings, step

PHASES = {"forward": 0.3, "backward": 0.5, "optimizer": 0.2}


def padded(count=10, non_padding=200, **arguments):
    steps = [step(n, processed=400, non_padding=non_padding, phases=PHASES) for n in range(1, count + 1)]
    return steps, {"settings": settings(arguments={"per_device_train_batch_size": 4, **arguments})}


def test_padding_costs_its_share_of_forward_and_backward(tmp_path):
    steps, facts = padded(packing=False, max_length=512)
    found = padding_waste(case_in(tmp_path, steps, facts=facts))
    # Half of the positions; 0.8 s of each of ten steps of 1 s.
    judged(found, severity="warning", cost=4.0)
    packing = next(one for one in found.remedies if "train.packing" in one.overrides)
    assert packing.gain.share == pytest.approx(0.4)


def test_grouping_leaves_the_padding_that_is_left_within_a_bucket(tmp_path):
    steps, facts = padded()
    steps = [{**one, "sequences": {**one["sequences"], "length_buckets": {"16": 3, "256": 1}}} for one in steps]
    found = padding_waste(case_in(tmp_path, steps, facts=facts))
    (grouped,) = found.remedies
    assert grouped.overrides == {"train.train_sampling_strategy": "group_by_length"}
    left = grouped_padding_share({"16": 30, "256": 10}, 4)
    assert grouped.gain.seconds == pytest.approx(8.0 * (1 - 0.5 / (1 - left)))


def test_rows_that_are_tokenised_as_they_are_collated_cannot_be_grouped(tmp_path):
    steps, facts = padded()
    for columns, grouped in ((["input_ids", "labels"], True), (["text"], False), (["chosen_input_ids"], False)):
        case = case_in(tmp_path / columns[0], steps, facts={**facts, "loader": {"columns": columns}})
        assert case.can_be_grouped is grouped


def test_little_padding_is_no_finding_and_uncounted_tokens_are_not_judged(tmp_path):
    steps, facts = padded(non_padding=350)
    assert padding_waste(case_in(tmp_path / "a", steps, facts=facts)) is None
    unknown = {"processed": None, "non_padding": None, "target": None}
    said = padding_waste(case_in(tmp_path / "b", [{**one, "tokens": unknown} for one in steps], facts=facts))
    assert isinstance(said, Abstention)


def test_like_lengths_have_no_padding_but_that_of_their_bucket():
    # 100 documents of one bucket, 84.1 to 100 tokens, in stretches of 24: 0.66 tokens from one to the next, so that the
    # other three of a batch lack 0.66, 1.3 and 2 of some 92: 1 of 92 on average.
    assert grouped_padding_share({"100": 100}, 4) == pytest.approx(1 / 92, abs=0.003)
    assert grouped_padding_share({}, 4) is None


def test_a_few_steps_of_a_large_data_set_do_not_make_its_stretches_short():
    seen = {"16": 3, "256": 3}
    assert grouped_padding_share(seen, 4) > 0.25  # a stretch of one batch, in which lengths are mixed
    assert grouped_padding_share(seen, 4, 6000) < 0.1


def test_no_lengths_no_share():
    assert grouped_padding_share({"100": 10}, None) is None


def multiplying(folder, recipe="", **parts):
    work = {"model_flops": 20_000_000_000, "hardware_flops": 20_000_000_000}
    steps = [step(n, phases=PHASES, work=work) for n in range(1, 11)]
    return case_in(folder, steps, facts={"settings": settings(**parts)}, recipe=recipe)


def fp32(folder, device="cpu"):
    peaks, about = {"fp32": 1e11, "bf16": 4e11}, {"type": device, "supports_bf16": True}
    return float32_products(multiplying(folder, model={"matmul_dtype": "fp32"}, device=about, peaks=peaks))


def test_float32_on_a_device_that_is_four_times_as_fast_in_bfloat16(tmp_path):
    found = fp32(tmp_path / "a")
    # Ten steps: 8 s of forward and backward, 2e11 FLOPs take 2 s at 1e11/s; 1.5 s of those go.
    judged(found, severity="warning", cost=1.5, overrides={"train.bf16": True}, share=0.15)
    on_a_gpu = fp32(tmp_path / "b", "cuda")
    assert on_a_gpu.cost.seconds == pytest.approx(1.5 + 1.5)  # and a quarter of the other 6 s


def bf16(folder, recipe=""):
    model, device = {"matmul_dtype": "bf16", "weights_dtype": "float32"}, {"type": "cpu", "supports_bf16": False}
    parts = {"model": model, "device": device, "peaks": {"fp32": 2.5e11, "bf16": 0.5e11}, "arguments": {"bf16": True}}
    return emulated_bfloat16(multiplying(folder, recipe, **parts))


def test_bfloat16_on_a_cpu_that_emulates_it_at_a_fifth_of_float32(tmp_path):
    found = bf16(tmp_path / "a")
    # Ten steps: 2e11 FLOPs take 4 s at 0.5e11/s; at 2.5e11/s a fifth of that: 3.2 s go.
    judged(found, severity="warning", cost=3.2, overrides={"train.bf16": False})
    qlora = bf16(tmp_path / "b", "recipe: {adapter: {method: qlora}}\nprovenance: {adapter.method: a}\n")
    dtypes = dict.fromkeys(("model.dtype", "adapter.quantization.compute_dtype"), "float32")
    assert qlora.remedies[0].overrides == {"train.bf16": False, **dtypes}


def sequences(longest, rows):
    buckets = {"32": rows, "128": rows} if longest > 100 else {"32": rows}
    return {"rows": rows, "documents": rows, "shortest": 20, "longest": longest, "length_buckets": buckets}


def batches(fixed, tokens, per_token=0.001, rows=1, accumulated=1, documents=False):
    arguments = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": accumulated}
    steps = []
    for number, held in enumerate(tokens, 1):
        compute = accumulated * (fixed + per_token * held)
        phases = {"forward": 0.4 * compute, "backward": 0.6 * compute, "optimizer": 0.1}
        part = step(number, processed=accumulated * held, phases=phases, micro_batches=accumulated)
        steps.append({**part, "sequences": sequences(held, rows) if documents else None})
    return steps, {"settings": settings(arguments=arguments)}


VARYING = [50, 100, 150] * 8


def test_the_fixed_time_of_a_micro_batch_is_read_off_batches_of_many_lengths(tmp_path):
    steps, facts = batches(0.3, VARYING)
    found = small_micro_batch(case_in(tmp_path, steps, facts=facts))
    # 0.3 s before any token, 0.1 s for the 100 of a mean one: three quarters.
    assert found.evidence[0].value == pytest.approx(0.3)
    assert found.evidence[2].value == pytest.approx(0.75, rel=0.01)
    # Of 24 steps of 0.3 + 0.1 + 0.1 s the fixed 0.3 s and the optimizer's 0.1 s: 16 times the rows save 15/16 of that,
    # 8 times 7/8, which is more than nine tenths as much.
    (remedy,) = found.remedies
    assert remedy.overrides == {"train.per_device_train_batch_size": 8}
    assert remedy.gain.seconds == pytest.approx(24 * (0.3 + 0.1) * 7 / 8, rel=0.01)


def test_the_padding_of_larger_batches_is_counted_and_grouping_avoids_it(tmp_path):
    steps, facts = batches(0.3, VARYING, documents=True)
    best, other = small_micro_batch(case_in(tmp_path, steps, facts=facts)).remedies
    assert best.overrides["train.train_sampling_strategy"] == "group_by_length"
    assert "train.train_sampling_strategy" not in other.overrides
    assert best.gain.seconds > other.gain.seconds
    assert "times the positions for the same tokens" in other.gain.basis


def test_a_busy_machine_does_not_tell_either(tmp_path):
    steps, facts = batches(0.3, VARYING)
    facts["settings"]["host"] = {"cores": 2, "torch_threads": 2}
    host = {"main_thread_core_wait": 0.5, "other_cores": 1.5}
    system = [{"at_seconds": float(second), "host": host} for second in range(1, 13)]
    said = small_micro_batch(case_in(tmp_path, steps, facts=facts, system=system))
    assert isinstance(said, Abstention)
    assert "50%" in said.why


def accumulated(times=8, fixed=0.06, each=0.001, count=21):
    """Steps of so many micro-batches of one row of 30 or 50 tokens, which take ``fixed + each * tokens`` seconds."""
    made = []
    for number in range(1, count + 1):
        tokens = 30 if number % 2 else 50
        seconds = times * (fixed + each * tokens)
        phases = {"forward": seconds / 4, "backward": 3 * seconds / 4}
        held = {"processed": times * tokens, "micro_batches": times, "length_buckets": {str(tokens): times}}
        made.append(step(number, rows=times, phases=phases, **held))
    return made


def facts(device_gib=16, kept=10_000, positions=50, **arguments):
    given = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, **arguments}
    return {
        "settings": settings(arguments=given, device={"type": "cpu", "memory_bytes": device_gib * GIB}),
        "memory": memory(positions, activations=kept),
    }


def test_accumulation_beside_idle_memory_is_found_with_what_larger_micro_batches_save(tmp_path):
    found = accumulation(case_in(tmp_path, accumulated(), facts=facts()))
    assert "accumulates 8 micro-batches of 1 row, 60% of whose time" in found.title
    best = found.remedies[0]
    rows, times = (f"train.{name}" for name in ("per_device_train_batch_size", "gradient_accumulation_steps"))
    assert best.overrides[rows] * best.overrides[times] == 8
    # Without padding: 0.06 / 8 + 0.04 = 0.0475 of 0.1 s are left; the lengths differ by 5/3, so that some is padding.
    assert 0.4 < best.gain.share < 0.525
    assert found.cost.seconds == best.gain.seconds


def test_it_abstains_where_memory_or_the_fixed_cost_is_not_known(tmp_path):
    unknown = facts()
    unknown.pop("memory")
    said = accumulation(case_in(tmp_path, accumulated(), facts=unknown))
    assert isinstance(said, Abstention)
    assert "memory" in said.why
    said = accumulation(case_in(tmp_path / "few", accumulated(count=4), facts=facts()))
    assert isinstance(said, Abstention)
    assert "is not known" in said.why
    assert isinstance(accumulation(case_in(tmp_path / "none", facts=facts())), Abstention)


def test_small_micro_batches_out_of_an_accumulation_are_told_once(tmp_path):
    assert small_micro_batch(case_in(tmp_path / "accumulated", accumulated(), facts=facts())) is None
    alone = case_in(tmp_path / "alone", accumulated(times=1), facts=facts(gradient_accumulation_steps=1))
    assert small_micro_batch(alone).rule == "small_micro_batch"


def test_what_twice_the_rows_save_is_known_below_a_finding_too(tmp_path):
    made = accumulated()
    for one in made:
        one["sequences"] = None
    # 0.1 s, of which 0.06 s fixed, become 0.03 + 0.04 s; padding is not known.
    assert saved_by_doubling(case_in(tmp_path, made, facts=facts())) == pytest.approx(0.3, rel=0.01)
    padded = saved_by_doubling(case_in(tmp_path / "padded", accumulated(), facts=facts()))
    assert padded is not None
    assert padded < 0.28
    odd = case_in(tmp_path / "odd", accumulated(times=7), facts=facts(gradient_accumulation_steps=7))
    assert saved_by_doubling(odd) is None
    assert saved_by_doubling(case_in(tmp_path / "few", accumulated(count=4), facts=facts())) is None
