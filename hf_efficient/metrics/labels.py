"""What a label may say besides a token."""

from __future__ import annotations

__all__ = ["IGNORED_LABEL"]

IGNORED_LABEL = -100
"""No loss is taken here: PyTorch's ``ignore_index`` of cross-entropy."""
