"""The way back of a service: which release and unit it can go back to, and whether it was rolled back."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, Iterator, Mapping, Tuple

from ..reader import Reader

SECTION = "rollbacks"


def observe(reader: Reader, names: Iterable[str]) -> Dict[str, Any]:
    """By the path of its record (`bigiron.onhost.rollback`), without the text of the unit."""
    found = {}
    for name in names:
        data = reader.tree.data(name)
        if data is None:
            continue
        try:
            record = json.loads(data)
            kept = record["kept"]
            found[name] = {**record, "kept": {key: kept[key] for key in kept if key != "text"} if kept else None}
        except (ValueError, KeyError, TypeError) as error:
            found[name] = {"error": f"the record is not readable: {error}"}
    return found


def differs(_name: str, _want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """A host that was rolled back runs what the plan does not say."""
    done = (have or {}).get("rolled_back")
    if done:
        yield (
            f"rolled back on {done['at']} from release {done['from'] or '?'} to {done['to'] or '?'}; provision brings the plan back",
            "",
        )
