"""The inventory as Ansible reads it, what is kept of it, and what a person is told when it is wrong."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Read:
    """HOSTS, read once by Ansible: its folder, its cache, and what came of it."""

    folder: Path
    cache: Path
    inventory: inventory.Inventory


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """For tests that only look; `kept` serves its cache, so that none of them starts Ansible again."""
    base = tmp_path_factory.mktemp("read")
    (base / "inv" / "group_vars").mkdir(parents=True)
    (base / "inv" / "hosts.yml").write_text(HOSTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(base / "cache"))
        for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
            patch.delenv(name)
        return Read(base / "inv", base / "cache" / "bigiron" / "inventory", inventory.load(str(base / "inv")))


@pytest.fixture
def kept(read: Read, cache: Path) -> Path:
    """The cache of this test holds what `read` left in its own; the entry."""
    shutil.copytree(read.cache, cache, copy_function=shutil.copy2)
    (entry,) = cache.glob("*.json")
    return entry


def count_listings(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    calls: list[object] = []
    real = sources._ansible_inventory

    def counting(paths: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        calls.append(paths)
        return real(paths)

    monkeypatch.setattr(sources, "_ansible_inventory", counting)
    return calls


def encrypted(text: str, password: str, label: str | None = None) -> str:
    from ansible.parsing.vault import VaultLib, VaultSecret

    return str(VaultLib([(label, VaultSecret(password.encode()))]).encrypt(text, vault_id=label).decode())


def test_values_groups_and_what_is_kept(read: Read, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_listings(monkeypatch)
    again = inventory.load(str(read.folder))
    for loaded in (read.inventory, again):
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
    assert calls == []
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "sentinel" not in kept.read_text()
    assert host.vars["model_token"] == "hf_sentinel_token"
    assert host.vars["url"] == "http://user:hf_sentinel_token@mirror"
    assert again.hosts["n2"].vars["services"] == [{"api_key": "sentinel_api_key"}]
    assert "sentinel" not in kept.read_text()
    assert "sentinel" not in repr(host)
    assert len(calls) == 1


def test_a_changed_file_is_read_again(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "hosts.yml").write_text("all: {hosts: {n1: {}}}\n")
    calls = count_listings(monkeypatch)
    for text, value, listings in (("/srv", "/srv", 1), ("/srv", "/srv", 1), ("/data", "/data", 2)):
        (folder / "group_vars" / "all.yml").write_text(f"base: {text}\n")
        assert inventory.load(str(folder)).hosts["n1"].vars["base"] == value
        assert len(calls) == listings


def test_what_moves_is_never_kept_and_what_is_broken_fails_only_when_asked_for(read: Read) -> None:
    host = read.inventory.hosts["n1"]
    pending = host.vars.pending()
    assert (pending["now_ish"], pending["later"]) == ("changing", "changing")
    assert str(host.vars["later"]).startswith("20")
    with pytest.raises(BigironError, match=r"broken cannot be resolved: .*nowhere") as caught:
        host.vars["broken"]
    assert caught.value.where == "n1"


def test_a_hit_imports_neither_ansible_nor_paramiko(read: Read, kept: Path) -> None:
    heavy = ("ansible", "paramiko", "fabric", "yaml", "jinja2")
    code = f"""
