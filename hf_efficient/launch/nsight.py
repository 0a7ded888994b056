"""A launch under Nsight: the command around it, and what the recipe switches on for it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from hf_efficient.account.profile_files import PROFILE
from hf_efficient.errors import SetupError
from hf_efficient.launch.run_files import EFFICIENCY
from hf_efficient.recipe.profile_section import CaptureSection
from hf_efficient.recipe.schema import Recipe

__all__ = ["NsightTool", "check_installed", "nsight_command", "nsight_overrides"]

NsightTool = Literal["nsys", "ncu"]

_PRODUCTS = {
    "nsys": ("Nsight Systems", "https://developer.nvidia.com/nsight-systems"),
    "ncu": ("Nsight Compute", "https://developer.nvidia.com/nsight-compute"),
}
_MOST_KERNELS = 200
"""Nsight Compute runs every kernel dozens of times over: a whole step would take hours."""


def check_installed(tool: NsightTool) -> None:
    """The program is on the PATH.

    Raises:
        SetupError: it is not.
    """
    if shutil.which(tool) is None:
        product, address = _PRODUCTS[tool]
        raise SetupError(
            f"--{tool}: {product} is not installed here: there is no `{tool}` on the PATH. Get it from {address}, or "
            f"with NVIDIA's CUDA toolkit; `efficiency.profile.trace={{}}` traces some steps without it."
        )


def nsight_overrides(recipe: Recipe) -> list[str]:
    """``a.b=value`` that make the run name its steps and bound the capture, where the recipe does not say so itself."""
    profile = recipe.efficiency.profile
    overrides = [] if profile.nvtx else ["efficiency.profile.nvtx=true"]
    return overrides if profile.capture is not None else [*overrides, "efficiency.profile.capture={}"]


def nsight_command(tool: NsightTool, recipe: Recipe, *, has_gpu: bool) -> list[str]:
    """What goes before the launch.

    nsys: CUDA, its libraries, NVTX, the operating system's calls and samples of the CPU's stacks, of the steps of
    ``efficiency.profile.capture``. ncu: rooflines of the first kernels of the first of these steps.

    Args:
        tool: which.
        recipe: the resolved recipe.
        has_gpu: whether there is a CUDA device; without one nothing would ever begin the capture.
    """
    output = Path(recipe.output_dir).expanduser() / EFFICIENCY / PROFILE / tool
    capture = recipe.efficiency.profile.capture or CaptureSection()
    if tool == "nsys":
        bounds = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"] if has_gpu else []
        return [
            "nsys",
            "profile",
            "--trace=cuda,nvtx,osrt,cudnn,cublas",
            "--sample=process-tree",
            "--cuda-memory-usage=true",
            *bounds,
            "--force-overwrite=true",
            f"--output={output}",
        ]
    return [
        "ncu",
        "--target-processes=all",
        "--set=roofline",
        "--nvtx",
        f"--nvtx-include=step {capture.after_step + 1}",
        f"--launch-count={_MOST_KERNELS}",
        "--force-overwrite",
        f"--export={output}",
    ]
