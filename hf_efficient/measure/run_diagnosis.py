"""The diagnosis of a run, written when the run ends."""

from __future__ import annotations

import logging
from pathlib import Path

from hf_efficient.account.run_records import RunReader

__all__ = ["RunDiagnosis"]

logger = logging.getLogger(__name__)


class RunDiagnosis:
    """Writes ``diagnosis.json`` beside the records; never raises, and tells of its first finding once per run."""

    def __init__(self) -> None:
        self._told: Path | None = None

    def write(self, directory: Path, reader: RunReader | None = None, *, tell: bool) -> None:
        """Write it, or write it again.

        Args:
            directory: the run's folder of records.
            reader: one that has read them before, so that only what is new is read.
            tell: log its first finding above ``info``; a recipe's run shows them itself.
        """
        try:
            from hf_efficient.diagnosis.run import write_diagnosis

            found = write_diagnosis(directory, reader)
        except Exception:
            logger.warning("The run could not be diagnosed, because of a fault; it is not affected.", exc_info=True)
            return
        if not tell or found.is_healthy or directory == self._told:
            return
        self._told = directory
        first = found.findings[0].title
        logger.warning(
            "%s%s. `hf-efficient diagnose %s` tells what to change.", first[:1].upper(), first[1:], directory
        )
