"""What driver packages need of apt: repositories, pins, holds, repair; against a signed repository on the host itself."""

import pytest

from fixtures.debrepo import Repository

pytestmark = pytest.mark.lab
PLACE = "/srv/bench-repository"
LIST = "/etc/apt/sources.list.d/vendor.list"
SOURCES = "/etc/apt/sources.list.d/vendor.sources"


@pytest.fixture
def repository(clean_host, tmp_path):
    """A repository with bench-driver 1.0 and 1.1, known to nobody on the host yet."""
    made = Repository(tmp_path / "repository", PLACE)
    made.add("bench-driver", "1.0", depends="bench-library (= 1.0)")
    made.add("bench-driver", "1.1", depends="bench-library (= 1.1)")
    made.add("bench-library", "1.0")
    made.add("bench-library", "1.1")
    made.publish(clean_host)
    yield made
    made.close()
    clean_host.sh(
        "rm -f /etc/apt/preferences.d/bigiron* /etc/apt/sources.list.d/vendor.* /etc/apt/sources.list.d/bigiron* /etc/apt/keyrings/*; "
        "names=$(dpkg-query -W -f '${Package} ' 'bench-*' 2>/dev/null); for name in $names; do "
        "rm -f /var/lib/dpkg/info/$name.p*; dpkg --purge --force-all $name; done >/dev/null 2>&1; "
        f"echo bench-driver deinstall | dpkg --set-selections 2>/dev/null; rm -rf {PLACE} /usr/share/keyrings/vendor.asc /run/bench-fixed; apt-get -qq update",
        check=False,
    )


def version(host, name="bench-driver"):
    return host.sh(f"dpkg-query -W -f '${{db:Status-Abbrev}}${{Version}}' {name}", check=False).split()


def pinned(version):
    names = ["bench-driver", "bench-library"]
    return {"base_packages": [f"{name}={version}" for name in names], "base_held_packages": names}


def test_a_repository_is_set_up_with_its_key_and_taken_back(clean_host, repository):
    before = clean_host.tree()
    predicted = clean_host.run("base", check=True, **repository.variables())
    assert predicted.code == 0, predicted
    assert clean_host.tree() == before
    clean_host.converge("base", **repository.variables(), base_packages=["bench-driver"])
    assert version(clean_host) == ["ii", "1.1"]
    assert clean_host.sh("apt-get -q update 2>&1 | grep -c '^[WE]:' || :").strip() == "0"
    clean_host.removes("base")
    assert clean_host.sh("ls -d /etc/apt/*/*bigiron* 2>/dev/null", check=False) == ""


def test_another_key_than_the_planned_one_leaves_nothing_behind(clean_host, repository):
    before = clean_host.sh("ls /etc/apt/*/")
    stranger, fingerprint = repository.new_key("stranger")
    wrong_text = clean_host.run("base", **repository.variables(key=stranger))
    assert f"is {fingerprint}, not {repository.fingerprint}" in wrong_text.failed[-1], wrong_text
    not_signed_by = clean_host.run("base", **repository.variables(key=stranger, fingerprints=[fingerprint]))
    assert "repository bench cannot be read" in not_signed_by.failed[-1], not_signed_by
    assert clean_host.sh("ls /etc/apt/*/") == before


def test_a_key_is_fetched_and_checked_once(clean_host, repository, files):
    files.put("key.asc", repository.key.encode())
    wanted = repository.variables(key="", key_url=f"{files.url}/key.asc")
    clean_host.converge("base", **wanted)
    assert [path for path, _ in files.asked] == ["/key.asc"]


@pytest.mark.parametrize("vendor", ["list", "sources"])
def test_a_repository_that_is_listed_twice_is_disabled_before_apt_runs(clean_host, repository, vendor):
    """B47: with two keys for one repository apt refuses everything."""
    lines = {
        LIST: f"# the vendor's own\ndeb {repository.uri}/ ./\n",
        SOURCES: f"Types: deb\nURIs: {repository.uri}\nSuites: ./\nSigned-By: /usr/share/keyrings/vendor.asc\n",
    }
    clean_host.sh("cat >/usr/share/keyrings/vendor.asc", stdin=repository.key.encode())
    clean_host.converge("base", **repository.variables())
    path = LIST if vendor == "list" else SOURCES
    clean_host.sh(f"cat >{path}", stdin=lines[path].encode())
    assert "Conflicting values set for option Signed-By" in clean_host.sh("apt-get -q update 2>&1", check=False)
    done = clean_host.converge("base", **repository.variables(), **pinned("1.0"))
    assert "Set up repositories and pins" in done.changed
    assert "#bigiron# " in clean_host.sh(f"cat {path}")
    assert clean_host.sh(f"cat /var/lib/bigiron/apt/{path.rsplit('/', 1)[1]}") == lines[path]
    # the vendor's package rewrites its file on an upgrade
    other = SOURCES if vendor == "list" else LIST
    clean_host.sh(f"rm {path}; cat >{other}", stdin=lines[other].encode())
    clean_host.converge("base", **repository.variables(), **pinned("1.0"))
    clean_host.removes("base")
    assert clean_host.sh(f"cat {other}") == lines[other]


