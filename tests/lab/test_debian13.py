"""Debian 13 beside Debian 12: a release of its own, made once, whichever Python the host has."""

import pytest
from tests.conftest import inv, on

from bigiron.fleet import survey
from bigiron.lab import apt, lab, seed

pytestmark = [pytest.mark.lab, pytest.mark.timeout(45 * 60)]
FIRST, SECOND, OTHER = "lab09", "lab10", "lab04"
GLIBC = "glibc 2.41"


@pytest.fixture(scope="module")
def provisioned(lab_session, request):
    """The first Debian 13 host, provisioned; without --slow only where its release need not be compiled."""
    made = [one.identity for one in survey.cached_releases()]
    if not request.config.getoption("--slow"):
        if not any((one["libc"], one["source_sha256"]) == (GLIBC, seed.SOURCE.sha256) for one in made):
            pytest.skip("no release for Debian 13 is kept here, and compiling one takes long: ./inv test --slow")
        lab.up(0, lambda _line: None, [FIRST], {FIRST: "trixie"})
        if inv("plan", "--host", FIRST, "--json").document[FIRST]["build_from"] == "here":
            pytest.skip("the release for Debian 13 that is kept here is of other options: ./inv test --slow")
    done = inv("provision", "--host", FIRST, "--json")
    assert done.code == 0, done
    return done


def verdict(host):
    return inv("verify", "--host", host, "--json").document[0]["ok"]


def test_it_ends_with_a_verified_server(provisioned):
    assert verdict(FIRST) is True
    assert inv("ask", "The capital of France is", "--host", FIRST, "--tokens", "8", "--json").document["content"].strip()


def test_the_host_is_debian_13_and_its_release_was_made_for_it(provisioned):
    machine = inv("probe", "--host", FIRST, "--json").document[FIRST]["machine"]
    assert (machine["os"]["version_id"], machine["libc"]) == ("13", GLIBC)
    assert machine["python"].startswith("3.13")
    variables = inv("plan", "--host", FIRST, "--json").document[FIRST]["variables"]
    assert variables["llama_cpp_identity"]["libc"] == GLIBC
    assert {host.name: host.release for host in lab.status().hosts}[FIRST] == "trixie"


def test_a_second_run_changes_nothing(provisioned):
    done = inv("provision", "--host", FIRST)
    assert done.code == 0, done
    assert f"{FIRST}: in sync" in done.out


def test_another_host_of_the_platform_compiles_nothing(provisioned):
    done = inv("provision", "--host", SECOND, "--json")
    assert done.code == 0, done
    assert verdict(SECOND) is True
    assert on(SECOND, "command -v g++ cmake ninja", check=False) == ""
    running = "readlink /opt/bigiron/current"
    assert on(SECOND, running) == on(FIRST, running)


def test_a_host_of_the_other_debian_gets_another_release_or_the_reason(provisioned):
    said = []
    lab.up(0, said.append, [OTHER], {OTHER: "bookworm"})
    plan = inv("plan", "--host", f"{OTHER},{FIRST}", "--json").document
    mine, theirs = (plan[name]["variables"]["llama_cpp_fingerprint"] for name in (OTHER, FIRST))
    assert mine != theirs
    if plan[OTHER]["build_from"] == "here":
        (why,) = [reason["why"] for reason in plan[OTHER]["reasons"] if reason["topic"] == "release"]
        assert f"{theirs} is left out: the release was linked against {GLIBC}" in why


def test_a_host_that_is_another_debian_than_wanted_is_made_anew(provisioned):
    other = "bookworm" if apt.own_release() == "trixie" else "trixie"
    for release in (apt.own_release(), other):
        lab.up(0, lambda _line: None, [OTHER], {OTHER: release})
        assert on(OTHER, ". /etc/os-release; echo $VERSION_CODENAME").strip() == release
        on(OTHER, "touch /root/kept")
        said = []
        lab.up(0, said.append, [OTHER], {OTHER: release})
        assert said == []
    said = []
    lab.up(0, said.append, [OTHER])
    assert f"{OTHER} is made anew: it is Debian {other}" in said[0]
    assert on(OTHER, "ls /root") == ""
