"""The facts of a model on the hub, from the headers of its shards: a few MB by range requests, nothing of the weights.

Controller only. A commit never changes, so the facts are cached for good, like the file lists of `bigiron.hub.tree`.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote

from bigiron.errors import Refused
from bigiron.gguf.cache import CacheLayer, CacheShape
from bigiron.gguf.errors import GgufError, SourceError
from bigiron.gguf.facts import ModelFacts, TensorFact, model_facts
from bigiron.hub.quants import QuantFiles
from bigiron.hub.tree import RepoTree, Token, opened, quants, select, unusable
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
            where=tree.where,
            hint="choose another quant",
        )
    return model_facts(found)


class Candidates(NamedTuple):
    """The quants a plan may choose from, what their headers say, and a sentence for each that the repository has beside them."""

    quants: dict[str, QuantFiles]
    facts: dict[str, ModelFacts]
    left_out: tuple[str, ...] = ()


def candidates(tree: RepoTree, quant: str | None, token: Token = None) -> Candidates:
    """Just ``quant``, or (None) every quant of ``tree`` that can be used.

    Raises Refused when none can, and what `facts` and `bigiron.hub.tree.select` raise: of all quants only for a hub that does not answer,
    since that says nothing about a file.
    """
    if quant is not None:
        chosen = select(tree, quant)
        return Candidates({chosen.name: chosen}, {chosen.name: facts(tree, chosen, token)})
    usable: dict[str, QuantFiles] = {}
    found: dict[str, ModelFacts] = {}
    left_out: list[str] = []
    for name, files in quants(tree).items():
        try:
            if why := unusable(files):
                raise Refused(why)
            found[name] = facts(tree, files, token)
            usable[name] = files
        except SourceError:
            raise
        except (GgufError, Refused) as error:
            left_out.append(f"quant {name} is left out: {error}")
    if not usable:
        raise Refused(
            f"no quant can be used: {'; '.join(left_out)}", where=tree.where, hint="choose another repository or revision"
        )
    return Candidates(usable, found, tuple(left_out))


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
