"""The observer against planted trees: every kind of thing it reports, and when something is missing, broken or secret."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from bigiron.onhost.kinds.compiler import compiler_candidate
from bigiron.onhost.reader import secret_hmac
from bigiron.onhost.system import Output
from fixtures.hostroot import NONCE, Programs, look, plant

KEY = "/etc/bigiron/credentials/main.key"


def test_a_virgin_host_holds_nothing(tmp_path):
    plant(tmp_path, {"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n"})
    watch = {
        "user": ["llama"], "file": ["/etc/motd"], "directory": ["/etc/bigiron"], "secret": [KEY], "link": ["/opt/bigiron/current"],
        "release": ["/opt/bigiron"], "shard": {"org/repo/rev": "/srv/models"}, "package": ["g++"], "compiler": ["g++"],
        "service": {"a.service": {"host": "127.0.0.1", "port": 1, "depends_on": []}}, "port": [1],
    }  # fmt: skip
    found = look(tmp_path, **watch)
    assert {name: entry for name, entry in found.items() if entry} == ({"uid": os.geteuid()} if os.geteuid() else {})


def test_paths_hold_what_a_comparison_needs(tmp_path):
    plant(tmp_path, {"etc/main.env": "A=1\n", "etc/blob": b"\0\1", "opt/bigiron/x": ""})
    (tmp_path / "etc/main.env").chmod(0o644)
    (tmp_path / "opt/bigiron/current").symlink_to("releases/abc")
    links = ["/opt/bigiron/current"]
    paths = look(tmp_path, file=["/etc/main.env", "/etc/blob"], directory=["/opt/bigiron", "/srv"], link=links)["paths"]
    env = paths["/etc/main.env"]
    assert (env["type"], env["mode"], env["size"], env["text"]) == ("file", "0644", 4, "A=1\n")
    assert env["sha256"] == hashlib.sha256(b"A=1\n").hexdigest()
    assert env["mtime"] == (tmp_path / "etc/main.env").stat().st_mtime
    assert "text" not in paths["/etc/blob"]
    assert paths["/opt/bigiron"]["type"] == "directory"
    assert (paths["/opt/bigiron/current"]["type"], paths["/opt/bigiron/current"]["target"]) == ("link", "releases/abc")
    assert "/srv" not in paths


def test_owner_names_come_from_the_host(tmp_path):
    accounts = {"etc/passwd": f"ann:x:{os.getuid()}:5:::/bin/sh\n", "etc/group": f"labs:x:{os.getgid()}:\n", "etc/motd": ""}
    entry = look(plant(tmp_path, accounts), file=["/etc/motd"])["paths"]["/etc/motd"]
    assert (entry["owner"], entry["group"]) == ("ann", "labs")


def test_big_text_and_other_encodings_have_a_hash_only(tmp_path):
    plant(tmp_path, {"etc/big": "x" * 65536, "etc/fits": "x" * 65535, "etc/latin": b"gr\xfc\xdfe\n"})
    paths = look(tmp_path, file=["/etc/big", "/etc/fits", "/etc/latin"])["paths"]
    assert [name for name in paths if "text" in paths[name]] == ["/etc/fits"]
    assert all(len(entry["sha256"]) == 64 for entry in paths.values())


def test_a_secret_is_never_shown_but_can_be_compared(tmp_path):
    plant(tmp_path, {KEY[1:]: "topsecret\n"})
    found = look(tmp_path, secret=[KEY])
    text = json.dumps(found)
    assert "topsecret" not in text
    assert hashlib.sha256(b"topsecret\n").hexdigest() not in text
    key = found["paths"][KEY]
    assert key["hmac"] == secret_hmac(NONCE, b"topsecret")
    assert key["hmac"] != look(tmp_path, secret=[KEY], nonce="other")["paths"][KEY]["hmac"]
    assert key["size"] == 10
    assert not {"text", "sha256"} & set(key)
    assert "hmac" not in look(tmp_path, secret=[KEY], nonce="")["paths"][KEY]


def test_a_private_file_of_the_person_shows_no_text(tmp_path):
    plant(tmp_path, {"etc/motd": "password=1"})
    (tmp_path / "etc/motd").chmod(0o600)
    entry = look(tmp_path, file=["/etc/motd"])["paths"]["/etc/motd"]
    assert "text" not in entry
    assert len(entry["sha256"]) == 64


def test_a_link_is_recorded_and_not_followed(tmp_path):
    plant(tmp_path, {"elsewhere/secret": "x", "etc/bigiron/a": "x"})
    (tmp_path / "etc/bigiron/out").symlink_to(tmp_path / "elsewhere/secret")
    for kind in ("file", "directory", "secret"):
        entry = look(tmp_path, **{kind: ["/etc/bigiron/out"]})["paths"]["/etc/bigiron/out"]
        assert entry["type"] == "link"
        assert not {"text", "sha256", "hmac"} & set(entry)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_is_an_error_not_absence_as_a_user(tmp_path):
    plant(tmp_path, {KEY[1:]: "x", "etc/closed/x": ""})
    (tmp_path / KEY[1:]).chmod(0)
    (tmp_path / "etc/closed").chmod(0)
    paths = look(tmp_path, secret=[KEY], file=["/etc/closed/x"])["paths"]
    (tmp_path / "etc/closed").chmod(0o700)
    assert paths[KEY]["error"] == "Permission denied"
    assert paths["/etc/closed/x"]["error"] == "Permission denied"


def test_unreadable_is_an_error_not_absence(tmp_path, monkeypatch):
    plant(tmp_path, {KEY[1:]: "x", "etc/plain": "x"})

    def refuse(_self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    paths = look(tmp_path, secret=[KEY], file=["/etc/plain"])["paths"]
    for name in (KEY, "/etc/plain"):
        assert paths[name]["error"] == "Permission denied"
        assert paths[name]["type"] == "file"


def test_users_with_supplementary_groups(tmp_path):
    plant(
        tmp_path,
        {
            "etc/passwd": "bad line\nllama:x:999:998::/var/lib/bigiron:/usr/sbin/nologin\n",
            "etc/group": "llama:x:998:\nrender:x:105:llama,bob\nvideo:x:44:llama\n",
        },
    )
    found = look(tmp_path, user=["llama", "nobody-here"])
    assert found["users"]["llama"] == {
        "uid": 999,
        "gid": 998,
        "group": "llama",
        "groups": ["render", "video"],
        "home": "/var/lib/bigiron",
        "shell": "/usr/sbin/nologin",
    }
    assert set(found["users"]) == {"llama"}


STATUS = """Package: g++
Status: install ok installed
Version: 4:12.2.0-3

