"""Packages that only some instruments need."""

from __future__ import annotations

from hf_efficient.errors import SetupError
from hf_efficient.hardware.packages import is_installed

__all__ = ["require"]


def require(module: str) -> None:
    """It can be imported.

    Raises:
        SetupError: it cannot.
    """
    if not is_installed(module):
        raise SetupError(
            f"the package {module} is not installed; install the extra: pip install 'hf-efficient[profile]'"
        )
