"""What a recipe adds to a Trainer: TRL's fused head, the fields that only ``SFTTrainer`` reads, exact resumption; and
TRL's trainers of preferences, whose import takes a second that other recipes need not spend.

``train.loss_type: chunked_nll`` is the loss without whole logits: the hidden states of target positions are projected
piece by piece. In TRL 1.16 ``nll`` is the same; here it is the model's own loss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional as F
from transformers.trainer_pt_utils import LengthGroupedSampler, get_length_grouped_indices
from trl import SFTConfig
from trl.models import enable_selective_activation_checkpointing, get_act_offloading_ctx_manager
from trl.trainer import add_fused_lm_head

from hf_efficient.errors import ModelError, Problem, RecipeError
from hf_efficient.metrics.for_trainer import reduce_logits, reduce_scores
from hf_efficient.model.scored_head import scored_head, target_positions
from hf_efficient.model.work import has_fused_kernels
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import trl_class

if TYPE_CHECKING:
    from datasets import Dataset
    from peft import PeftModel
    from transformers import PreTrainedModel, Trainer
    from trl import DPOConfig

    _Base = Trainer
else:
    _Base = object

CHUNKED_NLL = "chunked_nll"


def sft_arguments(**options: Any) -> SFTConfig:
    """``SFTConfig``, in which ``loss_type`` stays ``chunked_nll`` where it is: TRL's own rewrites it to ``nll``."""
    chunked = options.get("loss_type") == CHUNKED_NLL
    args = SFTConfig(**{**options, "loss_type": "nll"} if chunked else options)
    if chunked:
        args.loss_type = CHUNKED_NLL
    return args


def fuse_head(model: PreTrainedModel | PeftModel, *, with_top1: bool = False) -> None:
    """Let ``model(..., labels=labels, fused_lm_head=True)`` compute its loss by tiles; other calls stay as they are.
    For a model that is adapted already. ``with_top1``: the output also says where the label is the most likely token.
    Raises ``ModelError``: the head has an adapter, or is quantized."""
    obstacle = head_obstacle(model)
    if obstacle:
        why, instead = obstacle
        raise ModelError(f"train.loss_type: {CHUNKED_NLL} {why}; {instead}, or write `train.loss_type: nll`.")
    base: Any = getattr(model, "get_base_model", lambda: model)()
    add_fused_lm_head(base, outputs=("log_probs", "is_top1") if with_top1 else ("log_probs",))


def head_obstacle(model: PreTrainedModel | PeftModel) -> tuple[str, str] | None:
    """Why the head cannot be fused, and what could be changed."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if isinstance(head, BaseTunerLayer):
        return "reads the weight of lm_head, and would leave out its adapter", "take lm_head out of the adapter"
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point():
        return "needs an LM head with a weight that is not quantized", "quantize the other layers alone"
    return None


def apply_sft_fields(model: PreTrainedModel | PeftModel, args: SFTConfig) -> None:
    """``router_aux_loss_coef`` and selective activation checkpointing, put where the model and the Trainer read them.
    Raises ``RecipeError``: a router loss for a model without experts; selective checkpointing without checkpointing."""
    config, coefficient = model.config.get_text_config(), args.router_aux_loss_coef
    if hasattr(config, "output_router_logits"):  # the model itself adds the loss where its configuration says so
        chosen = getattr(config, "router_aux_loss_coef", 0.0) if coefficient is None else float(coefficient)
        config.router_aux_loss_coef, config.output_router_logits = chosen, chosen != 0.0
    elif coefficient:
        why = "the model has no experts whose load could be balanced."
        raise RecipeError([Problem("recipe", "train.router_aux_loss_coef", why)])
    options = args.gradient_checkpointing_kwargs
    if not isinstance(options, dict) or "selective" not in options:
        return
    if options.pop("selective"):
        if not args.gradient_checkpointing or options.get("use_reentrant"):
            why = "needs `train.gradient_checkpointing: true` and no `use_reentrant: true`."
            raise RecipeError([Problem("recipe", "train.gradient_checkpointing_kwargs.selective", why)])
        enable_selective_activation_checkpointing(model)


def objective(args: SFTConfig) -> Callable[..., torch.Tensor] | None:
    """The loss function for the Trainer; None for the model's own, the mean negative log-likelihood."""
    return dft_loss if args.loss_type == "dft" else None


def dft_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None) -> torch.Tensor:
    """Dynamic fine-tuning: each token's negative log-likelihood, weighted by its own (detached) probability. Source:
    https://huggingface.co/papers/2508.05629. ``outputs.logits`` is (batch, tokens, vocabulary), labels (batch, tokens);
    logits at t predict label t+1. ``num_items_in_batch``: target tokens of the whole optimizer step."""
    logits = outputs.logits[:, :-1].float()
    targets = labels[:, 1:].to(logits.device)
    nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
    weighted = (nll * torch.exp(-nll).detach()).sum()  # ignored positions have nll 0
    count = (targets != -100).sum() if num_items_in_batch is None else num_items_in_batch
    return weighted / torch.as_tensor(count, device=weighted.device).clamp(min=1)


_FUSED = {"fused_lm_head": True}
_NO_SCORES = ["label_mask", "aux_loss"]
"""What the fused head's output holds beside the label's log-probabilities and whether it is the most likely token."""


