"""The JSON Schema (2020-12) of ``run.json``; the one that is shipped beside this file is what it gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hf_efficient.records.account import RunAccount

SHIPPED = Path(__file__).with_name("run.schema.json")
"""Written by ``python -m hf_efficient.accounting.json_schema``."""


def run_schema() -> dict[str, Any]:
    """Every key is required, none beside them is valid."""
    schema = TypeAdapter(RunAccount).json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        if "properties" in part:
            part["additionalProperties"] = False
            part["description"] = part.get("description", "").split("\n\n")[0]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


if __name__ == "__main__":
    SHIPPED.write_text(json.dumps(run_schema(), indent=2) + "\n", encoding="utf-8")