Package: removed
Status: deinstall ok config-files
Version: 1

Package: broken
Status: install ok half-configured
Version: 1

Package: libx
Status: deinstall ok config-files
Architecture: i386
Version: 0.9

Package: libx
Status: hold ok installed
Architecture: amd64
Version: 1.0

Package: mawk
Status: install ok installed
Provides: awk, other-awk (= 2)
Version: 1.3.4
"""


def test_packages(tmp_path):
    plant(tmp_path, {"var/lib/dpkg/status": STATUS})
    asked = ["g++", "removed", "broken", "libx", "libx:amd64", "awk", "wk", "other", "g"]
    found = look(tmp_path, package=asked)["packages"]
    held = found.pop("*held")
    assert found == {"g++": "4:12.2.0-3", "libx": "1.0", "libx:amd64": "1.0", "awk": "1.3.4"}
    assert held == ["libx", "libx:amd64"]
    assert "*held" not in look(tmp_path, package=["g++"])["packages"]


POLICY = """build-essential:
  Installed: (none)
  Candidate: 12.9
  Version table:
     12.9 500
        500 mirror bookworm/main amd64 Packages
g++:
  Installed: (none)
  Candidate: 4:12.2.0-3
  Version table:
g++-12:
  Installed: (none)
  Candidate: 12.2.0-14+deb12u1
g++-13:
  Installed: (none)
  Candidate: (none)
"""


def test_compiler_that_apt_would_install(tmp_path):
    plant(tmp_path, {"usr/bin/apt-cache": ""})
    programs = Programs(apt_cache=Output(0, POLICY, ""))
    found = look(tmp_path, programs, compiler=["g++"])["compilers"]
    assert programs.calls == [["apt-cache", "policy", "g++"], ["apt-cache", "policy", "g++-12"]]
    assert found == {"g++": {"candidate": "g++ 12.2.0"}}


@pytest.mark.parametrize("offered", [{}, {"g++": "4:12.2.0-3"}, {"g++": "4:13.2.0-7", "g++-12": "12.2.0-14"}, {"g++": "x"}])
def test_compiler_candidate_is_unknown_without_its_package(offered):
    assert compiler_candidate(offered) is None


@pytest.mark.parametrize(
    ("answer", "facts"),
    [
        (Output(0, "12.2.0\n", ""), {"version": "g++ 12.2.0"}),
        (Output(1, "", "clang: error: unsupported option"), {"error": "clang: error: unsupported option"}),
        (Output(0, "huh\n", ""), {"error": "g++ -dumpfullversion gave no version"}),
    ],
)
def test_installed_compiler(tmp_path, answer, facts):
    programs = Programs(gxx=answer)
    found = look(plant(tmp_path, {"usr/bin/g++": "", "usr/bin/apt-cache": ""}), programs, compiler=["g++"])
    assert (found["compilers"], len(programs.calls)) == ({"g++": facts}, 1)
