"""Training that goes wrong without an error: learning rates, losses, gradients, labels and examples."""

import math

import numpy as np

from hf_efficient.accounting.steps import Column
from hf_efficient.diagnosis.case import Case, Row, Verdict, abstains, finding, rule
from hf_efficient.estimate.rounding import rounds_to_nearest, smallest_still_weight, still_share_of
from hf_efficient.recipe.rules.training import FEW_STEPS
from hf_efficient.records.findings import Remedy, Severity
from hf_efficient.text import counted, share

_SIGN_LIKE = ("adam", "lion", "adagrad", "adafactor")
_OFTEN = 0.05
_COUNTED_BY = "EfficientTrainerMixin, or AccountCallback"
_HALF = 0.5
_ENOUGH_STEPS = 50
_SILENT = "spans.jsonl: silent_failures"
_WEIGHTS = "spans.jsonl: settings.model.bfloat16_weights, a sample"
_LOSS_TOKENS = "steps.jsonl: tokens.target"
_TO_BFLOAT16 = {"train.fp16": False, "train.bf16": True}
_NOT_COUNTED = ("target tokens are not counted", "EfficientTrainerMixin")


def _logged(case: Case, name: str) -> Column:
    """The finite ``loss``, ``learning_rate`` or ``grad_norm`` that rank 0 logged in the last stretch of training: a
    ``train()`` call that begins at the first step is another training."""
    first = case.first
    anew = np.flatnonzero((np.diff(first.segment) != 0) & (first.step[1:] == 1))
    column: Column = getattr(first, name)[int(anew[-1]) + 1 if len(anew) else 0 :]
    return column[np.isfinite(column)]


@rule()
def few_steps(case: Case) -> Verdict:
    """A training by epochs ended after fewer than ten updates, which hardly change a model."""
    if not case.has_steps or case.account.ended != "done" or case.argument("max_steps", 0) != -1:
        return None
    last = int(case.first.step.max())
    if last >= FEW_STEPS:
        return None
    epochs = {"train.num_train_epochs": math.ceil(_ENOUGH_STEPS / last)}
    remedies = [Remedy("train for more epochs", epochs, "time; watch the evaluation loss")]
    smaller = {"packing": False, "gradient_accumulation_steps": 1}
    changes = {f"train.{key}": one for key, one in smaller.items() if case.argument(key, one) != one}
    if changes:
        costs = "smaller steps, whose gradients are noisier"
        remedies.insert(0, Remedy("take more steps from the same data", changes, costs))
    title = f"the training had {counted(last, 'optimizer step')}, too few to learn from"
    return finding(title, [("optimizer steps", last, "", "steps.jsonl: step")], remedies, severity="critical")