import sys
from bigiron.fleet import inventory
inventory.load(sys.argv[1]).hosts["n1"].connection
print([name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code, str(read.folder)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def script(path: Path) -> None:
    path.write_text('#!/bin/sh\necho \'{"dynamic": {"hosts": ["s1"]}, "_meta": {"hostvars": {"s1": {"x": 1}}}}\'\n')
    path.chmod(0o755)


def plugin(path: Path) -> None:
    path.write_text("plugin: ansible.builtin.constructed\nstrict: false\ngroups: {gpu: inventory_hostname == 'n1'}\n")


def vault_file(path: Path) -> None:
    path.write_text(encrypted("vaulted: 1\n", "secret"))


@pytest.mark.parametrize(
    ("name", "write", "cacheable"),
    [("z.sh", script, False), ("z.yml", plugin, False), ("group_vars/all.yml", vault_file, False), ("z.ini", Path.touch, True)],
)
def test_what_content_does_not_decide_is_told(folder: Path, name: str, write: Callable[[Path], None], cacheable: bool) -> None:
    write(folder / name)
    assert sources.scan((str(folder),)).cacheable == cacheable


def test_what_content_does_not_decide_is_not_kept(folder: Path, cache: Path) -> None:
    (folder / "hosts.yml").write_text("all: {hosts: {n1: {}}}\n")
    script(folder / "z.sh")
    plugin(folder / "z.yml")
    loaded = inventory.load(str(folder))
    assert (loaded.groups["dynamic"], loaded.groups["gpu"]) == (("s1",), ("n1",))
    assert not list(cache.glob("*.json"))


def test_a_vault_file_without_its_password_is_left_out_and_named(folder: Path, cache: Path) -> None:
    (folder / "hosts.yml").write_text("all: {hosts: {n1: {}}}\n")
    vault_file(folder / "group_vars" / "all.yml")
    loaded = inventory.load(str(folder))
    assert "vaulted" not in loaded.hosts["n1"].vars
    assert "all.yml: cannot be decrypted" in loaded.warnings[0]
    assert not list(cache.glob("*.json"))


def test_vault_is_opened_on_demand_and_says_which_value(
    folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = folder / "group_vars" / "gpu.yml"
    variables.write_text("derived: 'x{{ llama_server_api_key }}'\n")
    for label, name, text in (("one", "ansible_become_password", "sudo"), ("two", "llama_server_api_key", "key")):
        (tmp_path / label).write_text(f"{label}\n")
        lines = encrypted(f"sentinel-{text}", label, label).splitlines()
        with variables.open("a") as out:
            print(f"{name}: !vault |", *lines, sep="\n  ", file=out)
    inventory.load(str(folder))
    calls = count_listings(monkeypatch)
    host = inventory.load(str(folder)).hosts["n1"]
    assert host.vars["model_root"] == "/srv/models"
    connection = host.connection  # reading the connection needs no secret
    assert connection.become_password is not None
    with pytest.raises(BigironError) as caught:
        connection.become_password()
    assert f"ansible_become_password in {variables}:" in str(caught.value)
    assert "vault id 'one'" in str(caught.value.hint)
    monkeypatch.setenv("ANSIBLE_VAULT_IDENTITY_LIST", f"one@{tmp_path}/one")
    assert host.secret("ansible_become_password") == "sentinel-sudo"
    with pytest.raises(BigironError, match="llama_server_api_key"):
        host.secret("llama_server_api_key")
    monkeypatch.setenv("ANSIBLE_VAULT_IDENTITY_LIST", f"one@{tmp_path}/one,two@{tmp_path}/two")
    assert host.secret("llama_server_api_key") == "sentinel-key"
    assert calls == []  # vault text is in the cache: no second reading of the sources
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


def test_unknown_names_list_near_ones(read: Read) -> None:
    loaded = read.inventory
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
    (folder / "hosts.yml").write_text("gpu: {hosts: {n1: , n2: }}\n")
    (tmp_path / "more.ini").write_text("[gpu]\nn3 ansible_port=2222\n")
    loaded = inventory.load(f"{folder},{tmp_path}/more.ini")
    assert set(loaded.groups["gpu"]) == {"n1", "n2", "n3"}
    assert loaded.hosts["n3"].connection.port == 2222
    assert list(inventory.load("a.example,b.example").hosts) == ["a.example", "b.example"]


def test_unspoken_connection_is_a_usage_error(read: Read) -> None:
    with pytest.raises(UsageError, match="winrm"):
        _ = read.inventory.hosts["c1"].connection


LOCALES = [{"LC_ALL": "C"}, {"LANG": "xx_YY.UTF-8", "LC_ALL": "xx_YY.UTF-8"}, {"LC_ALL": "POSIX"}, {}]


@pytest.mark.parametrize("env", LOCALES)
def test_children_get_a_locale_that_works(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("LC_") or name == "LANG"]:
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    code = "import locale; locale.setlocale(locale.LC_ALL, ''); print(locale.nl_langinfo(locale.CODESET))"
    done = subprocess.run([sys.executable, "-c", code], env=clean_env(), capture_output=True, text=True, check=True)
    assert done.stdout == "UTF-8\n"


def test_a_locale_that_is_not_installed_keeps_nothing_from_working(folder: Path, tmp_path: Path) -> None:
    code = "import sys; from bigiron.fleet import inventory; print(len(inventory.load(sys.argv[1], cache=False).hosts))"
    bare = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "c"), **LOCALES[1]}
    done = subprocess.run([sys.executable, "-c", code, str(folder)], env=bare, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr


def test_a_utf8_locale_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert clean_env()["LC_ALL"] == "C.UTF-8"
    monkeypatch.setenv("LC_ALL", "C")
    assert clean_env()["LC_ALL"] != "C"


def test_a_damaged_cache_entry_is_read_again(read: Read, kept: Path) -> None:
    kept.write_text('{"groups": ')
    assert inventory.load(str(read.folder)).hosts["n1"].vars["base"] == "/srv"
    assert json.loads(kept.read_text())["groups"]
