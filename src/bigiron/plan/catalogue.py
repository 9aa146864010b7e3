"""The catalogue: models by a short name, each a hub repository at a pinned revision, with its licence."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path

from bigiron.errors import UsageError
from bigiron.machine.machinefile import check, load_with_lines

SCHEMA = Path(__file__).parent / "schemas" / "catalogue.schema.json"


@dataclass(frozen=True)
class CatalogueModel:
    """One entry. ``revision`` is a commit, or "" when nobody pinned it: then ``branch`` is what to ask the hub for."""

    name: str
    repo: str
    revision: str
    licence: str
    about: str
    endpoint: str
    branch: str

    @property
    def pinned(self) -> bool:
        """True when the entry names a commit."""
        return bool(self.revision)


def read(path: Path) -> dict[str, CatalogueModel]:
    """The models in the YAML file ``path``, by name. Raises UsageError that names the line of a mistake."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the catalogue: {getattr(error, 'strerror', None) or 'not text'}", where=str(path)
        ) from None
    document, lines = load_with_lines(text, str(path))
    check(document, lines, json.loads(SCHEMA.read_text(encoding="utf-8")), str(path))
    return {
        name: CatalogueModel(
            name=name,
            repo=entry["repo"],
            revision="" if entry["revision"] == "ask" else entry["revision"],
            licence=entry["licence"],
            about=entry.get("about", ""),
            endpoint=entry.get("endpoint", ""),
            branch=entry.get("branch", "main"),
        )
        for name, entry in document["models"].items()
    }


def find(models: dict[str, CatalogueModel], name: str) -> CatalogueModel:
    """The model called ``name``. Raises UsageError with near names."""
    if name in models:
        return models[name]
    near = difflib.get_close_matches(name, models, n=3, cutoff=0.4)
    raise UsageError(
        f"there is no model {name!r} in the catalogue",
        where="inventory/catalogue.yml",
        hint=f"did you mean {', '.join(near)}?" if near else f"there are: {', '.join(sorted(models))}",
    )
