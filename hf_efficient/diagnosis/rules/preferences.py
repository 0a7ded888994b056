"""Preference tuning that goes wrong without an error: lengths, margins that cost likelihood, a beta without effect."""

import numpy as np

from hf_efficient.accounting.steps import Column
from hf_efficient.diagnosis.case import Case, Row, Verdict, abstains, finding, rule
from hf_efficient.diagnosis.rules.learning import medians_of_thirds
from hf_efficient.records.findings import Remedy
from hf_efficient.text import share

_FEWEST_LOGS = 6
_LONGER = 1.25
_MOSTLY_LONGER = 0.65
_STILL_NATS = 0.05
_LOGS = "steps.jsonl: preferences"
_NOT_LOGGED = (f"fewer than {_FEWEST_LOGS} margins were logged", "train.logging_steps, or a longer run")


def _logged(case: Case, name: str) -> Column:
    held = case.first.preferences.get(name, np.zeros(0))
    return held[np.isfinite(held)]


@rule(needs_steps=False)
def length_bias(case: Case) -> Verdict:
    """The better answers are a quarter longer than the worse ones, and the longer one in two thirds of the pairs. What
    is learnt may be length alone (Singhal et al. 2023, "A long way to go")."""
    held = case.account.preferences.lengths if case.account.preferences else None
    if held is None:
        if not case.is_of_preferences:
            return None
        return abstains("no lengths of preferred answers are recorded", "a recipe of preferences")
    times = held.chosen_tokens / max(1.0, held.rejected_tokens)
    by_pair = held.longer_chosen_share
    if times < _LONGER or (by_pair is not None and by_pair < _MOSTLY_LONGER):
        return None
    objective, normalised = _objective(case), str(case.argument("loss_type")) in ("simpo", "['simpo']")
    if case.argument("ld_alpha") not in (None, 1.0) or normalised or objective == "orpo":
        return None  # what lies beyond the shorter answer, or the length itself, is weighed already
    remedies = [Remedy("add pairs whose shorter answer is the better one, or leave out some of the longest")]
    if objective == "dpo":
        what = "weigh the tokens beyond the shorter answer by half (LD-DPO, Liu et al. 2024)"
        remedies.insert(0, Remedy(what, {"train.ld_alpha": 0.5}))
    where = f", the longer one in {share(by_pair)} of the pairs" if by_pair is not None else ""
    return finding(
        f"length may be all that is learnt: better answers have {times:.1f} times the tokens of worse ones{where}",
        [
            ("tokens of a better answer", held.chosen_tokens, "", "run.json: preferences.lengths"),
            ("tokens of a worse answer", held.rejected_tokens, "", "run.json: preferences.lengths"),
            ("pairs whose better answer is the longer one", by_pair, "share", "run.json: preferences.lengths"),
        ],
        remedies,
        confidence="possible",
    )


@rule()
def margin_without_likelihood(case: Case) -> Verdict:
    """The margin grows while the better answer itself becomes less likely, by a nat and a quarter of the margin. The
    worse one only falls faster (Pal et al. 2024, "Smaug")."""
    margins, rewards = _logged(case, "margin"), _logged(case, "chosen_reward")
    if not case.is_of_preferences or _objective(case) == "reward":
        return None
    if min(len(margins), len(rewards)) < _FEWEST_LOGS:
        return abstains(*_NOT_LOGGED)
    (margin_before, margin), (before, after) = map(medians_of_thirds, (margins, rewards))
    beta = float(case.argument("beta") or 0.1)
    noise = float(np.median(np.abs(np.diff(rewards))))
    grown, fallen = margin - margin_before, before - after
    if grown <= 0 or fallen < max(0.25 * grown, beta * 1.0, 2 * noise):
        return None
    objective, rate, remedies = _objective(case), case.argument("learning_rate"), []
    if objective == "dpo":
        overrides = {"train.loss_type": ["sigmoid", "sft"], "train.loss_weights": [1.0, 0.1]}
        remedies.append(Remedy("a small supervised term on the better answers beside DPO's loss", overrides))
    elif objective == "cpo":
        remedies.append(Remedy("a supervised term on the better answers", {"train.cpo_alpha": 1.0}))
    if objective in ("dpo", "kto"):
        stay = {"train.beta": float(f"{3 * beta:.2g}")}
        remedies.append(Remedy("stay closer to the reference model", stay, "a smaller margin"))
    if rate:
        remedies.append(Remedy("a third of the learning rate", {"train.learning_rate": float(f"{rate / 3:.2g}")}))
    return finding(
        f"the margin grows by {grown:.2g} while the better answers lose {fallen / beta:.2g} nats of log-probability",
        [
            ("margin at first", margin_before, "", f"{_LOGS}.margin, median of a third"),
            ("margin at last", margin, "", f"{_LOGS}.margin, median of a third"),
            ("reward of the better answers at first", before, "", f"{_LOGS}.chosen_reward, median of a third"),
            ("reward of the better answers at last", after, "", f"{_LOGS}.chosen_reward, median of a third"),
        ],
        remedies,
        confidence="likely",
    )


@rule()
def beta_without_effect(case: Case) -> Verdict:
    """With a reference model, the margin stays within a twentieth of a nat of where it began: the policy does not move,
    so that beta holds nothing back."""
    if not case.is_of_preferences or _objective(case) not in ("dpo", "kto"):
        return None
    margins = _logged(case, "margin")
    if len(margins) < _FEWEST_LOGS:
        return abstains(*_NOT_LOGGED)
    beta, rate = float(case.argument("beta") or 0.1), case.argument("learning_rate")
    nats = medians_of_thirds(np.abs(margins))[1] / beta
    if nats >= _STILL_NATS:
        return None
    evidence: list[Row] = [
        ("margin at last over beta", nats, "nats", f"{_LOGS}.margin, median of a third"),
        ("beta", beta, "", "settings: arguments"),
        ("learning rate", rate, "", "settings: arguments"),
    ]
    remedies = [Remedy("more steps, or a higher learning rate")]
    if rate:
        higher = float(f"{10 * rate:.2g}")
        remedies.insert(0, Remedy(f"ten times the learning rate: {higher:g}", {"train.learning_rate": higher}))
    title = f"beta {beta:g} does nothing: the policy stays within {nats:.2g} nats of its reference"
    return finding(title, evidence, remedies)


def _objective(case: Case) -> str:
    said = (case.recipe or {}).get("objective")
    if said:
        return str(said)
    return "kto" if "kl" in case.first.preferences else "dpo"
