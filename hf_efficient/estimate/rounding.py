"""Which updates weights in bfloat16 round away. Apart because a recipe's remark and the diagnosis both ask."""

import math
from collections.abc import Mapping

USUAL_DEVIATION = 0.02
"""Of a language model's weights: ``initializer_range`` of Llama, Mistral, Qwen and Gemma. Small models' are larger."""
_EXACT = {"adamw_torch_4bit": "bf16_stochastic_round", "adamw_torch_8bit": "bf16_stochastic_round"}
_EXACT |= {"adamw_anyprecision": "use_kahan_summation"}


def smallest_still_weight(learning_rate: float) -> float:
    """Weights in bfloat16 of this size and more stay where they are in a step of Adam or Lion.

    bfloat16 keeps 8 significant bits: from 2^e to 2^(e+1) its values are 2^(e-7) apart. A weight that moves by less
    than half of that, 2^(e-8), is rounded back to itself. Lion moves a weight by the learning rate, Adam by less in all
    but the sparsest cases (Kingma and Ba 2015, section 2.1). So all weights from 2^e on are still, for the smallest e
    with ``learning_rate < 2^(e-8)``: of 1e-5 < 2^-16 = 1.53e-5 e is -8, 0.0039 and more. Source: Zamirai et al. 2020,
    Revisiting BFloat16 Training (arXiv 2010.06192): weight updates rounded to the nearest lose the accuracy; float32
    weights, stochastic rounding or Kahan summation keep it."""
    return 0.0 if learning_rate <= 0 else 2.0 ** min(1023, math.floor(math.log2(learning_rate)) + 9)


def still_share(learning_rate: float) -> float:
    """Of normally distributed weights around 0: ``P(|w| >= t) = erfc(t / (deviation sqrt(2)))``; 84% for 1e-5."""
    return math.erfc(smallest_still_weight(learning_rate) / (USUAL_DEVIATION * math.sqrt(2)))


def still_share_of(learning_rate: float, exponents: Mapping[int, int]) -> float:
    """Of weights that were counted by the exponent e of ``2^e <= |w| < 2^(e+1)``."""
    still = sum(count for e, count in exponents.items() if 2.0**e >= smallest_still_weight(learning_rate))
    return still / sum(exponents.values()) if exponents else 0.0


def rounds_to_nearest(optim: str, optim_args: str | None) -> bool:
    """Whether ``train.optim`` is an Adam or Lion that loses what the rounding of a bfloat16 weight cuts off: torchao's
    round stochastically, torchdistx's and torch-optimi's (``stable_adamw``) add up the remainder, where asked to."""
    said = dict(one.strip().partition("=")[::2] for one in (optim_args or "").split(","))
    if optim == "stable_adamw":  # adds up by itself for 16-bit weights
        return False
    is_asked = said.get(_EXACT.get(optim, ""), "").lower() in ("true", "1", "yes", "on")
    return ("adam" in optim or "lion" in optim) and not is_asked
