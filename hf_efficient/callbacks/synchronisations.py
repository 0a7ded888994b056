"""The census of hidden synchronisations in any Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_efficient.callbacks.instrument import InstrumentCallback
from hf_efficient.measure.instruments.synchronisations import Synchronisations
from hf_efficient.measure.process_timeline import process_timeline

__all__ = ["SynchronisationsCallback"]


class SynchronisationsCallback(InstrumentCallback):
    """``Trainer(callbacks=[SynchronisationsCallback()])`` counts, line by line, where the host reads tensors.

    Its facts are in the run's records, where ``AccountCallback``, ``EfficientTrainer`` or a recipe keeps them, and in
    ``facts``.

    Attributes:
        facts: what was found (see ``Synchronisations``); empty until the counted steps are done.
    """

    def __init__(self, after_step: int = 3, steps: int = 2) -> None:
        """Nothing is counted before training begins.

        Args:
            after_step: optimizer steps that go by before.
            steps: that are counted.

        Raises:
            ValueError: a count is too small.
        """
        self.facts: dict[str, Any] = {}
        super().__init__(Synchronisations(after_step, steps, self._state))

    def _state(self, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)
        process_timeline().state("synchronisations", facts)
