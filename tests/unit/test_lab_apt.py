"""Which of the controller's apt sources and settings a fresh lab host gets."""

from __future__ import annotations

import pytest

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