@rule()
def learning_rate_idle(case: Case) -> Verdict:
    """The loss stays where it is, and no weight can have moved; or the run ends within its warm-up. Adam and its kin
    move a weight by about the learning rate per step. So the rates added up bound how far it can have come; weights of
    language models are some hundredths. Preferences and GRPO learn at much lower rates: there only a rate of 0
    counts."""
    rates, losses, steps = _logged(case, "learning_rate"), _logged(case, "loss"), case.account.steps.count
    if len(rates) < 3 or len(losses) < 3 or steps < 20:
        return abstains("fewer than three losses or twenty steps were logged", "train.logging_steps, or a longer run")
    highest, moved = float(rates.max()), float(rates.mean()) * steps
    evidence = [
        ("learning rate, highest", highest, "", "steps.jsonl: learning_rate"),
        ("learning rates added up", moved, "", "steps.jsonl: learning_rate, mean times steps"),
        ("first loss", float(losses[0]), "", "steps.jsonl: loss"),
        ("last loss", float(losses[-1]), "", "steps.jsonl: loss"),
    ]
    asked, planned = case.argument("learning_rate"), case.facts.get("run", {}).get("max_steps")
    rising = bool(np.all(np.diff(rates) > 0))
    ended = planned is not None and steps >= planned
    if rising and not ended and asked and rates[-1] < asked:
        return abstains(f"the run is within its warm-up, at {rates[-1]:.2g} of {asked:.2g}", "a longer run")
    optimizer = str(case.settings("optimizer").get("class", "")).lower()
    is_sign_like = any(kind in optimizer for kind in _SIGN_LIKE)
    still = is_sign_like and moved < 2e-5 and not case.is_of_preferences and not case.generates
    before, after = medians_of_thirds(losses)
    if abs(after - before) < 0.02 * abs(before) and (highest == 0 or still):
        title = f"the learning rate does nothing: {highest:.2g} at most, and the loss stays at {losses[-1]:.3g}"
        severity: Severity = "critical" if moved < 1e-6 else "warning"
        usual, trained = (2e-4, "adapters") if case.is_mostly_frozen else (2e-5, "all weights")
        remedy = Remedy(f"a learning rate of {usual:g}, usual for {trained}", {"train.learning_rate": usual})
        if asked and asked >= usual:
            what = f"a schedule that reaches the learning rate asked for ({asked:g}); it reached {highest:.2g}"
            remedy = Remedy(what)
        return finding(title, evidence, [remedy], severity=severity, explains=["rounded_updates"])
    if asked and ended and rising and rates[-1] < 0.5 * asked:
        title = f"the run ends within its warm-up, at {rates[-1] / asked:.0%} of the learning rate that was asked for"
        warm_up = max(1, round(0.05 * steps))
        remedy = Remedy(f"warm up for {counted(warm_up, 'step')}", {"train.warmup_steps": warm_up})
        return finding(title, evidence, [remedy])
    return None