class EpochSeededLengthSampler(LengthGroupedSampler):
    """Groups of like length whose order depends on the seed and the epoch alone: the same after a resumption."""

    def __init__(self, lengths: list[int], batch_size: int, seed: int, epoch: Callable[[], int]) -> None:
        super().__init__(batch_size=batch_size, lengths=lengths)
        self._seed = seed
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed + self._epoch())
        return iter(get_length_grouped_indices(self.lengths, self.batch_size, generator=generator))


class RecipeTrainerMixin(_Base):
    """What a recipe adds to any Trainer; it goes leftmost, over the instruments where there are some. Exact resumption
    of ``group_by_length``, ``activation_offloading``, and ``loss_type: chunked_nll``, in evaluations too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        model = cast("PreTrainedModel", self.model)
        if self.chunked_loss:
            fuse_head(model, with_top1=self.compute_metrics is not None)
        self._offloading: AbstractContextManager[Any] = nullcontext()
        if getattr(self.args, "activation_offloading", False):
            self._offloading = get_act_offloading_ctx_manager(model)

    @property
    def chunked_loss(self) -> bool:
        return getattr(self.args, "loss_type", None) == CHUNKED_NLL

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with self._offloading:
            return super().training_step(*args, **kwargs)

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self.chunked_loss and model.training and self.compute_loss_func is None:
            with self._fused_kernels(inputs["labels"]):
                return super().compute_loss(model, {**inputs, **_FUSED}, *args, **kwargs)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """Through the fused head, with what ``reduce_logits`` would give, where a recipe's metrics alone are asked."""
        reduced = self.preprocess_logits_for_metrics is reduce_logits
        if not self.chunked_loss or not (prediction_loss_only or reduced):
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        fused = {**inputs, **_FUSED}
        with self._fused_kernels(inputs["labels"]):
            if prediction_loss_only:
                return super().prediction_step(model, fused, True, ignore_keys)
            loss, scores, labels = super().prediction_step(model, fused, False, _NO_SCORES)
        assert isinstance(scores, tuple)  # what is left of the output
        assert isinstance(labels, torch.Tensor)
        log_probs, is_top1 = scores
        return loss, reduce_scores(log_probs, is_top1, labels), labels

    def _fused_kernels(self, labels: torch.Tensor) -> AbstractContextManager[None]:
        if has_fused_kernels(self.args.device):
            return nullcontext()
        return scored_head(self._target_positions(labels))

    def _target_positions(self, labels: torch.Tensor) -> torch.Tensor:
        return target_positions(labels)

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        sampler = super()._get_train_sampler(*args, **kwargs)
        if type(sampler) is not LengthGroupedSampler:
            return sampler
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return EpochSeededLengthSampler(sampler.lengths, sampler.batch_size, seed, lambda: int(self.state.epoch or 0))


_PREPARED = ("chosen_ids", "completion_ids", "chosen_input_ids")


class PreparedRowsMixin:
    """Takes rows that ``build_preference_data`` prepared, in TRL's own way, as they are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """The experimental trainers tokenise by ``map``, whatever the rows."""
        given = [kwargs.get(name) for name in ("train_dataset", "eval_dataset")]
        held = [one for one in given if _PREPARED[2] in (getattr(one, "column_names", None) or ())]
        for one in held:
            vars(one)["map"] = lambda *_, rows=one, **__: rows
        super().__init__(*args, **kwargs)
        for one in held:
            vars(one).pop("map", None)

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **settings: Any) -> Dataset:
        if set(_PREPARED) & set(dataset.column_names or ()):
            return dataset
        return super()._prepare_dataset(dataset, *args, **settings)  # type: ignore[misc]


class RankingAccuracyMixin:
    """Adds ``ranking_accuracy`` to DPO's evaluations: the share of pairs whose better answer is the more likely one, by
    the sums of its tokens' log-probabilities (Chen et al. 2024, "Preference learning algorithms do not learn preference
    rankings"). TRL's ``rewards/accuracies`` counts against the reference, so that it is 0 before the first step."""

    def prediction_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        outputs: list[Any] = []
        watch = model.register_forward_hook(lambda *seen: outputs.append(seen[-1]))
        try:
            found = super().prediction_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        finally:
            watch.remove()
        better, worse = outputs[0].log_probs.sum(-1).chunk(2)  # the policy's; the reference runs after it
        right = self.accelerator.gather_for_metrics((better > worse).float())  # type: ignore[attr-defined]
        self._metrics["eval"]["ranking_accuracy"] += right.tolist()  # type: ignore[attr-defined]
        return found


def preference_arguments(recipe: Recipe, options: dict[str, Any]) -> DPOConfig:
    """The configuration of the recipe's objective, which types call by the name of DPO's. Raises as the class does."""
    if recipe.rewards:
        options = {**options, "reward_weights": [one.weight for one in recipe.rewards]}
    args: DPOConfig = trl_class(OBJECTIVES[recipe.objective].config)(**options)
    if recipe.objective in ("orpo", "cpo"):
        args.remove_unused_columns = False  # they do so themselves, with a warning
    return args


@functools.cache
def preference_trainer_class(objective: str) -> type[Trainer]:
    """TRL's trainer of the objective, for prepared rows. ``ImportError``: this TRL has none."""
    base = trl_class(OBJECTIVES[objective].trainer)
    return type(f"Recipe{base.__name__}", (PreparedRowsMixin, base), {})


def train_in_float32(model: nn.Module) -> None:
    """Undo TRL's rounding of a QLoRA adapter to bfloat16, in which small updates are lost; see ``add_adapter``."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
