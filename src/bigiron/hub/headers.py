"""The facts of a model on the hub, from the headers of its shards: a few MB by range requests, nothing of the weights.

Controller only. A commit never changes, so the facts are cached for good, like the file lists of `bigiron.hub.tree`.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from bigiron.errors import BigironError, Refused
from bigiron.gguf.cache import CacheLayer, CacheShape
from bigiron.gguf.facts import ModelFacts, TensorFact, model_facts
from bigiron.hub.quants import QuantFiles
from bigiron.hub.tree import RepoTree, Token, opened
from bigiron.paths import cache_dir, write_atomic

FORMAT = 1
"""Of the cached document; another number is read again from the hub."""


def facts(tree: RepoTree, files: QuantFiles, token: Token = None) -> ModelFacts:
    """The facts of ``files`` (one quant of ``tree``), cached under ``~/.cache/bigiron/hub``.

    Raises GgufError for a file that is no sound GGUF, Refused for one that is no model (a projector under any name), BigironError when the
    hub does not answer and nothing is cached.
    """
    key = json.dumps([tree.endpoint, tree.repo, tree.revision, [file.path for file in files.files]])
    path = cache_dir("hub") / f"facts-{sha256(key.encode()).hexdigest()[:32]}.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] == FORMAT:
            return _revive(document["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = _read(tree, files, opened(token))
    write_atomic(path, json.dumps({"format": FORMAT, "facts": asdict(found)}))
    return found


def _read(tree: RepoTree, files: QuantFiles, secret: str | None) -> ModelFacts:
    from bigiron.gguf.remote import read_url  # httpx is only imported when the hub is really asked
    from bigiron.gguf.sets import classify

    headers = {"Authorization": f"Bearer {secret}"} if secret else None
    urls = [f"{tree.endpoint}/{tree.repo}/resolve/{tree.revision}/{quote(file.path)}" for file in files.files]
    with ThreadPoolExecutor(max_workers=8) as pool:
        found = list(pool.map(lambda url: read_url(url, headers=headers), urls))
    if (kind := classify(found[0])) != "model":
        raise Refused(
            f"{files.files[0].path} is no model but {kind}",
            where=f"{tree.repo}@{tree.revision[:12]}",
            hint="choose another quant",
        )
    return model_facts(found)


def of_quants(tree: RepoTree, quants: dict[str, QuantFiles], token: Token = None) -> dict[str, ModelFacts]:
    """The facts of several quants by name. One whose header cannot be used is left out; when none can, its error is raised."""
    found: dict[str, ModelFacts] = {}
    last: BigironError | None = None
    for name, files in quants.items():
        try:
            found[name] = facts(tree, files, token)
        except BigironError as error:
            last = error
    if not found and last is not None:
        raise last
    return found


def _revive(document: dict[str, Any]) -> ModelFacts:
    cache = {**document["cache"], "layers": tuple(CacheLayer(**layer) for layer in document["cache"]["layers"])}
    return ModelFacts(
        **{
            **document,
            "cache": CacheShape(**cache),
            "routed_layer_bytes": {int(layer): size for layer, size in document["routed_layer_bytes"].items()},
            "quant_mix": tuple((name, size) for name, size in document["quant_mix"]),
            "tensors": tuple(TensorFact(**{**tensor, "shape": tuple(tensor["shape"])}) for tensor in document["tensors"]),
        }
    )
