"""Training that goes wrong without an error."""

import pytest

from hf_efficient.diagnosis.rules import learning
from hf_efficient.records.findings import Abstention
from tests.diagnosis.made import case_in, judged, settings, step


def run(folder, losses, rates=(1e-3,), every=10, optimizer="AdamW", run=None, **arguments):
    """A log every ten steps."""
    steps = []
    for place, loss in enumerate(losses):
        steps += [step(place * every + number) for number in range(1, every)]
        steps.append(step((place + 1) * every, loss=loss, learning_rate=rates[min(place, len(rates) - 1)]))
    model = {"parameters": 100, "trainable_parameters": 100}
    facts = {"settings": settings(arguments=arguments, optimizer={"class": optimizer}, model=model), "run": run or {}}
    return case_in(folder, steps, facts=facts)


FLAT = [8.38, 8.39, 8.37, 8.40, 8.38, 8.38]


def test_a_rate_that_moves_no_weight_is_critical(tmp_path):
    found = learning.learning_rate_idle(run(tmp_path, FLAT, [1e-9], learning_rate=1e-9))
    assert found.title == "the learning rate does nothing: 1e-09 at most, and the loss stays at 8.38"
    judged(found, severity="critical", overrides={"train.learning_rate": 2e-5})
    assert found.evidence[1].value == pytest.approx(6e-8)  # 60 steps


def test_an_epoch_of_a_few_updates_is_critical(tmp_path):
    found = learning.few_steps(
        run(tmp_path / "a", [2.0], every=3, max_steps=-1, packing=True, gradient_accumulation_steps=1)
    )
    assert found.title == "the training had 3 optimizer steps, too few to learn from"
    judged(found, severity="critical", overrides={"train.packing": False})
    assert found.remedies[1].overrides == {"train.num_train_epochs": 17}
    assert learning.few_steps(run(tmp_path / "b", [2.0], every=3, max_steps=3)) is None
    assert learning.few_steps(run(tmp_path / "c", [2.0], every=10, max_steps=-1)) is None


def test_a_flat_loss_alone_is_no_proof(tmp_path):
    assert learning.learning_rate_idle(run(tmp_path / "a", FLAT, [1e-4], learning_rate=1e-4)) is None
    # Of plain gradient descent the gradient decides, too.
    assert learning.learning_rate_idle(run(tmp_path / "b", FLAT, [1e-9], optimizer="SGD", learning_rate=1e-9)) is None
    said = learning.learning_rate_idle(run(tmp_path / "c", FLAT, [0.0], optimizer="SGD", learning_rate=1e-3))
    assert said is not None


def test_a_run_within_its_warm_up(tmp_path):
    rising = [1e-5 * place for place in range(1, 7)]
    falling = [2.0, 1.99, 1.98, 1.96, 1.9, 1.8]
    found = learning.learning_rate_idle(run(tmp_path / "a", falling, rising, run={"max_steps": 60}, learning_rate=2e-4))
    assert found.title == "the run ends within its warm-up, at 30% of the learning rate that was asked for"
    assert found.remedies[0].overrides == {"train.warmup_steps": 3}
    going_on = run(tmp_path / "b", falling, rising, run={"max_steps": 600}, learning_rate=2e-4)
    assert isinstance(learning.learning_rate_idle(going_on), Abstention)


def in_bfloat16(folder, rates, exponents, **arguments):
    found = settings(
        arguments={"optim": "adamw_torch_fused", **arguments},
        model={"bfloat16_weights": exponents},
        device={"type": "cuda", "supports_bf16": True},
    )
    steps = [step(place + 1, loss=2.0, learning_rate=rate) for place, rate in enumerate(rates)]
    return case_in(folder, steps, facts={"settings": found})


