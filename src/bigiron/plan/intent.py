"""What the person asked for: the inventory's variables of one host, checked and typed before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bigiron.errors import UsageError
from bigiron.plan.build_options import Source

T = TypeVar("T")

PREFIX = "/opt/bigiron"
CONFIG_DIR = "/etc/bigiron"
BUILD_ROOT = "/var/cache/bigiron"
USER = "llama"
BACKENDS = ("cpu",)


@dataclass(frozen=True)
class ModelIntent:
    """A model to serve: a hub repository at a commit, and one of its quants."""

    repo: str
    revision: str
    quant: str
    endpoint: str
    root: str

    @property
    def directory(self) -> str:
        return f"{self.root}/{self.repo}/{self.revision}"


@dataclass(frozen=True)
class Intent:
    """One host's wishes. ``context`` is in tokens for each of ``parallel`` slots; ``threads`` 0 means: the physical cores."""

    host: str
    source: Source
    backend: str
    extra_options: Mapping[str, str]
    web_ui: bool
    ccache_dir: str
    model: ModelIntent
    service: str
    listen: str
    port: int
    context: int
    parallel: int
    threads: int
    cache_ram_mib: int
    cache_type_k: str
    cache_type_v: str
    extra_args: tuple[str, ...]
    own_api_key: bool
    extra_packages: tuple[str, ...]
    files: tuple[Mapping[str, str], ...]


class _Reader:
    """Reads typed variables of one host and says which variable is wrong, where, and what would be right."""

    def __init__(self, host: str, variables: Mapping[str, Any]) -> None:
        self.host = host
        self.variables = variables

    def fail(self, name: str, problem: str, hint: str) -> UsageError:
        return UsageError(f"{name} {problem}", where=self.host, hint=hint)

    def get(self, name: str, kind: type[T], default: T | None = None) -> T:
        value = self.variables.get(name, default)
        if value is None:
            raise self.fail(
                name, "is not set", f"set it in the inventory (group_vars/<group>/{name.split('_', maxsplit=1)[0]}.yml)"
            )
        if kind is int and isinstance(value, str) and re.fullmatch(r"\d+", value):
            value = int(value)
        if kind is bool and isinstance(value, str):
            raise self.fail(
                name, f'is the text "{value}", not true or false', "write it without quotes; extra variables need JSON"
            )
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.fail(name, f"is {value!r}, which is no {kind.__name__}", f"make it a {kind.__name__}")
        return value

    def text(self, name: str, pattern: str, example: str, default: str | None = None) -> str:
        value = self.get(name, str, default)
        if not re.fullmatch(pattern, value):
            raise self.fail(name, f'is "{value}"', f"it must look like {example}")
        return value

    def number(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self.get(name, int, default)
        if not low <= value <= high:
            raise self.fail(name, f"is {value}", f"it must be between {low} and {high}")
        return value


def read(host: str, variables: Mapping[str, Any]) -> Intent:
    """The intent in ``variables`` (role variables, docs/architecture.md). Raises UsageError naming host and variable."""
    reader = _Reader(host, variables)
    source = Source(
        url=reader.text("llama_cpp_source_url", r"(https?|file)://\S+", "https://host/llama.cpp.tar.gz"),
        sha256=reader.text("llama_cpp_source_sha256", r"[0-9a-f]{64}", "64 hex digits: the archive's SHA-256"),
        subdir=reader.text(
            "llama_cpp_source_subdir", r"(?!/)(?!.*\.\.)[\w./+-]*", "llama.cpp-b11434, the folder in the archive", ""
        ),
        build_number=reader.number("llama_cpp_build_number", 1, 10**7),
        commit=reader.text("llama_cpp_commit", r"[\w.+-]+", "a commit or tag, b11434"),
    )
    backend = reader.get("llama_cpp_backend", str, "cpu")
    if backend not in BACKENDS:
        raise reader.fail("llama_cpp_backend", f'is "{backend}"', f"this version builds: {', '.join(BACKENDS)}")
    model = ModelIntent(
        repo=reader.text("model_repo", r"[\w.-]+/[\w.-]+", "organisation/repository"),
        revision=reader.text(
            "model_revision", r"[0-9a-f]{40}", "a commit of the repository, 40 hex digits; a branch name would not be pinned"
        ),
        quant=reader.text("model_quant", r"[\w.-]+", "Q4_K_M"),
        endpoint=reader.text("model_endpoint", r"|https?://\S+", "https://hub.example", "").rstrip("/"),
        root=reader.text("model_root", r"(/[\w.-]+)+", "/srv/models", "/srv/models"),
    )
    listen = reader.text("llama_server_host", r"[\w.:%-]+", "an address, 127.0.0.1", "127.0.0.1")
    extra_args = tuple(reader.get("llama_server_extra_args", list, []))
    for word in extra_args:
        if not isinstance(word, str):
            raise reader.fail("llama_server_extra_args", f"holds {word!r}, which is no text", "quote each argument")
        if word.startswith("--api-key") and word != "--api-key-file":
            raise reader.fail(
                "llama_server_extra_args",
                "holds an API key, which every local user could read",
                "set llama_server_api_key instead",
            )
    return Intent(
        host=host,
        source=source,
        backend=backend,
        extra_options=reader.get("llama_cpp_extra_options", dict, {}),
        web_ui=reader.get("llama_cpp_web_ui", bool, False),
        ccache_dir=reader.get("llama_cpp_ccache_dir", str, ""),
        model=model,
        service=reader.text("llama_server_service", r"[a-z0-9][a-z0-9-]{0,40}", "a short name: main", "main"),
        listen=listen,
        port=reader.number("llama_server_port", 1, 65535, 8080),
        context=reader.number("llama_server_context", 1, 2**31 - 1, 4096),
        parallel=reader.number("llama_server_parallel", 1, 1024, 1),
        threads=reader.number("llama_server_threads", 0, 4096, 0),
        cache_type_k=reader.text("llama_server_cache_type_k", r"[a-z0-9_]+", "f16 or q8_0", "f16"),
        cache_type_v=reader.text("llama_server_cache_type_v", r"[a-z0-9_]+", "f16 or q8_0", "f16"),
        cache_ram_mib=reader.number("llama_server_cache_ram_mib", 0, 2**31 - 1, 0),
        extra_args=extra_args,
        own_api_key="llama_server_api_key" in variables,
        extra_packages=tuple(reader.get("base_extra_packages", list, [])),
        files=tuple(_files(reader)),
    )


def _files(reader: _Reader) -> list[Mapping[str, str]]:
    files: list[Mapping[str, str]] = []
    for entry in reader.get("base_files", list, []):
        if not isinstance(entry, dict) or not {"path", "content"} <= entry.keys() <= {
            "path",
            "content",
            "owner",
            "group",
            "mode",
        }:
            raise reader.fail(
                "base_files", f"holds {entry!r}", "each entry has path and content, and may have owner, group and mode"
            )
        if not str(entry["path"]).startswith("/"):
            raise reader.fail("base_files", f'holds the relative path "{entry["path"]}"', "write it from the root: /etc/motd")
        mode = entry.get("mode", "0644")
        if not isinstance(mode, str) or not re.fullmatch(r"0[0-7]{3}", mode):
            raise reader.fail("base_files", f"gives {entry['path']} the mode {mode!r}", 'quote it as four octal digits: "0644"')
        files.append({"owner": "root", "group": "root", **entry, "mode": mode})
    return files
