"""A llama.cpp release: its folder agrees with its manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, Mapping, Tuple

from ..reader import Reader, why

SECTION = "releases"


def observe(reader: Reader, names: Iterable[str]) -> Dict[str, Any]:
    """Every release below ``<name>/releases``, by fingerprint; folders with a leading dot are still being made."""
    found = {}
    for prefix in names:
        folder = reader.tree.path(f"{prefix}/releases")
        for name in reader.tree.names(f"{prefix}/releases"):
            if not name.startswith(".") and Path(folder, name).is_dir():
                found[name] = _release(f"{folder}/{name}", name)
    return found


def _release(folder: str, name: str) -> Dict[str, Any]:
    """A release folder against its manifest: every file there with its size (hashes are read when it is installed and by verify)."""
    try:
        manifest = json.loads(Path(folder, "manifest.json").read_bytes())
        sizes = {file: int(facts["size"]) for file, facts in manifest["files"].items()}
    except FileNotFoundError:
        return {"manifest": {}, "ok": False, "problems": ["manifest.json is missing"]}
    except PermissionError as error:
        problem = f"manifest.json: {why(error)}"
        return {"manifest": {}, "ok": False, "problems": [problem], "error": problem}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {"manifest": {}, "ok": False, "problems": [f"manifest.json cannot be read: {error}"]}
    problems = []
    if manifest.get("fingerprint", name) != name:
        problems.append(f"manifest.json is of release {manifest['fingerprint']}")
    for file, size in sorted(sizes.items()):
        if file.startswith("/") or ".." in file.split("/"):
            problems.append(f"{file}: outside the release")
            continue
        try:
            actual = Path(folder, file).stat().st_size
            if actual != size:
                problems.append(f"{file}: {actual} bytes, not {size}")
        except (FileNotFoundError, NotADirectoryError):
            problems.append(f"{file}: missing")
        except OSError as error:
            problems.append(f"{file}: {why(error)}")
    return {"manifest": manifest, "ok": not problems, "problems": problems}


def differs(name: str, _want: Mapping[str, Any], have: Any) -> Iterator[Tuple[str, str]]:
    """Its name, the fingerprint, says everything that is wanted."""
    if not name:
        yield "not built yet (its name needs the compiler's version)", ""
    elif have is None:
        yield "not installed", ""
    elif not have["ok"]:
        yield "; ".join(have["problems"]) or "damaged", ""
