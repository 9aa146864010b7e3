"""The person's variables of one host, typed and complete."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from bigiron.plan import intent


def read(host: str, variables: Mapping[str, Any], sealed: Collection[str] = ()) -> dict[str, Any]:
    """Shim."""
    one = intent.read(host, variables)
    return {
        "llama_cpp_source_url": one.source.url,
        "llama_cpp_source_sha256": one.source.sha256,
        "llama_cpp_source_subdir": one.source.subdir,
        "llama_cpp_build_number": one.source.build_number,
        "llama_cpp_commit": one.source.commit,
        "llama_cpp_backend": one.backend,
        "llama_cpp_web_ui": one.web_ui,
        "llama_cpp_extra_options": one.extra_options,
        "llama_cpp_ccache_dir": one.ccache_dir,
        "model_repo": one.model.repo,
        "model_revision": one.model.revision,
        "model_quant": one.model.quant,
        "model_endpoint": one.model.endpoint,
        "model_root": one.model.root,
        "llama_server_service": one.service,
        "llama_server_host": one.listen,
        "llama_server_port": one.port,
        "llama_server_context": one.context,
        "llama_server_parallel": one.parallel,
        "llama_server_threads": one.threads,
        "llama_server_cache_ram_mib": one.cache_ram_mib,
        "llama_server_cache_type_k": one.cache_type_k,
        "llama_server_cache_type_v": one.cache_type_v,
        "llama_server_extra_args": list(one.extra_args),
        "base_extra_packages": list(one.extra_packages),
        "base_files": [dict(f) for f in one.files],
    }
