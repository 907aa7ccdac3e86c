"""Write the JSON Schemas; a changed form needs a new version number."""

import json
from pathlib import Path

from policies.contract import plan_json, snapshot_json


def main(folder: Path = Path(__file__).parent) -> None:
    """Write both schemas into the folder."""
    schemas = {"snapshot": snapshot_json.schema(), "plan": plan_json.schema()}
    for name, schema in schemas.items():
        text = json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (folder / f"{name}.schema.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
