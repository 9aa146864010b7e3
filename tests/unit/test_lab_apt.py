"""Which of the controller's apt sources and settings a fresh lab host gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from bigiron.errors import UsageError
from bigiron.lab import apt

DEBIAN = """Types: deb
# a note with an address
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def test_a_debian_stanza_is_kept_without_its_comments() -> None:
    assert apt.sources_of("bookworm", [("debian.sources", DEBIAN)]) == DEBIAN.replace("# a note with an address\n", "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bookworm bookworm-updates", "bookworm trixie"),
        ("/usr/share/keyrings/debian-archive-keyring.gpg", "/etc/apt/keyrings/docker.gpg"),
        ("http://mirror.example/debian", "file:/srv/packages"),
        ("Types: deb", "Types: deb-src"),
        ("Components: main", "Components: main\nEnabled: no"),
    ],
)
def test_entries_that_a_container_cannot_use_are_left_out(old: str, new: str) -> None:
    assert apt.sources_of("bookworm", [("x.sources", DEBIAN.replace(old, new))]) == ""


def test_one_line_entries_become_stanzas_and_foreign_ones_go() -> None:
    text = (
        "# deb http://mirror.example/debian bookworm contrib\n"
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian bookworm main contrib\n"
        "deb http://mirror.example/debian-security bookworm-security main\n"
        "deb [signed-by=/etc/apt/keyrings/node.gpg] https://node.example nodistro main\n"
        "deb-src http://mirror.example/debian bookworm main\n"
    )
    assert apt.sources_of("bookworm", [("sources.list", text)]) == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main contrib\n"
        "Signed-by: /usr/share/keyrings/debian-archive-keyring.gpg\n\n"
        "Types: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\nComponents: main\n"
    )


def test_no_source_of_the_release_means_the_default_mirror() -> None:
    assert apt.sources_of("bookworm", []) == ""


def test_settings_that_matter_behind_the_bridge_are_carried_and_paths_are_not() -> None:
    dump = (
        'Acquire::Check-Valid-Until "false";\nAcquire::http::Proxy "http://proxy.example:3128";\nAcquire::Languages:: "none";\n'
        'Acquire::cdrom::mount "/media/cdrom/";\nAcquire::https::Proxy "";\n'
        'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";\nAcquire::IndexTargets::deb::DEP-11::MetaKey "x";\n'
    )
    assert apt.settings_of(dump, {}) == (
        'Acquire::Check-Valid-Until "false";\nAcquire::http::Proxy "http://proxy.example:3128";\nAcquire::Languages:: "none";\n'
        'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";\n'
    )


def test_a_proxy_from_the_environment_counts_unless_apt_has_its_own() -> None:
    environment = {"http_proxy": "http://env.example:1"}
    assert apt.settings_of("", environment) == 'Acquire::http::Proxy "http://env.example:1";\n'
    own = 'Acquire::http::Proxy "http://apt.example:2";\n'
    assert apt.settings_of(own, environment) == own


def test_sources_of_another_release_keep_addresses_and_keys() -> None:
    text = DEBIAN.replace("# a note with an address\n", "")
    assert apt.derived(text, "bookworm", "trixie") == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie trixie-updates\nComponents: main\n"
        "Signed-by: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    security = "Types: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\nComponents: main\n"
    assert "\nSuites: trixie-security\n" in apt.derived(security, "bookworm", "trixie")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("debian-archive-keyring.gpg", "debian-archive-bookworm-stable.gpg"),
        ("mirror.example/debian", "mirror.example/bookworm"),
        ("bookworm-updates", "bookworm/updates"),
    ],
)
def test_a_stanza_that_names_its_release_is_not_made_to_fit_another(old: str, new: str) -> None:
    other = "Types: deb\nURIs: http://other.example/debian\nSuites: bookworm\nComponents: main\n"
    found = apt.derived(f"{DEBIAN.replace(old, new)}\n{other}", "bookworm", "trixie")
    assert found == other.replace("bookworm", "trixie")
    assert apt.derived(DEBIAN.replace(old, new), "bookworm", "trixie") == ""


def test_sources_that_the_controller_has_of_a_release_are_taken_before_derived_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(apt, "APT", tmp_path)
    monkeypatch.setattr(apt, "debian_release", lambda: "bookworm")
    (tmp_path / "sources.list").write_text("deb http://mirror.example/debian bookworm main\n")
    assert "Suites: trixie\n" in apt.controller_sources("trixie")
    assert "mirror.example" in apt.controller_sources("trixie")
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/next.list").write_text("deb http://next.example/debian trixie main\n")
    assert "mirror.example" not in apt.controller_sources("trixie")
    monkeypatch.setattr(apt, "debian_release", lambda: None)
    (tmp_path / "sources.list.d/next.list").unlink()
    assert apt.controller_sources("trixie") == "", "another system's archive has no Debian"


@pytest.mark.parametrize(
    ("wanted", "near"), [("trixi", "trixie"), ("Bookworm", "bookworm"), (13, "trixie"), ("12", "bookworm"), ("noble", "one of")]
)
def test_a_release_that_the_lab_cannot_make_is_wrong_usage_with_the_near_ones(wanted: object, near: str) -> None:
    with pytest.raises(UsageError, match="lab_release") as caught:
        apt.check_release(wanted, "lab09")
    assert caught.value.where == "lab09"
    assert near in str(caught.value.hint)


def test_the_controllers_own_release_is_always_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "debian_release", lambda: "forky")
    assert [apt.check_release(name, "lab01") for name in ("forky", "trixie")] == ["forky", "trixie"]
