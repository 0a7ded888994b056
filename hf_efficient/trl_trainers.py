"""TRL's trainers with the mixin, ready to use: the arguments of the class below, and those of the mixin.

The signatures are for type checkers and editors; ``help`` shows those of the installed TRL, and a docstring.
"""

from typing import TYPE_CHECKING

from trl import DistillationTrainer, DPOTrainer, GRPOTrainer, KTOTrainer, RewardTrainer, SFTTrainer

from hf_efficient.trainer import EfficientTrainerMixin, with_signature

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    import torch
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
    from peft import PeftConfig, PeftModel
    from transformers import (
        BitsAndBytesConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        ProcessorMixin,
        TrainerCallback,
        TrainingArguments,
    )
    from transformers.trainer_utils import EvalPrediction
    from trl import DistillationConfig, DPOConfig, GRPOConfig, KTOConfig, RewardConfig, SFTConfig
    from typing_extensions import Unpack

    from hf_efficient.trainer import EfficientOptions

    _Model: TypeAlias = str | PreTrainedModel | PeftModel
    _Data: TypeAlias = Dataset | IterableDataset
    _Reward = str | PreTrainedModel | Callable[..., Any]

    class _Options(EfficientOptions, total=False):
        """Arguments of all of TRL's trainers."""

        train_dataset: _Data | None
        eval_dataset: _Data | DatasetDict | IterableDatasetDict | dict[str, _Data] | None
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None
        callbacks: list[TrainerCallback] | None
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LambdaLR | None]
        quantization_config: BitsAndBytesConfig | None
        peft_config: PeftConfig | None

    class _ReferenceOptions(_Options, total=False):
        data_collator: Callable[[list[Any]], dict[str, Any]] | None
        compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None

    class _RowOptions(_ReferenceOptions, total=False):
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None
        preprocess_logits_for_metrics: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None


@with_signature
class EfficientSFTTrainer(EfficientTrainerMixin, SFTTrainer):
    if TYPE_CHECKING:

        def __init__(
            self,
            model: _Model,
            args: SFTConfig | TrainingArguments | None = None,
            *,
            compute_loss_func: Callable[..., Any] | None = None,
            formatting_func: Callable[[dict[str, Any]], str] | None = None,
            **options: Unpack[_RowOptions],
        ) -> None: ...


@with_signature
class EfficientDPOTrainer(EfficientTrainerMixin, DPOTrainer):
    if TYPE_CHECKING:

        def __init__(
            self,
            model: _Model,
            ref_model: PreTrainedModel | None = None,
            args: DPOConfig | None = None,
            **options: Unpack[_ReferenceOptions],
        ) -> None: ...


@with_signature
class EfficientKTOTrainer(EfficientTrainerMixin, KTOTrainer):
    if TYPE_CHECKING:

        def __init__(
            self,
            model: _Model,
            ref_model: PreTrainedModel | None = None,
            args: KTOConfig | None = None,
            **options: Unpack[_ReferenceOptions],
        ) -> None: ...


@with_signature
class EfficientRewardTrainer(EfficientTrainerMixin, RewardTrainer):
    if TYPE_CHECKING:

        def __init__(self, model: _Model, args: RewardConfig | None = None, **options: Unpack[_RowOptions]) -> None: ...


@with_signature
class EfficientGRPOTrainer(EfficientTrainerMixin, GRPOTrainer):
    if TYPE_CHECKING:

        def __init__(
            self,
            model: _Model,
            reward_funcs: _Reward | list[_Reward] | None = None,
            args: GRPOConfig | None = None,
            *,
            reward_processing_classes: PreTrainedTokenizerBase | list[PreTrainedTokenizerBase] | None = None,
            tools: list[Callable[..., Any]] | None = None,
            rollout_func: Callable[..., Any] | None = None,
            environment_factory: Callable[..., Any] | dict[str, Callable[..., Any]] | None = None,
            **options: Unpack[_Options],
        ) -> None: ...


@with_signature
class EfficientDistillationTrainer(EfficientTrainerMixin, DistillationTrainer):
    if TYPE_CHECKING:

        def __init__(
            self,
            model: _Model,
            teacher_model: str | PreTrainedModel | None = None,
            args: DistillationConfig | None = None,
            *,
            tools: list[Callable[..., Any]] | None = None,
            **options: Unpack[_Options],
        ) -> None: ...
