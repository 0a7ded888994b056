"""Training that goes wrong without an error."""

from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.learning import (
    few_loss_tokens,
    masked_labels,
    no_gradient,
    not_finite_steps,
    scaler_skips,
    truncated_examples,
)
from hf_efficient.records.findings import Abstention
from tests.diagnosis.cases import case_in, settings, step


def labelled(counts, processed=400):
    steps = [step(number, processed=processed) for number in range(1, len(counts) + 1)]
    for one, count in zip(steps, counts, strict=True):
        one["tokens"] = {**one["tokens"], "loss_bearing": count}
    return steps


def counted(arguments=None, device=None, **silent):
    stated = {"settings": settings(arguments=arguments or {}, device=device or {"type": "cpu"})}
    return {**stated, "silent_failures": silent}


def test_a_parameter_without_gradient_is_critical_and_named(tmp_path):
    facts = counted(trainable_parameters=38, without_gradient=2, names_without_gradient=["head.weight", "head.bias"])
    found = no_gradient(case_in(tmp_path, [step()], facts=facts))
    assert found.title == "2 of 38 trainable tensors get no gradient: head.weight, head.bias"
    assert found.severity == "critical"


def test_experts_that_no_token_chose_yet_are_no_proof(tmp_path):
    facts = counted(trainable_parameters=38, without_gradient=1, names_without_gradient=["experts.3.up_proj.weight"])
    found = no_gradient(case_in(tmp_path, [step()], facts=facts))
    assert (found.severity, found.confidence) == ("warning", "possible")


def test_gradients_everywhere_are_no_finding_and_unseen_ones_no_verdict(tmp_path):
    facts = counted(trainable_parameters=38, without_gradient=0, names_without_gradient=[])
    assert no_gradient(case_in(tmp_path / "a", [step()], facts=facts)) is None
    assert isinstance(no_gradient(case_in(tmp_path / "b", [step()])), Abstention)
    assert isinstance(no_gradient(case_in(tmp_path / "c")), Abstention)


def test_labels_that_are_mostly_masked(tmp_path):
    found = masked_labels(case_in(tmp_path, labelled([8] * 10)))
    assert found.title == "only 2% of the tokens bear loss: the labels are mostly masked"
    assert found.severity == "warning"
    assert found.explains == ["few_loss_tokens"]


def test_steps_without_any_label_are_critical(tmp_path):
    found = masked_labels(case_in(tmp_path, labelled([0, 400, 400, 400])))
    assert found.title == "25% of the steps hold no token that bears loss"
    assert found.severity == "critical"


def test_labels_of_answers_alone_are_no_finding(tmp_path):
    case = case_in(tmp_path, labelled([80] * 10))
    assert masked_labels(case) is None
    assert few_loss_tokens(case) is None


def test_an_update_of_a_handful_of_tokens(tmp_path):
    facts = {"settings": settings(arguments={"gradient_accumulation_steps": 2})}
    found = few_loss_tokens(case_in(tmp_path, labelled([8, 8, 300], processed=40), facts=facts))
    assert found.title == "an update learns from 8 tokens"
    # 512 / 8 = 64 times as many, of which 16 at most are advised.
    assert found.remedies[0].overrides == {"train.gradient_accumulation_steps": 32}


def test_tokens_of_all_ranks_are_learnt_from(tmp_path):
    case = case_in(tmp_path, labelled([20] * 4), other_ranks={1: labelled([20] * 4)})
    assert few_loss_tokens(case) is None


@pytest.mark.parametrize("rule", [masked_labels, few_loss_tokens])
def test_unknown_labels_are_no_verdict(tmp_path, rule):
    assert isinstance(rule(case_in(tmp_path / "a")), Abstention)
    assert isinstance(rule(case_in(tmp_path / "b", labelled([None] * 5))), Abstention)


def test_losses_that_are_no_number_with_their_cause(tmp_path):
    steps = labelled([0, 400, 400, 400, 0, 400])
    found = not_finite_steps(case_in(tmp_path, steps, facts=counted(losses=6, losses_not_finite=2)))
    assert found.title == (
        "33.3% of the micro-batches have a loss that is no number: 2 steps hold no label to learn from"
    )
    assert found.severity == "critical"
    assert found.explains == ["masked_labels", "few_loss_tokens"]


