"""The FLOPs of a trainer's steps, and the peak that they are held against: looked at once, when training begins."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import ModelShape
from hf_efficient.estimate.step_work import Coefficients, Kernel, WorkFormula, coefficients
from hf_efficient.estimate.trained import Trained
from hf_efficient.models.kernels import checkpointing_of, kernel_of
from hf_efficient.models.objective import Objective, objective_of
from hf_efficient.models.peak import Peak, accelerators_of, peak_of
from hf_efficient.models.precision import matmul_dtype
from hf_efficient.models.structure import shape_of_model
from hf_efficient.models.trained import adapter_of, trained_of

__all__ = ["Work", "formula_of", "work_of"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """What is known of a trainer's work.

    Attributes:
        formula: of its steps; None where their FLOPs are not known.
        reason: why they are not.
        hardware_reason: why what is computed beyond them is not.
        peak: of one accelerator.
        dtype: of the matrix products.
        accelerators: of this process.
    """

    formula: WorkFormula | None
    reason: str | None = None
    hardware_reason: str | None = None
    peak: Peak = field(default_factory=Peak)
    dtype: str | None = None
    accelerators: int = 1

    def facts(self) -> dict[str, Any]:
        """For the records: the topic ``work``."""
        return {
            "dtype": self.dtype,
            "peak_flops_per_second": self.peak.flops_per_second,
            "peak_source": self.peak.source,
            "peak_estimated": self.peak.estimated,
            "peak_reason": self.peak.reason,
            "accelerators": self.accelerators,
            "reason": self.reason,
            "hardware_reason": self.hardware_reason,
        }


def work_of(trainer: Any) -> Work:
    """Look at a trainer whose model stands as it will be trained; never raises, a fault is one warning.

    The peak is looked up on the main process alone, whose records tell it.
    """
    try:
        formula, hardware_reason = formula_of(trainer)
    except ModelError as error:
        return Work(None, str(error))
    except Exception as error:
        logger.warning("The FLOPs of the steps are not counted, because of a fault.", exc_info=True)
        return Work(None, f"a fault while the model was looked at: {type(error).__name__}: {error}")
    known = Work(formula, None, hardware_reason)
    if trainer.args.process_index != 0:
        return known
    try:
        dtype = matmul_dtype(trainer)
        known = dataclasses.replace(known, dtype=dtype, accelerators=accelerators_of(trainer))
        return dataclasses.replace(known, peak=peak_of(trainer.args.device, dtype))
    except ModelError as error:
        return dataclasses.replace(known, peak=Peak(reason=str(error)))
    except Exception as error:
        logger.warning("The device's peak is not known, because of a fault.", exc_info=True)
        reason = f"a fault while the device was looked at: {type(error).__name__}: {error}"
        return dataclasses.replace(known, peak=Peak(reason=reason))


def formula_of(trainer: Any) -> tuple[WorkFormula, str | None]:
    """The FLOPs of the trainer's steps, and why those of the hardware are unknown, where they are.

    Raises:
        ModelError: the model's are not known.
    """
    objective = objective_of(trainer)
    _check_parallelism(trainer)
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    shape = shape_of_model(model)
    trained = trained_of(model, shape)
    if objective.head != "everywhere" and trained.head_rank:
        raise ModelError("TRL's fused head leaves out the adapter on lm_head; its FLOPs are not known.")
    needed = coefficients(shape, trained)
    reference = _reference(objective, model, shape)
    if reference is not None:
        needed += reference
    compiled = bool(trainer.args.torch_compile)
    try:
        kernel = _kernel(model, objective, trainer.args.device.type)
        way, layers = checkpointing_of(model)
    except ModelError as error:
        return WorkFormula(needed, None, "documents", objective.head, compiled), str(error)
    again = objective.head_recomputed
    computed = coefficients(shape, trained, checkpointing=way, checkpointed_layers=layers, head_recomputed=again)
    if reference is not None:
        computed += reference
    return WorkFormula(needed, computed, kernel, objective.head, compiled), None


def _kernel(model: nn.Module, objective: Objective, device_type: str) -> Kernel:
    kernel = kernel_of(model, device_type)
    if isinstance(objective.reference, nn.Module) and kernel_of(objective.reference, device_type) != kernel:
        raise ModelError("the reference model has another attention implementation than the one that is trained.")
    return kernel


def _reference(objective: Objective, model: nn.Module, shape: ModelShape) -> Coefficients | None:
    """The forward of the reference model; None without."""
    if objective.reference is None:
        return None
    if isinstance(objective.reference, nn.Module):
        return coefficients(shape_of_model(objective.reference), Trained(), forward_alone=True)
    adapter = adapter_of(model, shape, "ref") if objective.reference == "ref" else Trained()
    return coefficients(shape, adapter, forward_alone=True)


def _check_parallelism(trainer: Any) -> None:
    config = getattr(trainer.accelerator, "parallelism_config", None)
    for name in ("tp_size", "cp_size", "sp_size"):
        if (getattr(config, name, 1) or 1) > 1:
            raise ModelError(f"parallelism_config.{name}: the FLOPs of a rank that computes a part are not known here.")
