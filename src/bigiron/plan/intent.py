"""What the person asked for: the inventory's variables of one host, checked and typed before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from bigiron.plan import wishes
from bigiron.plan.build_options import Source

PREFIX = "/opt/bigiron"
CONFIG_DIR = "/etc/bigiron"
BUILD_ROOT = "/var/cache/bigiron"
USER = "llama"


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
    extra_packages: tuple[str, ...]
    files: tuple[Mapping[str, Any], ...]


def read(host: str, variables: Mapping[str, Any], sealed: Collection[str] = ()) -> Intent:
    """The intent in ``variables``; see `bigiron.plan.wishes.read`, which checks them and leaves the secrets in ``sealed`` closed."""
    wish = wishes.read(host, variables, sealed)
    return Intent(
        host=host,
        source=Source(
            *(wish[f"llama_cpp_{name}"] for name in ("source_url", "source_sha256", "source_subdir", "build_number", "commit"))
        ),
        backend=wish["llama_cpp_backend"],
        extra_options=wish["llama_cpp_extra_options"],
        web_ui=wish["llama_cpp_web_ui"],
        model=ModelIntent(
            repo=wish["model_repo"],
            revision=wish["model_revision"],
            quant=wish["model_quant"],
            endpoint=wish["model_endpoint"].rstrip("/"),
            root=wish["model_root"],
        ),
        service=wish["llama_server_service"],
        listen=wish["llama_server_host"],
        port=wish["llama_server_port"],
        context=wish["llama_server_context"],
        parallel=wish["llama_server_parallel"],
        threads=wish["llama_server_threads"],
        cache_type_k=wish["llama_server_cache_type_k"],
        cache_type_v=wish["llama_server_cache_type_v"],
        cache_ram_mib=wish["llama_server_cache_ram_mib"],
        extra_args=tuple(wish["llama_server_extra_args"]),
        extra_packages=tuple(wish["base_extra_packages"]),
        files=tuple(wish["base_files"]),
    )
