"""The observer against planted trees: every kind of thing it reports, and when something is missing, broken or secret."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from bigiron.onhost import software
from bigiron.onhost.footprint import secret_hmac
from bigiron.onhost.system import Output, Tree
from fixtures.hostroot import Programs, look, plant

UNITS = "etc/systemd/system"


def test_a_virgin_host_has_no_footprint(tmp_path):
    found = look(plant(tmp_path, {"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n"}))
    for key in ("users", "groups", "paths", "releases", "models", "services", "ports", "packages"):
        assert found[key] == {}, key
    assert (found["compiler"], found["compiler_candidate"], found["apt_lists"]) == (None, None, False)


def test_paths_hold_what_a_diff_needs(tmp_path):
    plant(
        tmp_path, {"etc/bigiron/main.env": "A=1\n", "etc/bigiron/sub/blob": b"\0\1", "etc/motd": "hello\n", "opt/bigiron/x": ""}
    )
    (tmp_path / "etc/bigiron/main.env").chmod(0o640)
    (tmp_path / "opt/bigiron/current").symlink_to("releases/abc")
    paths = look(tmp_path)["paths"]
    env = paths["/etc/bigiron/main.env"]
    assert (env["type"], env["mode"], env["size"], env["text"]) == ("file", "0640", 4, "A=1\n")
    assert env["sha256"] == hashlib.sha256(b"A=1\n").hexdigest()
    assert env["mtime"] == (tmp_path / "etc/bigiron/main.env").stat().st_mtime
    assert "text" not in paths["/etc/bigiron/sub/blob"]
    assert paths["/etc/bigiron/sub"]["type"] == "directory"
    assert paths["/etc/motd"]["text"] == "hello\n"
    assert (paths["/opt/bigiron/current"]["type"], paths["/opt/bigiron/current"]["target"]) == ("link", "releases/abc")
    assert "/srv/models" not in paths


def test_owner_names_come_from_the_host(tmp_path):
    plant(
        tmp_path, {"etc/passwd": f"ann:x:{os.getuid()}:5:::/bin/sh\n", "etc/group": f"labs:x:{os.getgid()}:\n", "etc/motd": ""}
    )
    entry = look(tmp_path)["paths"]["/etc/motd"]
    assert (entry["owner"], entry["group"]) == ("ann", "labs")


def test_big_text_and_other_encodings_have_a_hash_only(tmp_path):
    plant(tmp_path, {"etc/bigiron/big": "x" * 65536, "etc/bigiron/fits": "x" * 65535, "etc/bigiron/latin": b"gr\xfc\xdfe\n"})
    paths = look(tmp_path)["paths"]
    assert [name for name in ("big", "fits", "latin") if "text" in paths[f"/etc/bigiron/{name}"]] == ["fits"]
    assert all(len(paths[f"/etc/bigiron/{name}"]["sha256"]) == 64 for name in ("big", "fits", "latin"))


def test_a_secret_is_never_shown_but_can_be_compared(tmp_path):
    plant(tmp_path, {"etc/bigiron/credentials/main.key": "topsecret\n", "etc/bigiron/credentials/deep/er.key": "topsecret"})
    found = look(tmp_path, files=["/etc/bigiron/credentials/main.key"])
    text = json.dumps(found)
    assert "topsecret" not in text
    assert hashlib.sha256(b"topsecret\n").hexdigest() not in text
    key = found["paths"]["/etc/bigiron/credentials/main.key"]
    assert key["hmac"] == secret_hmac("ab12", b"topsecret") == found["paths"]["/etc/bigiron/credentials/deep/er.key"]["hmac"]
    assert key["hmac"] != look(tmp_path, secret_nonce="other")["paths"]["/etc/bigiron/credentials/main.key"]["hmac"]
    assert key["size"] == 10
    assert not {"text", "sha256"} & set(key)
    assert "hmac" not in look(tmp_path, secret_nonce="")["paths"]["/etc/bigiron/credentials/main.key"]


def test_a_private_file_of_the_person_shows_no_text(tmp_path):
    plant(tmp_path, {"etc/motd": "password=1"})
    (tmp_path / "etc/motd").chmod(0o600)
    entry = look(tmp_path)["paths"]["/etc/motd"]
    assert "text" not in entry
    assert len(entry["sha256"]) == 64


def test_links_are_not_followed_out_of_a_root(tmp_path):
    plant(tmp_path, {"elsewhere/secret": "x", "etc/bigiron/a": "x"})
    (tmp_path / "etc/bigiron/out").symlink_to(tmp_path / "elsewhere")
    paths = look(tmp_path)["paths"]
    assert paths["/etc/bigiron/out"]["type"] == "link"
    assert not [name for name in paths if "secret" in name]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_is_an_error_not_absence_as_a_user(tmp_path):
    plant(tmp_path, {"etc/bigiron/credentials/main.key": "x", "etc/bigiron/closed/x": ""})
    (tmp_path / "etc/bigiron/credentials/main.key").chmod(0)
    (tmp_path / "etc/bigiron/closed").chmod(0)
    paths = look(tmp_path)["paths"]
    (tmp_path / "etc/bigiron/closed").chmod(0o700)
    assert paths["/etc/bigiron/credentials/main.key"]["error"] == "Permission denied"
    assert paths["/etc/bigiron/closed"]["error"] == "Permission denied"


def test_unreadable_is_an_error_not_absence(tmp_path, monkeypatch):
    plant(tmp_path, {"etc/bigiron/credentials/main.key": "x", "etc/bigiron/plain": "x"})
    real = Path.read_bytes

    def refuse(self):
        if self.name in ("main.key", "plain"):
            raise PermissionError(13, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    paths = look(tmp_path)["paths"]
    for name in ("/etc/bigiron/credentials/main.key", "/etc/bigiron/plain"):
        assert paths[name]["error"] == "Permission denied"
        assert paths[name]["type"] == "file"


def test_units_and_all_their_drop_ins(tmp_path):
    names = ["llama-server-main.service", "llama-server-main.service.d/10-mine.conf", "llama-server-.service.d/all.conf"]
    plant(tmp_path, {f"{UNITS}/{name}": "[Service]\n" for name in [*names, "other.service", "other.service.d/x.conf"]})
    paths = look(tmp_path)["paths"]
    assert {name for name, entry in paths.items() if entry["type"] == "file"} == {f"/{UNITS}/{name}" for name in names}


SHOW = """Id=llama-server-main.service
LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled
NeedDaemonReload=yes
MainPID=12
Result=success
NRestarts=3
ExecMainStatus=0
DropInPaths=/a/b.conf /c/d.conf
StartLimitBurst=5
StartLimitIntervalUSec=10min

