import pytest


@pytest.fixture
def variables():
    """Complete role variables of one small host, as the plan makes them."""
    return {
        "base_packages": ["ca-certificates", "libgomp1"],
        "base_user": "llama",
        "base_directories": [{"path": "/opt/bigiron", "owner": "root", "group": "root", "mode": "0755"}],
        "base_files": [{"path": "/etc/motd", "content": "hello\n", "owner": "root", "group": "root", "mode": "0644"}],
        "llama_cpp_prefix": "/opt/bigiron",
        "llama_cpp_fingerprint": "0123456789abcdef",
        "model_repo": "lab/model",
        "model_revision": "b" * 40,
        "model_files": [{"path": "Q4/m-00001-of-00002.gguf", "size": 10, "sha256": "c" * 64}],
        "model_entry": "Q4/m-00001-of-00002.gguf",
        "llama_server_service": "main",
        "llama_server_port": 8080,
        "llama_server_argv": ["/opt/bigiron/current/bin/llama-server", "--port", "8080"],
        "llama_server_environment": {"LANG": "C.UTF-8"},
        "llama_server_user": "llama",
        "llama_server_prefix": "/opt/bigiron",
        "llama_server_config_dir": "/etc/bigiron",
        "llama_server_model_root": "/srv/models",
        "llama_server_start_timeout_s": 600,
        "llama_server_lock_memory": False,
        "llama_server_memory_max_bytes": 0,
    }


@pytest.fixture(autouse=True)
def wide_tables(monkeypatch):
    """Tables as in a pipe that says nothing, whatever terminal (or pytest-xdist, which sets it) the tests run in."""
    monkeypatch.delenv("COLUMNS", raising=False)
