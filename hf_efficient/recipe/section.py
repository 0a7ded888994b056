"""What every section of a recipe is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """Base of all sections: no unknown keys, no changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
