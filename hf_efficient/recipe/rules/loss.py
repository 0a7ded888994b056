"""The chunked loss, and what it cannot be combined with."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = ["chunked_loss_has_no_adapter_on_the_head", "chunked_loss_has_the_head_to_itself", "fits_chunked_loss"]

_INSTEAD = "or write `train.loss_type: nll`."


@reads(
    "method", "train.loss_type", "train.label_smoothing_factor", "train.use_liger_kernel", "train.liger_kernel_config"
)
def chunked_loss_has_the_head_to_itself(settings: Settings) -> list[Contradiction]:
    """Label smoothing needs whole logits; Liger's own fused loss replaces the forward that TRL's is in."""
    return _other_users(settings) if _chunked(settings) else []


@reads("method", "train.loss_type", "adapter.method", "adapter.target_modules")
def chunked_loss_has_no_adapter_on_the_head(settings: Settings) -> list[Contradiction]:
    """TRL's fused head reads the weight of ``lm_head``, and would leave out an adapter on it."""
    return _adapter_on_the_head(settings) if _chunked(settings) else []


def fits_chunked_loss(settings: Settings) -> bool:
    """Whether a recipe with another loss could be given this one."""
    return settings.recipe.method == "sft" and not [*_other_users(settings), *_adapter_on_the_head(settings)]


def _other_users(settings: Settings) -> list[Contradiction]:
    found = []
    if settings.train("label_smoothing_factor"):
        message = "is set, but `train.loss_type: chunked_nll` never has the whole logits that it needs."
        found.append(("train.label_smoothing_factor", message, f"Write 0, {_INSTEAD}"))
    fused_by_liger = (settings.train("liger_kernel_config") or {}).get("fused_linear_cross_entropy", True)
    if settings.train("use_liger_kernel") and fused_by_liger:
        message = "is true, but Liger's fused loss takes the place of `train.loss_type: chunked_nll`."
        remedy = f"Write `train.liger_kernel_config: {{fused_linear_cross_entropy: false}}`, {_INSTEAD}"
        found.append(("train.use_liger_kernel", message, remedy))
    return found


def _adapter_on_the_head(settings: Settings) -> list[Contradiction]:
    adapter = settings.recipe.adapter
    if adapter.method == "full" or not isinstance(adapter.target_modules, list):
        return []
    if not any(name.rsplit(".", 1)[-1] == "lm_head" for name in adapter.target_modules):
        return []
    message = "names lm_head, whose adapter `train.loss_type: chunked_nll` would leave out."
    return [("adapter.target_modules", message, f"Write it in `adapter.modules_to_save`, {_INSTEAD}")]


def _chunked(settings: Settings) -> bool:
    return settings.recipe.method == "sft" and settings.train("loss_type") == "chunked_nll"
