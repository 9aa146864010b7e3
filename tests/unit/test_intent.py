import pytest

from bigiron.errors import UsageError
from bigiron.plan import intent

GOOD = {
    "llama_cpp_source_url": "http://mirror/x.tar.gz",
    "llama_cpp_source_sha256": "a" * 64,
    "llama_cpp_build_number": 11434,
    "llama_cpp_commit": "b11434",
    "model_repo": "lab/model",
    "model_revision": "b" * 40,
    "model_quant": "Q4_K_M",
}


def test_defaults_are_safe():
    wish = intent.read("h", GOOD)
    assert (wish.listen, wish.port, wish.parallel, wish.web_ui) == ("127.0.0.1", 8080, 1, False)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("llama_cpp_source_sha256", "abc"),
        ("llama_cpp_source_sha256", None),
        ("llama_cpp_source_url", "ftp://x"),
        ("llama_cpp_source_subdir", "../etc"),
        ("llama_cpp_source_subdir", "/etc"),
        ("llama_cpp_backend", "cuda13"),
        ("llama_cpp_web_ui", "false"),
        ("model_revision", "main"),
        ("model_repo", "no-slash"),
        ("model_root", "srv/models"),
        ("llama_server_port", 0),
        ("llama_server_port", 70000),
        ("llama_server_port", True),
        ("llama_server_context", -1),
        ("llama_server_service", "../x"),
        ("llama_server_extra_args", ["--api-key", "secret"]),
        ("llama_server_extra_args", [8]),
        ("llama_server_extra_args", "--metrics"),
        ("base_files", [{"path": "etc/motd", "content": ""}]),
        ("base_files", [{"path": "/etc/motd", "content": "", "mode": 420}]),
        ("base_files", [{"path": "/etc/motd", "contents": ""}]),
    ],
)
def test_wrong_value_names_host_and_variable(variable, value):
    with pytest.raises(UsageError) as caught:
        intent.read("epyc01", {**GOOD, variable: value})
    assert caught.value.exit_code == 64
    assert caught.value.where == "epyc01"
    assert variable in caught.value.what
    assert caught.value.hint


def test_number_written_as_text_is_a_number():
    assert intent.read("h", {**GOOD, "llama_server_port": "9000"}).port == 9000
