"""The base of our metrics: an ``evaluate.Metric`` that touches neither a hub nor the disk."""

from __future__ import annotations

from typing import Any

import evaluate

__all__ = ["OfflineMetric"]


class OfflineMetric(evaluate.Metric):
    """An ``evaluate.Metric`` whose class is in this package and whose inputs stay in memory.

    ``evaluate.Metric`` makes a cache folder when it is constructed, even where nothing is cached; this class
    makes one only when it is asked for with ``keep_in_memory=False`` (needed for evaluate's own ``num_process
    > 1``; under transformers' Trainer the predictions are gathered before a metric sees them, so one process
    is right there).

    Args:
        config_name: as in ``evaluate.Metric``; our metrics have one configuration.
        keep_in_memory: keep predictions and references in memory instead of Arrow files.
        **kwargs: the other arguments of ``evaluate.Metric``.
    """

    def __init__(self, config_name: str | None = None, keep_in_memory: bool = True, **kwargs: Any) -> None:
        super().__init__(config_name=config_name, keep_in_memory=keep_in_memory, **kwargs)

    def _build_data_dir(self) -> str:
        return self._data_dir_root if self.keep_in_memory else super()._build_data_dir()
