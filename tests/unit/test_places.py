"""Which roots, addresses and files a person may name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.hostfacts import machine as box

from bigiron.machine.description import Machine, Nic
from bigiron.paths import PROJECT
from bigiron.plan import places


@pytest.mark.parametrize("path", ["/srv/models", "/models", "/data/llm/models", "/mnt/nvme0", "/opt/models", "/var/lib/models"])
def test_a_folder_of_its_own_may_hold_models(path: str) -> None:
    assert places.check_root(path) is None


@pytest.mark.parametrize(
    "path",
    [
        "/", "/srv", "/opt", "/mnt", "/media", "/var", "/var/lib", "/tmp", "/tmp/models", "/var/tmp/m", "/home", "/home/a/models", "/root", "/root/m",
        "/run/user/0/m", "/run/m", "/etc", "/etc/models", "/usr/share/models", "/usr/local/models", "/boot", "/boot/m", "/dev/shm", "/proc/1",
        "/sys/m", "/var/log/m", "/var/lib/dpkg/m", "/opt/bigiron", "/opt/bigiron/models", "/var/lib/bigiron", "/etc/bigiron/models",
        "srv/models", "", "/srv/models/", "/srv//models", "//srv/models", "/srv/./models", "/srv/../etc",
    ],
)  # fmt: skip
def test_shared_system_hidden_and_unwritten_folders_may_not(path: str) -> None:
    assert places.check_root(path)


def test_the_shortest_form_is_told() -> None:
    assert str(places.check_root("/srv/../etc/")).endswith("which is /etc")


@given(st.lists(st.sampled_from(["srv", "home", "etc", "models", "..", ".", "", "tmp", "var", "lib"]), min_size=1, max_size=6))
def test_no_spelling_reaches_a_place_that_is_refused_by_its_name(parts: list[str]) -> None:
    import posixpath

    path = "/" + "/".join(parts)
    if places.check_root(path) is None:
        assert path == posixpath.normpath(path)
        assert places.check_root(posixpath.normpath(path)) is None


def test_a_link_into_such_a_place_is_refused_by_where_it_leads() -> None:
    assert places.check_resolved("/srv/models", "/srv/models") is None
    assert places.check_resolved("/srv/models", "/data/models") is None
    assert "/home" in str(places.check_resolved("/srv/models", "/home/me/models"))


def test_what_the_unit_hides_is_what_the_roots_know() -> None:
    unit = (PROJECT / "roles/llama_server/templates/llama-server.service.j2").read_text(encoding="utf-8")
    assert "ProtectHome=yes" in unit
    assert "PrivateTmp=yes" in unit


def machine(*addresses: str) -> Machine:
    return box(nics=(Nic("eth0", "", None, addresses),))


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.1.1", "::1", "0.0.0.0", "::", "192.0.2.7", "2001:db8::7", "2001:DB8:0::7", "fe80::7%eth0"]
)
def test_an_address_of_the_host_is_taken(address: str) -> None:
    assert places.check_listen(address) is None
    assert places.check_address(address, machine("192.0.2.7", "2001:db8::7", "fe80::7")) is None


def test_an_address_that_the_host_lacks_is_refused_with_those_it_has() -> None:
    refusal = places.check_address("192.0.2.8", machine("192.0.2.7"))
    assert refusal is not None
    assert "192.0.2.8" in refusal.what
    assert "192.0.2.7" in str(refusal.hint)


@pytest.mark.parametrize(
    "address", ["", "nosuch.example", "999.1.1.1", "1.2.3", "-x", "localhost", "127.0.0.1:80", "[::1]", "224.0.0.1"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    assert places.check_listen(address)


@pytest.mark.parametrize(
    ("entry", "fine"),
    [
        ({"path": "/etc/motd"}, True),
        ({"path": "/etc/sysctl.d/90-lab.conf", "mode": "0640"}, True),
        ({"path": "/etc/systemd/system/llama-server-main.service.d/mine.conf"}, True),
        ({"path": "/etc/passwdx"}, True),
        ({"path": "/etc/passwd"}, False),
        ({"path": "/etc/sudoers.d/x"}, False),
        ({"path": "/etc/ssh/sshd_config"}, False),
        ({"path": "/boot/cmdline"}, False),
        ({"path": "/run/x"}, False),
        ({"path": "/proc/sys/vm/swappiness"}, False),
        ({"path": "/etc/bigiron/credentials/main.key"}, False),
        ({"path": "/opt/bigiron/current"}, False),
        ({"path": "/etc/systemd/system/llama-server-main.service"}, False),
        ({"path": "/etc/../etc/shadow"}, False),
        ({"path": "/etc/motd", "mode": "0646"}, False),
        ({"path": "/etc/motd", "mode": "4755"}, False),
        ({"path": "/etc/motd", "mode": "rw"}, False),
    ],
)
def test_plain_files_stay_out_of_what_is_not_theirs(entry: dict[str, str], fine: bool) -> None:
    assert (places.check_files([entry]) is None) is fine


def folder(mode: str, owner: str = "root", group: str = "root", record: str = "") -> dict[str, Any]:
    return {
        "paths": {
            "/srv/models": {"type": "directory", "owner": owner, "group": group, "mode": mode},
            places.MADE_FOLDERS: {"type": "file", "text": record},
        }
    }


@pytest.mark.parametrize(
    ("observed", "fine"),
    [
        (folder("0755"), True),
        (folder("0700"), False),
        (folder("0750", group="llama"), True),
        (folder("0740", group="llama"), False),
        (folder("0055", owner="llama"), False),
        (folder("0500", owner="llama"), True),
        (folder("0700", record="/srv/models\n"), True),
        ({"paths": {}}, True),
        ({"paths": {"/srv/models": {"error": "Permission denied"}}}, True),
    ],
)
def test_a_folder_that_was_there_must_be_readable_one_that_was_made_is_put_right(observed: dict[str, Any], fine: bool) -> None:
    assert (places.check_folder("/srv/models", observed, "llama") is None) is fine
