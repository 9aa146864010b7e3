"""The inventory as Ansible reads it, what is kept of it, and what a person is told when it is wrong."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bigiron.errors import BigironError, UsageError
from bigiron.fleet import inventory, sources
from bigiron.fleet.environment import clean_env

HOSTS = """
all:
  children:
    gpu:
      vars:
        base: /srv
        model_root: "{{ base }}/models"
        literal: !unsafe "{{ stays }}"
        max_tokens: 4096
        model_token: hf_sentinel_token
        url: "http://user:{{ model_token }}@mirror"
        now_ish: "{{ now() }}"
        later: "{{ now_ish }}"
        broken: "{{ nowhere }}"
        peer: "{{ hostvars['n2'].address }}"
      hosts:
        n1: {ansible_host: 127.0.0.1, ansible_user: me}
        n2: {address: 10.0.0.2, services: [{api_key: sentinel_api_key}]}
    cpu:
      hosts:
        c1: {ansible_connection: winrm}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    return tmp_path / "cache" / "bigiron" / "inventory"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "inv"
    (path / "group_vars").mkdir(parents=True)
    (path / "hosts.yml").write_text(HOSTS)
    return path


def count_listings(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    calls: list[object] = []
    real = sources._ansible_inventory

    def counting(paths: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        calls.append(paths)
        return real(paths)

    monkeypatch.setattr(sources, "_ansible_inventory", counting)
    return calls


def vault(text: str, password: Path, *more: str) -> str:
    argv = [str(Path(sys.executable).parent / "ansible-vault"), "encrypt_string", text, *more]
    argv += [] if more else ["--vault-password-file", str(password)]
    return subprocess.run(argv, env=clean_env(), check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout


def test_values_groups_and_what_is_kept(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_listings(monkeypatch)
    for _ in range(2):
        loaded = inventory.load(str(folder))
        assert loaded.groups == {"gpu": ("n1", "n2"), "cpu": ("c1",)}
        host = loaded.hosts["n1"]
        assert host.groups == ("gpu",)
        known = host.vars.known()
        assert (known["model_root"], known["literal"], known["max_tokens"], known["peer"]) == (
            "/srv/models",
            "{{ stays }}",
            4096,
            "10.0.0.2",
        )
        assert host.connection.host == "127.0.0.1"
        assert host.connection.user == "me"
        assert len(calls) == 1
    (entry,) = cache.glob("*.json")
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    assert "sentinel" not in entry.read_text()
    assert host.vars["model_token"] == "hf_sentinel_token"
    assert host.vars["url"] == "http://user:hf_sentinel_token@mirror"
    assert loaded.hosts["n2"].vars["services"] == [{"api_key": "sentinel_api_key"}]
    assert "sentinel" not in entry.read_text()
    assert "sentinel" not in repr(host)
    assert len(calls) == 2
    (folder / "group_vars" / "gpu.yml").write_text("base: /data\n")
    assert inventory.load(str(folder)).hosts["n1"].vars["model_root"] == "/data/models"


def test_what_moves_is_never_kept_and_what_is_broken_fails_only_when_asked_for(folder: Path) -> None:
    inventory.load(str(folder))
    host = inventory.load(str(folder)).hosts["n1"]
    pending = host.vars.pending()
    assert (pending["now_ish"], pending["later"]) == ("changing", "changing")
    assert str(host.vars["later"]).startswith("20")
    with pytest.raises(BigironError, match=r"broken cannot be resolved: .*nowhere") as caught:
        host.vars["broken"]
    assert caught.value.where == "n1"


def test_a_hit_imports_neither_ansible_nor_paramiko(folder: Path) -> None:
    inventory.load(str(folder))
    heavy = ("ansible", "paramiko", "fabric", "yaml", "jinja2")
    code = f"""
import sys
from bigiron.fleet import inventory
inventory.load(sys.argv[1]).hosts["n1"].connection
print([name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("kind", ["script", "plugin", "vault file"])
def test_what_content_does_not_decide_is_not_kept(tmp_path: Path, cache: Path, kind: str) -> None:
    path = tmp_path / "inv"
    path.mkdir()
    (path / "hosts.yml").write_text("all: {hosts: {n1: {a: '{{ 1 + 1 }}'}}}\n")
    if kind == "script":
        (path / "more.sh").write_text(
            '#!/bin/sh\necho \'{"gpu": {"hosts": ["s1"]}, "_meta": {"hostvars": {"s1": {"x": 1}}}}\'\n'
        )
        (path / "more.sh").chmod(0o755)
    elif kind == "plugin":
        (path / "z.yml").write_text(
            "plugin: ansible.builtin.constructed\nstrict: false\ngroups: {gpu: inventory_hostname == 'n1'}\n"
        )
    else:
        (tmp_path / "password").write_text("secret\n")
        (path / "group_vars").mkdir()
        hidden = path / "group_vars" / "all.yml"
        hidden.write_text("vaulted: 1\n")
        argv = [str(Path(sys.executable).parent / "ansible-vault"), "encrypt", str(hidden)]
        subprocess.run(
            [*argv, "--vault-password-file", str(tmp_path / "password")], env=clean_env(), check=True, capture_output=True
        )
    loaded = inventory.load(str(path))
    assert not list(cache.glob("*.json"))
    if kind != "vault file":
        assert len(loaded.groups["gpu"]) == 1
    else:
        assert "vaulted" not in loaded.hosts["n1"].vars
        assert "all.yml: cannot be decrypted" in loaded.warnings[0]


def test_vault_is_opened_on_demand_and_says_which_value(
    folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"{name}\n")
    first = vault("sentinel-sudo", tmp_path / "one", "--name", "ansible_become_password", "--vault-id", f"one@{tmp_path}/one")
    second = vault("sentinel-key", tmp_path / "two", "--name", "llama_server_api_key", "--vault-id", f"two@{tmp_path}/two")
    (folder / "group_vars" / "gpu.yml").write_text(f"{first}\n{second}\nderived: 'x{{{{ llama_server_api_key }}}}'\n")
    calls = count_listings(monkeypatch)
    host = inventory.load(str(folder)).hosts["n1"]
    assert host.vars["model_root"] == "/srv/models"
    connection = host.connection  # reading the connection needs no secret
    assert connection.become_password is not None
    with pytest.raises(BigironError) as caught:
        connection.become_password()
    assert f"ansible_become_password in {folder}/group_vars/gpu.yml:" in str(caught.value)
    assert "vault id 'one'" in str(caught.value.hint)
    monkeypatch.setenv("ANSIBLE_VAULT_IDENTITY_LIST", f"one@{tmp_path}/one")
    host = inventory.load(str(folder)).hosts["n1"]
    assert host.secret("ansible_become_password") == "sentinel-sudo"
    for name in ("llama_server_api_key", "derived"):
        with pytest.raises(BigironError, match=name):
            host.secret(name)
    monkeypatch.setenv("ANSIBLE_VAULT_IDENTITY_LIST", f"one@{tmp_path}/one,two@{tmp_path}/two")
    host = inventory.load(str(folder)).hosts["n1"]
    before = len(calls)
    assert host.secret("llama_server_api_key") == "sentinel-key"
    assert len(calls) == before  # vault text is in the cache: no second reading of the sources
    assert host.secret("derived") == "xsentinel-key"
    assert all("sentinel" not in entry.read_text() for entry in cache.glob("*.json"))


@pytest.mark.parametrize(("content", "words"), [("", "no hosts"), ("all: [", "parse"), ("just text: {", "parse")])
def test_empty_and_unparsable_name_the_file(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(content)
    with pytest.raises(UsageError, match=words) as caught:
        inventory.load(str(path))
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 64


def test_missing_inventory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no inventory"):
        inventory.load(str(tmp_path / "nope"))
    with pytest.raises(UsageError, match="nope"):
        inventory.load(f"{tmp_path},{tmp_path}/nope")


def test_unknown_names_list_near_ones(folder: Path) -> None:
    loaded = inventory.load(str(folder))
    assert [target.name for target in loaded.select(host="n2", group="gpu")] == ["n2"]
    assert [target.name for target in loaded.select()] == list(loaded.hosts)
    for asked, near in (
        ({"host": "n11"}, "n1"),
        ({"host": "n1,gpux"}, "gpu"),
        ({"group": "gpus"}, "gpu"),
        ({"group": "n1"}, "--host n1"),
    ):
        with pytest.raises(UsageError) as caught:
            loaded.select(**asked)
        assert near in str(caught.value.hint)
    with pytest.raises(UsageError, match="no host is left"):
        loaded.select(host="c1", group="gpu")


def test_several_inventories_and_host_lists(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "more.ini").write_text("[gpu]\nn3 ansible_port=2222\n")
    loaded = inventory.load(f"{folder},{tmp_path}/more.ini")
    assert set(loaded.groups["gpu"]) == {"n1", "n2", "n3"}
    assert loaded.hosts["n3"].connection.port == 2222
    assert list(inventory.load("a.example,b.example").hosts) == ["a.example", "b.example"]


def test_unspoken_connection_is_a_usage_error(folder: Path) -> None:
    with pytest.raises(UsageError, match="winrm"):
        _ = inventory.load(str(folder)).hosts["c1"].connection


@pytest.mark.parametrize("env", [{"LC_ALL": "C"}, {"LANG": "xx_YY.UTF-8", "LC_ALL": "xx_YY.UTF-8"}, {"LC_ALL": "POSIX"}, {}])
def test_any_locale_works(folder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    code = "import sys; from bigiron.fleet import inventory; print(len(inventory.load(sys.argv[1], cache=False).hosts))"
    bare = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "c"), **env}
    done = subprocess.run([sys.executable, "-c", code, str(folder)], env=bare, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr


def test_a_utf8_locale_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert clean_env()["LC_ALL"] == "C.UTF-8"
    monkeypatch.setenv("LC_ALL", "C")
    assert clean_env()["LC_ALL"] != "C"


def test_a_damaged_cache_entry_is_read_again(folder: Path, cache: Path) -> None:
    inventory.load(str(folder))
    (entry,) = cache.glob("*.json")
    entry.write_text('{"groups": ')
    assert inventory.load(str(folder)).hosts["n1"].vars["base"] == "/srv"
    assert json.loads(entry.read_text())["groups"]