def test_updates_that_bfloat16_rounds_away(tmp_path):
    weights = {"-9": 10, "-8": 20, "-7": 30, "-6": 40}
    found = learning.rounded_updates(in_bfloat16(tmp_path, [1e-6, 1e-5], weights))
    title = "90% of the trained weights round their updates away: bfloat16 at a learning rate of 1e-05"
    assert found.title == title
    judged(found, severity="warning", overrides={"model.dtype": "float32", "train.bf16": True})
    assert found.evidence[1].value == 2**-8
    assert learning.rounded_updates(in_bfloat16(tmp_path / "a", [1e-4], weights)) is None
    assert learning.rounded_updates(in_bfloat16(tmp_path / "b", [1e-5], {})) is None
    exact = {"optim": "adamw_torch_8bit", "optim_args": "bf16_stochastic_round=true"}
    assert learning.rounded_updates(in_bfloat16(tmp_path / "c", [1e-5], weights, **exact)) is None


AT_FIRST = [8.4, 15.4, 27.6, 44.7, 29.0, 30.2, 18.2, 17.5, 14.7, 13.8, 10.8, 10.7]
WITHIN_A_WINDOW = [8.4, 15.4, 27.6, 44.7, 29.0, 30.2, 18.2, 17.5, 14.7, 13.8, 10.8, 10.7, 10.1, 9.4, 8.4, 8.1, 7.4,
                   7.1, 7.5, 8.3, 7.1, 8.1, 7.4, 7.4, 8.3, 6.9, 7.9, 7.2, 6.7, 6.7]  # fmt: skip
AT_THE_END = [4.0, 2.5, 1.8, 1.5, 1.4, 1.4, 1.5, 2.1, 2.9, 3.6]  # never above its start


@pytest.mark.parametrize(
    ("losses", "rate", "told"),
    [
        (AT_FIRST, 0.3, "from 8.4 to 44.7"),
        (WITHIN_A_WINDOW, 0.3, "from 8.4 to 44.7"),
        (AT_THE_END, 0.002, "from 1.4 to 3.6"),
    ],
)
def test_a_loss_that_grows_is_critical(tmp_path, losses, rate, told):
    found = learning.learning_rate_diverges(run(tmp_path, losses, [rate], learning_rate=rate))
    assert found.title == f"the loss grows {told} at a learning rate of {rate}"
    judged(found, severity="critical", overrides={"train.learning_rate": rate / 10})


def test_a_falling_or_noisy_loss_is_no_finding(tmp_path):
    falling = [8.4, 7.9, 7.6, 7.7, 7.2, 6.9]
    assert learning.learning_rate_diverges(run(tmp_path / "a", falling)) is None
    noisy = [1.0, 2.1, 0.7, 1.6, 0.8, 2.2, 1.1, 0.6, 1.9, 1.4, 0.9, 2.0, 1.2]
    assert learning.learning_rate_diverges(run(tmp_path / "b", noisy)) is None
    spike = [2.0, 1.9, 1.8, 9.0, 1.8, 1.7, 1.7, 1.6, 1.6, 1.6, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.4, 1.4, 1.4, 1.4]
    assert learning.learning_rate_diverges(run(tmp_path / "c", spike + spike[4:])) is None
    assert learning.learning_rate_diverges(run(tmp_path / "d", [0.1, -0.2, 0.3, -0.1])) is None


def labelled(counts, processed=400):
    steps = [step(number, processed=processed) for number in range(1, len(counts) + 1)]
    for one, count in zip(steps, counts, strict=True):
        one["tokens"] = {**one["tokens"], "target": count}
    return steps


def counted(arguments=None, device=None, **silent):
    stated = {"settings": settings(arguments=arguments or {}, device=device or {"type": "cpu"})}
    return {**stated, "silent_failures": silent}


@pytest.mark.parametrize(
    ("names", "sure"),
    [(["head.weight", "head.bias"], ("critical", "measured")), (["experts.3.up_proj.weight"], ("warning", "possible"))],
    ids=["named", "an expert that no token chose yet"],
)
def test_a_parameter_without_gradient(tmp_path, names, sure):
    facts = counted(trainable_parameters=38, without_gradient=len(names), names_without_gradient=names)
    found = learning.no_gradient(case_in(tmp_path, [step()], facts=facts))
    assert found.title == f"{len(names)} of 38 trainable tensors get no gradient: {', '.join(names)}"
    assert (found.severity, found.confidence) == sure