Id=llama-server-old.service
LoadState=not-found
ActiveState=inactive
SubState=dead

Id=llama-server-gone.service
LoadState=not-found
ActiveState=active
SubState=running
MainPID=13
"""


def test_services_from_one_call(tmp_path):
    plant(tmp_path, {f"{UNITS}/llama-server-main.service": "", "run/systemd/system/x": "", "proc/stat": "btime 1000\n"})
    plant(tmp_path, {"proc/12/stat": f"12 (a (b) c) {' '.join(['S', *['0'] * 18, '500'])} 0 0\n", "proc/13/comm": "x"})
    (tmp_path / "proc/12/exe").symlink_to("/opt/bigiron/releases/abc/bin/llama-server")
    programs = Programs(systemctl=Output(0, SHOW, ""))
    services = look(tmp_path, programs, health={"llama-server-main.service": {"host": "127.0.0.1", "port": 1}})["services"]
    assert len(programs.calls) == 1
    assert programs.calls[0][-2:] == ["llama-server-main.service", "llama-server-*.service"]
    assert set(services) == {"llama-server-main.service", "llama-server-gone.service"}
    main = services["llama-server-main.service"]
    assert (main["MainPID"], main["NRestarts"], main["NeedDaemonReload"], main["StartLimitBurst"]) == (12, 3, True, 5)
    assert main["DropInPaths"] == ["/a/b.conf", "/c/d.conf"]
    assert main["exe"] == "/opt/bigiron/releases/abc/bin/llama-server"
    assert main["started"] == pytest.approx(1000 + 501 / os.sysconf("SC_CLK_TCK"))
    assert (main["health"], main["listening"], main["health_detail"]) == (None, False, "nobody listens on port 1")


def test_systemd_that_does_not_answer_is_an_error(tmp_path):
    plant(tmp_path, {f"{UNITS}/llama-server-main.service": "", "run/systemd/system/x": ""})
    programs = Programs(systemctl=Output(1, "", "Failed to connect to bus: Host is down"))
    assert look(tmp_path, programs)["services"] == {
        "llama-server-main.service": {"error": "Failed to connect to bus: Host is down"}
    }


def test_users_with_supplementary_groups(tmp_path):
    plant(
        tmp_path,
        {
            "etc/passwd": "bad line\nllama:x:999:998::/var/lib/bigiron:/usr/sbin/nologin\n",
            "etc/group": "llama:x:998:\nrender:x:105:llama,bob\nvideo:x:44:llama\n",
        },
    )
    found = look(tmp_path, groups=["render", "nope"])
    assert found["users"]["llama"] == {
        "uid": 999,
        "gid": 998,
        "group": "llama",
        "groups": ["render", "video"],
        "home": "/var/lib/bigiron",
        "shell": "/usr/sbin/nologin",
    }
    assert found["groups"] == {"llama": 998, "render": 105}


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
    tree = Tree(str(plant(tmp_path, {"var/lib/dpkg/status": STATUS})))
    asked = ["g++", "removed", "broken", "libx", "libx:amd64", "awk", "wk", "other", "g"]
    assert software.packages(tree, asked) == {"g++": "4:12.2.0-3", "libx": "1.0", "libx:amd64": "1.0", "awk": "1.3.4"}
    assert software.packages(tree) == {"g++": "4:12.2.0-3", "libx": "1.0", "mawk": "1.3.4"}


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
    plant(tmp_path, {"usr/bin/apt-cache": "", "var/lib/apt/lists/deb_bookworm_main_Packages.lz4": ""})
    programs = Programs(apt_cache=Output(0, POLICY, ""))
    found = look(tmp_path, programs)
    assert [call[:3] for call in programs.calls] == [
        ["apt-cache", "policy", "build-essential"],
        ["apt-cache", "policy", "g++-12"],
    ]
    assert found["package_candidates"] == {"build-essential": "12.9", "g++": "4:12.2.0-3", "g++-12": "12.2.0-14+deb12u1"}
    assert (found["compiler"], found["compiler_candidate"], found["apt_lists"]) == (None, "g++ 12.2.0", True)


@pytest.mark.parametrize("offered", [{}, {"g++": "4:12.2.0-3"}, {"g++": "4:13.2.0-7", "g++-12": "12.2.0-14"}, {"g++": "x"}])
def test_compiler_candidate_is_unknown_without_its_package(offered):
    assert software.compiler_candidate(offered) is None


@pytest.mark.parametrize(
    ("answer", "compiler", "problem"),
    [
        (Output(0, "12.2.0\n", ""), "g++ 12.2.0", None),
        (Output(1, "", "clang: error: unsupported option"), None, "clang: error: unsupported option"),
        (Output(0, "huh\n", ""), None, "g++ -dumpfullversion gave no version"),
    ],
)
def test_installed_compiler(tmp_path, answer, compiler, problem):
    programs = Programs(gxx=answer)
    found = look(plant(tmp_path, {"usr/bin/g++": "", "usr/bin/apt-cache": ""}), programs)
    assert (found["compiler"], found.get("compiler_error"), len(programs.calls)) == (compiler, problem, 1)