def test_overflow_in_float16_has_a_remedy(tmp_path):
    facts = counted({"fp16": True}, {"type": "cuda", "supports_bf16": True}, losses=4, losses_not_finite=1)
    found = not_finite_steps(case_in(tmp_path, labelled([400] * 4), facts=facts))
    assert found.title == "25% of the micro-batches have a loss that is no number"
    assert found.explains == []
    assert found.remedies[0].overrides == {"train.fp16": False, "train.bf16": True}


def test_a_logged_loss_that_is_no_number_counts(tmp_path):
    steps = [step(1, loss=2.0), {**step(2), "loss": "nan"}]
    assert not_finite_steps(case_in(tmp_path, steps)).title == "the Trainer logged a loss that is no number"


def test_finite_losses_are_no_finding_and_uncounted_ones_no_verdict(tmp_path):
    fine = case_in(tmp_path / "a", [step(1, loss=2.0)], facts=counted(losses=1, losses_not_finite=0))
    assert not_finite_steps(fine) is None
    assert isinstance(not_finite_steps(case_in(tmp_path / "b", [step(1, loss=2.0)])), Abstention)


def test_skipped_updates(tmp_path):
    bf16 = {"type": "cuda", "supports_bf16": True}
    steps = [step(number) for number in range(1, 11)]
    found = scaler_skips(
        case_in(tmp_path / "a", steps, facts=counted({"fp16": True}, bf16, updates=100, skipped_updates=20))
    )
    assert found.title == "20% of the updates are skipped: gradients overflow in float16"
    assert found.cost.seconds == pytest.approx(2.0)
    assert found.remedies[0].overrides == {"train.fp16": False, "train.bf16": True}
    assert found.remedies[0].gain.share == pytest.approx(0.2)
    settling = counted({"fp16": True}, bf16, updates=40, skipped_updates=5)
    assert scaler_skips(case_in(tmp_path / "b", steps, facts=settling)) is None
    assert scaler_skips(case_in(tmp_path / "c", steps, facts=counted({}, updates=9, skipped_updates=9))) is None
    assert isinstance(scaler_skips(case_in(tmp_path / "d", steps, facts=counted({"fp16": True}))), Abstention)


def test_examples_that_a_recipe_cut(tmp_path):
    facts = {
        "settings": settings(arguments={"max_length": 512}),
        "data": {"examples": 200, "truncated": 80, "longest": 1000},
    }
    found = truncated_examples(case_in(tmp_path, [step()], facts=facts))
    assert found.title == "40% of the examples are cut at 512 tokens, and their ends are not learnt"
    assert found.severity == "warning"
    assert found.remedies[0].overrides == {"train.max_length": 1024}
    facts["data"] |= {"examples": 50, "dropped_masked": 50}  # cut, they had no label left
    found = truncated_examples(case_in(tmp_path / "b", [step()], facts=facts))
    assert found.title.startswith("80% of the examples are cut")


def test_examples_that_pile_up_at_the_limit(tmp_path):
    facts = {"settings": settings(arguments={"max_length": 100})}
    piled = [step(length_buckets={"64": 3, "91": 2, "108": 15}) for _ in range(2)]
    found = truncated_examples(case_in(tmp_path / "a", piled, facts=facts))
    assert found.evidence[0].value == pytest.approx(0.75)
    assert found.confidence == "likely"
    assert found.remedies[0].overrides == {"train.max_length": 200}
    spread = [step(length_buckets={"64": 8, "91": 8, "108": 4})]
    assert truncated_examples(case_in(tmp_path / "b", spread, facts=facts)) is None
    shorter = {"settings": settings(arguments={"max_length": 128})}
    assert truncated_examples(case_in(tmp_path / "c", piled, facts=shorter)) is None


def test_what_packing_hides_is_no_verdict(tmp_path):
    facts = {"settings": settings(arguments={"max_length": 100, "packing": True})}
    assert isinstance(truncated_examples(case_in(tmp_path / "a", [step()], facts=facts)), Abstention)
    assert isinstance(truncated_examples(case_in(tmp_path / "b", [step()])), Abstention)