def test_a_held_version_stays_whoever_upgrades_and_moves_when_the_plan_does(clean_host, repository):
    """B48."""
    clean_host.converge("base", **repository.variables(), **pinned("1.0"))
    assert version(clean_host) == ["hi", "1.0"]
    clean_host.sh("DEBIAN_FRONTEND=noninteractive apt-get -qq -y dist-upgrade >/dev/null 2>&1")
    assert version(clean_host) == ["hi", "1.0"]
    assert '"^bench-driver$"' in clean_host.sh("apt-config dump Unattended-Upgrade::Package-Blacklist")
    clean_host.converge("base", **repository.variables(), **pinned("1.1"))
    assert version(clean_host) == ["hi", "1.1"]
    clean_host.converge("base", **repository.variables(), **pinned("1.0"))  # and back
    assert version(clean_host) == ["hi", "1.0"]
    clean_host.sh("apt-mark unhold bench-driver")
    again = clean_host.converge("base", **repository.variables(), **pinned("1.0"))
    assert again.changed == ["Install packages"]
    clean_host.removes("base")
    assert version(clean_host) == []


def test_a_hold_before_the_package_is_there_does_not_keep_it_out(clean_host, repository):
    clean_host.converge("base", **repository.variables())
    clean_host.sh("echo bench-driver hold | dpkg --set-selections; apt-mark hold bench-driver")
    clean_host.converge("base", **repository.variables(), **pinned("1.0"))
    assert version(clean_host) == ["hi", "1.0"]
    clean_host.removes("base")


def test_a_package_whose_script_fails_is_named_and_repaired_first_the_next_time(clean_host, repository):
    """B50."""
    log = "/var/lib/dkms/bench/1/build/make.log"
    script = f"#!/bin/sh\ntest -e /run/bench-fixed && exit 0\necho Bad return status, consult {log} >&2\nexit 10\n"
    repository.add("bench-dkms", "1.0", postinst=script)
    repository.publish(clean_host)
    failed = clean_host.run("base", **repository.variables(), base_packages=["bench-dkms"])
    assert "bench-dkms is half configured after apt-get install" in failed.failed[-1], failed
    assert "exit status 10" in failed.failed[-1]
    assert log in failed.failed[-1]
    still = clean_host.run("base", **repository.variables(), base_packages=["bench-dkms", "bench-driver"])
    assert "bench-dkms is half configured after dpkg --configure -a" in still.failed[-1], still
    clean_host.sh("touch /run/bench-fixed")
    clean_host.converge("base", **repository.variables(), base_packages=["bench-dkms", "bench-driver"])
    assert version(clean_host, "bench-dkms") == ["ii", "1.0"]
    clean_host.removes("base")
    assert version(clean_host, "bench-dkms") == []


@pytest.mark.parametrize(
    "names", [["bench-driver-57*"], ["bench-open", "bench-driver-575"]], ids=["branch in the name", "without"]
)
def test_a_pin_keeps_a_branch_and_one_that_matches_nothing_is_refused(clean_host, repository, names):
    """B52: from one branch on the names lose it, so the version is what is pinned."""
    for name in ("bench-driver-575", "bench-open"):
        for release in ("575.10", "575.20", "580.1"):
            repository.add(name, release)
    repository.publish(clean_host)
    wanted = {"name": "branch", "packages": names, "pin": "version 575.*", "priority": 1001}
    clean_host.converge("base", **repository.variables(), base_pins=[wanted])
    policy = clean_host.sh("apt-cache policy bench-driver-575")
    assert "Candidate: 575.20" in policy
    assert "575.20 1001" in policy
    assert ("Candidate: 575.20" in clean_host.sh("apt-cache policy bench-open")) == ("bench-open" in names)
    before = clean_host.sh("cat /etc/apt/preferences.d/*")
    nothing = {**wanted, "pin": "version 590.*"}
    refused = clean_host.run("base", **repository.variables(), base_pins=[nothing], base_packages=["bench-open"])
    assert "matches nothing: apt has 580.1, 575.20, 575.10" in refused.failed[-1], refused
    assert clean_host.sh("cat /etc/apt/preferences.d/*") == before
    assert version(clean_host, "bench-open") == []
    unknown = clean_host.run("base", **repository.variables(), base_pins=[{**wanted, "packages": ["bench-nvidia-*"]}])
    assert "apt knows no such package" in unknown.failed[-1], unknown


def test_dpkg_that_is_busy_while_it_repairs_and_holds_is_waited_for_and_named(clean_host, repository):
    """B49: apt's own timeout covers neither dpkg nor apt-mark."""
    from tests.roles.test_base import HOLD

    repository.add("bench-late", "1.0", postinst="#!/bin/sh\ntest -e /run/bench-fixed\n")
    repository.publish(clean_host)
    clean_host.run("base", **repository.variables(), base_packages=["bench-late"])
    clean_host.sh(f"touch /run/bench-fixed; {HOLD % 6}")
    assert clean_host.run("base", **repository.variables(), base_packages=["bench-late"]).code == 0
    clean_host.sh(HOLD % 3600)
    wanted = {"base_packages": ["bench-late"], "base_held_packages": ["bench-late"], "base_apt_lock_timeout_s": 2}
    failed = clean_host.run("base", **repository.variables(), **wanted)
    clean_host.sh("kill $(cat /run/holder); rm /run/holder")
    assert "held the lock for 2 s: python3 (pid " in failed.failed[-1], failed
    clean_host.removes("base")


def test_the_service_user_joins_the_groups_of_the_nodes_and_one_that_is_missing_fails(clean_host):
    """B51."""
    clean_host.sh("groupadd --system bench-render")
    clean_host.converge("base", base_user_groups=["bench-render", "video"])
    assert {"bench-render", "video"} <= set(clean_host.sh("id -nG llama").split())
    failed = clean_host.run("base", base_user_groups=["no-such-group"])
    assert "no-such-group" in failed.failed[-1], failed
    clean_host.removes("base")
    clean_host.sh("groupdel bench-render")
