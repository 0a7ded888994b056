"""TRL's trainers with the mixin, ready to use: the arguments of the class below, and those of the mixin. ``help`` and
notebooks show them for the installed TRL."""

from trl import DistillationTrainer, DPOTrainer, GRPOTrainer, KTOTrainer, RewardTrainer, SFTTrainer

from hf_efficient.trainer import EfficientTrainerMixin, with_signature


@with_signature
class EfficientSFTTrainer(EfficientTrainerMixin, SFTTrainer):
    pass


@with_signature
class EfficientDPOTrainer(EfficientTrainerMixin, DPOTrainer):
    pass


@with_signature
class EfficientKTOTrainer(EfficientTrainerMixin, KTOTrainer):
    pass


@with_signature
class EfficientRewardTrainer(EfficientTrainerMixin, RewardTrainer):
    pass


@with_signature
class EfficientGRPOTrainer(EfficientTrainerMixin, GRPOTrainer):
    pass


@with_signature
class EfficientDistillationTrainer(EfficientTrainerMixin, DistillationTrainer):
    pass