@pytest.mark.parametrize(
    ("counts", "title", "severity"),
    [
        ([8] * 10, "only 2% of the tokens are targets: the labels are mostly masked", "warning"),
        ([0, 400, 400, 400], "25% of the steps hold no target token", "critical"),
    ],
)
def test_labels_that_are_masked(tmp_path, counts, title, severity):
    found = learning.masked_labels(case_in(tmp_path, labelled(counts)))
    assert (found.title, found.severity) == (title, severity)
    assert "few_loss_tokens" in found.explains


def test_an_update_of_a_handful_of_tokens(tmp_path):
    facts = {"settings": settings(arguments={"gradient_accumulation_steps": 2})}
    found = learning.few_loss_tokens(case_in(tmp_path, labelled([8, 8, 300], processed=40), facts=facts))
    assert found.title == "an update learns from 8 tokens"
    # 512 / 8 = 64 times as many, of which 16 at most are advised.
    assert found.remedies[0].overrides == {"train.gradient_accumulation_steps": 32}


def test_losses_that_are_no_number_with_their_cause(tmp_path):
    steps = labelled([0, 400, 400, 400, 0, 400])
    found = learning.not_finite_steps(case_in(tmp_path, steps, facts=counted(losses=6, losses_not_finite=2)))
    assert found.title == "33.3% of the micro-batches have a non-finite loss: no label to learn from in 2 steps"
    judged(found, severity="critical", explains=["masked_labels", "few_loss_tokens"])


def test_skipped_updates(tmp_path):
    bf16 = {"type": "cuda", "supports_bf16": True}
    steps = [step(number) for number in range(1, 11)]
    often = counted({"fp16": True}, bf16, updates=100, skipped_updates=20)
    found = learning.scaler_skips(case_in(tmp_path / "a", steps, facts=often))
    assert found.title == "20% of the updates are skipped: gradients overflow in float16"
    judged(found, cost=2.0, overrides={"train.fp16": False, "train.bf16": True}, share=0.2)
    settling = counted({"fp16": True}, bf16, updates=40, skipped_updates=5)
    assert learning.scaler_skips(case_in(tmp_path / "b", steps, facts=settling)) is None
    in_bf16 = counted({}, updates=9, skipped_updates=9)
    assert learning.scaler_skips(case_in(tmp_path / "c", steps, facts=in_bf16)) is None
    assert isinstance(learning.scaler_skips(case_in(tmp_path / "d", steps, facts=counted({"fp16": True}))), Abstention)


def test_examples_that_a_recipe_cut(tmp_path):
    cut = {"examples": 200, "truncated": 80, "longest": 1000}
    facts = {"settings": settings(arguments={"max_length": 512}), "data": cut}
    found = learning.truncated_examples(case_in(tmp_path, [step()], facts=facts))
    assert found.title == "40% of the examples are cut at 512 tokens, and their ends are not learnt"
    judged(found, severity="warning", overrides={"train.max_length": 1024})
    facts["data"] |= {"examples": 50, "dropped_masked": 50}  # cut, they had no label left
    found = learning.truncated_examples(case_in(tmp_path / "b", [step()], facts=facts))
    assert found.title.startswith("80% of the examples are cut")


def test_examples_that_pile_up_at_the_limit(tmp_path):
    facts = {"settings": settings(arguments={"max_length": 100})}
    piled = [step(length_buckets={"64": 3, "91": 2, "108": 15}) for _ in range(2)]
    found = learning.truncated_examples(case_in(tmp_path / "a", piled, facts=facts))
    assert found.evidence[0].value == pytest.approx(0.75)
    judged(found, confidence="likely", overrides={"train.max_length": 200})
    spread = [step(length_buckets={"64": 8, "91": 8, "108": 4})]
    assert learning.truncated_examples(case_in(tmp_path / "b", spread, facts=facts)) is None
    shorter = {"settings": settings(arguments={"max_length": 128})}
    assert learning.truncated_examples(case_in(tmp_path / "c", piled, facts=shorter)) is None
