"""The JSON Schema (2020-12) of ``run.json``; run this module to write the file that is shipped beside it."""

import json
from pathlib import Path
from typing import Any

import msgspec

from hf_efficient.records.account import RunAccount

SHIPPED = Path(__file__).with_name("run.schema.json")


def run_schema() -> dict[str, Any]:
    """Every key is required, none beside them is valid."""
    (schema,), parts = msgspec.json.schema_components([RunAccount], ref_template="#/$defs/{name}")
    for part in parts.values():
        if "properties" in part:
            part["additionalProperties"] = False
            part["required"] = list(part["properties"])
            part["description"] = " ".join(part.get("description", "").split("\n\n")[0].split())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": parts}


if __name__ == "__main__":
    SHIPPED.write_text(json.dumps(run_schema(), indent=2) + "\n", encoding="utf-8")
