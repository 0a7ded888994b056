"""Values of ``train:`` that need a package beyond those that a run always needs."""

from __future__ import annotations

from hf_efficient.hardware.packages import is_installed
from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = ["optimizer_is_installed", "reports_are_installed"]

# The modules that an integration imports, of which one or all are needed, and what to install.
_INTEGRATIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "azure_ml": (("azureml",), "azureml-mlflow"),
    "clearml": (("clearml",), "clearml"),
    "codecarbon": (("codecarbon",), "codecarbon"),
    "comet_ml": (("comet_ml",), "comet-ml"),
    "dagshub": (("dagshub",), "dagshub mlflow"),
    "dvclive": (("dvclive",), "dvclive"),
    "flyte": (("flytekit",), "flytekit"),
    "mlflow": (("mlflow",), "mlflow"),
    "neptune": (("neptune",), "neptune"),
    "swanlab": (("swanlab",), "swanlab"),
    "tensorboard": (("tensorboard", "tensorboardX"), "tensorboard"),
    "trackio": (("trackio",), "trackio"),
    "wandb": (("wandb",), "wandb"),
}
# The beginning of the optimizer's name, its module, and what to install.
_OPTIMIZERS = (
    ("galore_", "galore_torch", "galore-torch"),
    ("apollo_", "apollo_torch", "apollo-torch"),
    ("lomo", "lomo_optim", "lomo-optim"),
    ("adalomo", "lomo_optim", "lomo-optim"),
    ("grokadamw", "grokadamw", "grokadamw"),
    ("schedule_free_", "schedulefree", "schedulefree"),
    ("stable_adamw", "optimi", "torch-optimi"),
    ("adamw_torch_4bit", "torchao", "torchao"),
    ("adamw_torch_8bit", "torchao", "torchao"),
    ("adamw_torch_xla", "torch_xla", "torch_xla"),
    ("adamw_torch_npu_fused", "torch_npu", "torch_npu"),
    ("adamw_anyprecision", "torchdistx", "torchdistx"),
)
_ALONE = ("none", "all")


@reads("train.report_to")
def reports_are_installed(settings: Settings) -> list[Contradiction]:
    """transformers asks for the package of an integration only after the model was loaded."""
    said = settings.train("report_to")
    if said is None:
        return [("train.report_to", "is null, which transformers takes for a name.", "Write none.")]
    names = [said] if isinstance(said, str) else list(said)
    found: list[Contradiction] = []
    for index, name in enumerate(names):
        key = "train.report_to" if isinstance(said, str) else f"train.report_to.{index}"
        if name in _ALONE and len(names) > 1:
            found.append((key, f"is {name}, which stands alone.", "Name integrations, or write it alone."))
        modules, package = _INTEGRATIONS.get(name, ((), ""))
        if modules and not any(is_installed(module) for module in modules):
            message = f"is {name}, but the package {modules[0]} is not installed."
            found.append((key, message, f"Install it (pip install {package}), or write `train.report_to: none`."))
    return found


@reads("train.optim")
def optimizer_is_installed(settings: Settings) -> list[Contradiction]:
    """transformers asks for the package of an optimizer only after the model was loaded."""
    name = settings.train("optim")
    if not isinstance(name, str):
        return []
    for beginning, module, package in _OPTIMIZERS:
        if name.startswith(beginning) and not is_installed(module):
            message = f"is {name}, but the package {module} is not installed."
            return [("train.optim", message, f"Install it (pip install {package}), or write another optimizer.")]
    return []