def medians_of_thirds(values: Column) -> tuple[float, float]:
    """Of the first third, and of the last."""
    third = max(1, len(values) // 3)
    return float(np.median(values[:third])), float(np.median(values[-third:]))


@rule()
def rounded_updates(case: Case) -> Verdict:
    """Half of the trained weights or more are in bfloat16 and too large for a step of the learning rate to change them:
    the update is rounded away. The derivation and its source are in ``estimate/rounding.py``."""
    sampled = case.settings("model").get("bfloat16_weights")
    optim = str(case.argument("optim") or "")
    if not sampled or not rounds_to_nearest(optim, case.argument("optim_args")):
        return None
    rates = _logged(case, "learning_rate")
    highest = float(rates.max()) if len(rates) else float(case.argument("learning_rate") or 0.0)
    if not highest:
        return None  # ``learning_rate_idle`` says so
    still = still_share_of(highest, {int(e): count for e, count in sampled.items()})
    if still < _HALF:
        return None
    mixed = {"train.bf16": True} if case.settings("device").get("supports_bf16") else {}
    costs = "weights, gradients and moments of Adam take 16 bytes per trained value, not 8"
    stochastic = {"train.optim": "adamw_torch_8bit", "train.optim_args": "bf16_stochastic_round=true"}
    return finding(
        f"{share(still)} of the trained weights round their updates away: bfloat16 at a learning rate of {highest:.2g}",
        [
            ("trained weights that a step of this size leaves as they are", still, "share", _WEIGHTS),
            ("smallest of them", smallest_still_weight(highest), "", "estimate/rounding.py"),
            ("learning rate, highest", highest, "", "steps.jsonl: learning_rate"),
            ("optimizer", optim, "", "spans.jsonl: settings.arguments.optim"),
        ],
        [
            Remedy("keep the weights in float32, under mixed precision", {"model.dtype": "float32", **mixed}, costs),
            Remedy("or round stochastically, by torchao's optimizer", stochastic, "it needs the package torchao"),
        ],
        confidence="likely",
    )


@rule()
def learning_rate_diverges(case: Case) -> Verdict:
    """The loss, in medians of ten windows, rises by 30% and by three times its noise: from its start, or its best. A
    rise at the start is overcome where the loss ends a quarter below where it began."""
    losses = _logged(case, "loss")
    if len(losses) < 4:
        return abstains("fewer than four losses were logged", "train.logging_steps")
    windows = np.array_split(losses, min(10, len(losses)))
    medians = [float(np.median(window)) for window in windows]
    noise = float(np.median(np.abs(np.diff(losses))))  # what a log differs by without a trend
    start = min(medians[0], float(losses[0]))  # a window may hold the rise already
    best, peak, end = min(medians), max(medians), medians[-1]
    if best <= 0 or case.generates:
        return None  # of a loss that may be negative a ratio says nothing

    def grew(before: float, after: float) -> bool:
        return after >= 1.3 * before and after - before > 3 * noise

    stays_up = grew(start, peak) and end >= 0.75 * start
    if not stays_up and not grew(best, end):
        return None
    low, high = best, end
    if grew(start, peak):
        low, high = float(losses[: int(losses.argmax()) + 1].min()), float(losses.max())
    rates, asked = _logged(case, "learning_rate"), case.argument("learning_rate")
    highest = float(rates.max()) if len(rates) else asked
    evidence = [
        ("loss before it grew", low, "", "steps.jsonl: loss"),
        ("highest loss", float(losses.max()), "", "steps.jsonl: loss"),
        ("last loss", float(losses[-1]), "", "steps.jsonl: loss"),
        ("what a log differs by from the one before", noise, "", "steps.jsonl: loss, median"),
        ("highest learning rate", highest or None, "", "steps.jsonl: learning_rate"),
    ]
    rate = f" at a learning rate of {highest:.2g}" if highest else ""
    remedy = Remedy("a lower learning rate")
    if asked:
        lower = float(f"{asked / 10:.2g}")
        remedy = Remedy(f"a tenth of the learning rate: {lower:g}", {"train.learning_rate": lower}, "it may be slow")
    return finding(
        f"the loss grows from {low:.3g} to {high:.3g}{rate}",
        evidence,
        [remedy],
        severity="critical",
        confidence="likely",
        explains=["not_finite_steps", "scaler_skips"],
    )


@rule()
def not_finite_steps(case: Case) -> Verdict:
    """Micro-batches whose loss is nan or infinite; the Trainer's log leaves them out (``logging_nan_inf_filter``)."""
    failures = case.facts.get("silent_failures", {})
    logs = 0 if case.series is None else sum(case.series.steps.not_finite)
    if "losses_not_finite" not in failures and not logs:
        return abstains("losses of micro-batches are not counted", "EfficientTrainerMixin")
    bad, seen = int(failures.get("losses_not_finite") or 0), int(failures.get("losses") or 0)
    if not bad and not logs:
        return None
    unlabelled = int((case.first.target == 0).sum())
    what = f"{share(bad / seen)} of the micro-batches have" if bad and seen else "the Trainer logged"
    nameless = unlabelled >= _HALF * max(bad, 1)
    why = f": no label to learn from in {counted(unlabelled, 'step')}" if nameless else ""
    if nameless:
        remedies = [Remedy("leave out examples whose labels are all -100: their mean loss is 0 / 0")]
        if np.nanmax(case.first.micro_batches) <= 1:
            overrides = {"train.per_device_train_batch_size": 4 * case.rows}
            remedies.append(Remedy("more examples in a batch, so that some have labels", overrides, "more memory"))
    else:
        look = "find the first such batch: torch.autograd.set_detect_anomaly(True), and look at its rows"
        remedies = [Remedy(look)]
        if case.argument("fp16") and case.settings("device").get("supports_bf16"):
            remedies.insert(0, Remedy("train in bfloat16, whose range is float32's", _TO_BFLOAT16))
    return finding(
        f"{what} a non-finite loss{why}",
        [
            ("losses that are no finite number", bad, "count", f"{_SILENT}.losses_not_finite"),
            ("losses of micro-batches", seen, "count", f"{_SILENT}.losses"),
            ("logged values that are no finite number", logs, "count", "steps.jsonl: loss, grad_norm"),
            ("steps without a label", unlabelled, "count", _LOSS_TOKENS),
        ],
        remedies,
        severity="critical",
        explains=["masked_labels", "few_loss_tokens"] if nameless else [],
    )


@rule()
def scaler_skips(case: Case) -> Verdict:
    """A twentieth of the updates or more, beside the few with which float16's scaler finds its scale, were skipped."""
    if not case.argument("fp16"):
        return None
    counted = case.facts.get("silent_failures", {})
    if not counted.get("updates") or "skipped_updates" not in counted:
        return abstains("skipped updates are not counted", _COUNTED_BY)
    skipped, updates = int(counted["skipped_updates"]), int(counted["updates"])
    taken = skipped / updates
    if skipped <= 5 or taken < _OFTEN:
        return None
    remedies = [Remedy("a lower learning rate, or a smaller max_grad_norm, if the loss grows before it skips")]
    if case.settings("device").get("supports_bf16"):
        gain = case.gain(case.loop_seconds * taken, "every update counts")
        costs = "bfloat16 keeps 8 bits where float16 keeps 11"
        remedies.insert(0, Remedy("train in bfloat16, which needs no scaler", _TO_BFLOAT16, costs, gain))
    return finding(
        f"{share(taken)} of the updates are skipped: gradients overflow in float16",
        [
            ("skipped updates", skipped, "count", f"{_SILENT}.skipped_updates"),
            ("updates", updates, "count", f"{_SILENT}.updates"),
        ],
        remedies,
        case.cost(case.loop_seconds * taken),
        severity="critical" if taken >= _HALF else "warning",
    )


@rule(needs_steps=False)
def no_gradient(case: Case) -> Verdict:
    """At the first update, tensors with ``requires_grad`` had none: the forward does not reach them."""
    counted = case.facts.get("silent_failures", {})
    if "without_gradient" not in counted:
        return abstains("gradients were not counted (never under DeepSpeed and FSDP)", _COUNTED_BY)
    without, trainable = int(counted["without_gradient"]), int(counted["trainable_parameters"])
    if not without:
        return None
    names = [str(name) for name in counted.get("names_without_gradient", ())]
    named = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    experts = bool(names) and all("expert" in name for name in names)
    what = (
        "freeze them (requires_grad_(False)) if the forward does not need them; else find what cuts the graph before "
        "them: a detach, a no_grad, an operator on .data, or checkpointing without enable_input_require_grads()"
    )
    if experts:
        what = "nothing, if these experts are chosen by later batches; else look at the router's balance"
    return finding(
        f"{without} of {trainable} trainable tensors get no gradient: {named}",
        [
            ("trainable tensors without gradient", without, "count", f"{_SILENT}.without_gradient"),
            ("trainable tensors", trainable, "count", f"{_SILENT}.trainable_parameters"),
            ("their names", ", ".join(names) or "not known", "", f"{_SILENT}.names_without_gradient"),
        ],
        [Remedy(what)],
        severity="warning" if experts else "critical",
        confidence="possible" if experts else "measured",
    )


@rule()
def masked_labels(case: Case) -> Verdict:
    """A twentieth of the computed tokens or less are targets, or a twentieth of the steps has no target."""
    tokens, counts = case.account.tokens, case.first.target
    if tokens.target is None or not tokens.non_padding:
        return abstains(*_NOT_COUNTED)
    learnt = tokens.target / tokens.non_padding
    empty = float((counts[np.isfinite(counts)] == 0).mean())
    if learnt >= _OFTEN and empty < _OFTEN:
        return None
    evidence = [
        ("tokens with a label", learnt, "share", "run.json: tokens.target over non_padding"),
        ("steps without a label", empty, "share", _LOSS_TOKENS),
    ]
    prepared = case.facts.get("data", {})
    if prepared.get("examples"):
        wholly, cut = int(prepared.get("masked") or 0), int(prepared.get("truncated") or 0)
        evidence.append(("examples without a label", wholly, "count", "spans.jsonl: data.masked"))
        evidence.append(("examples that were cut", cut, "count", "spans.jsonl: data.truncated"))
    title = f"only {share(learnt)} of the tokens are targets: the labels are mostly masked"
    if empty >= _OFTEN:
        title = f"{share(empty)} of the steps hold no target token"
    what = (
        "look at a batch: labels must differ from -100 where the answer is. Usual causes: a response template that "
        "does not match the chat template, prompts that fill max_length, the padding side"
    )
    return finding(
        title,
        evidence,
        [Remedy(what)],
        severity="critical" if empty >= _OFTEN else "warning",
        confidence="measured" if empty >= _OFTEN else "likely",
        explains=["few_loss_tokens"],
    )


@rule()
def few_loss_tokens(case: Case) -> Verdict:
    """Half of the updates or more learn from fewer than 32 tokens, over all ranks: their gradients are mostly noise."""
    known = case.first.target[np.isfinite(case.first.target)]
    if not len(known):
        return abstains(*_NOT_COUNTED)
    tokens = float(np.median(known)) * case.ranks
    if tokens >= 32:
        return None
    times = min(16, 2 ** max(1, math.ceil(math.log2(512 / max(tokens, 1)))))  # 512 are enough
    remedy = Remedy(
        f"accumulate {times} times as many micro-batches for an update",
        {"train.gradient_accumulation_steps": case.accumulated * times},
        "an epoch has fewer updates; the learning rate may have to grow",
    )
    evidence = [
        ("target tokens in an update", tokens, "tokens", f"{_LOSS_TOKENS}, median"),
        ("gradient accumulation", case.accumulated, "count", "spans.jsonl: settings.arguments"),
    ]
    return finding(f"an update learns from {tokens:.0f} tokens", evidence, [remedy], confidence="likely")


@rule(needs_steps=False)
def truncated_examples(case: Case) -> Verdict:
    """A tenth of the examples or more was cut: counted where a recipe prepared them, else seen in their lengths."""
    longest, prepared = int(case.argument("max_length") or 0), case.facts.get("data", {})
    is_counted = bool(prepared.get("examples")) and "truncated" in prepared
    whole = prepared.get("longest") if is_counted else None  # the longest example before it was cut
    if is_counted:
        cut = prepared["truncated"] / (prepared["examples"] + prepared.get("dropped_masked", 0))  # dropped once cut
        seen: Row = ("examples that were cut", int(prepared["truncated"]), "count", "spans.jsonl: data.truncated")
    else:
        sequences = case.account.sequences
        if not sequences.length_buckets or not longest:
            return abstains("example lengths, or max_length, are not known", "a recipe, or EfficientTrainerMixin")
        if case.argument("packing"):
            return abstains("packing leaves no lengths that would show it", "a recipe")
        if sequences.longest_tokens != longest:
            return None
        cut = _piled_up({int(bound): count for bound, count in sequences.length_buckets.items()})
        seen = ("examples as long as is allowed", cut, "share", "run.json: sequences.length_buckets")
    if cut < 0.1:
        return None
    wanted = 2 * longest if whole is None else min(-(-int(whole) // 64) * 64, 4 * longest)
    return finding(
        f"{share(cut)} of the examples are cut at {longest} tokens, and their ends are not learnt",
        [
            seen,
            ("longest that is allowed", longest, "tokens", "spans.jsonl: settings.arguments.max_length"),
            ("longest example before", whole, "tokens", "spans.jsonl: data.longest"),
        ],
        [
            Remedy(f"allow {wanted} tokens", {"train.max_length": wanted}, "more memory and time per example"),
            Remedy("split long examples before the training, where their parts make sense by themselves"),
        ],
        severity="warning" if cut >= 0.3 else "info",
        confidence="measured" if is_counted else "likely",
    )


def _piled_up(buckets: dict[int, int]) -> float:
    """Share of the documents in the last bucket, where the bucket before has less than half as many. Where nearly all
    are of that length the data come in blocks, and nothing was cut."""
    if max(buckets.values()) > 0.95 * sum(buckets.values()):
        return 0.0
    *before, last = sorted(buckets)
    neighbour = buckets[before[-1]] if before else 0
    return buckets[last] / sum(buckets.values()) if buckets[last] > 2 * neighbour else 0.0
