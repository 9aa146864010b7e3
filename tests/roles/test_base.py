"""Role base on a fresh machine."""

import json

import pytest

pytestmark = pytest.mark.lab

WANTED = {
    "base_packages": ["ninja-build"],
    "base_directories": [{"path": "/srv/models", "owner": "llama", "group": "llama", "mode": "0750"}],
    "base_files": [{"path": "/etc/bigiron/deep/notes.txt", "content": "hello\n", "mode": "0640"}],
}


def test_check_predicts_and_touches_nothing_then_it_converges(clean_host):
    before = clean_host.tree()
    predicted = clean_host.run("base", check=True, **WANTED)
    assert predicted.code == 0, predicted
    assert "Install packages" in predicted.changed
    assert "User | Make the user" in predicted.changed
    assert clean_host.tree() == before

    done = clean_host.converge("base", **WANTED)
    # the record of packages needs the home folder, so a real run has made it by the time its task comes
    assert set(predicted.changed) - {"Files | Make the home folder"} <= set(done.changed)
    assert clean_host.sh("stat -c '%U %G %a' /srv/models /etc/bigiron/deep/notes.txt").splitlines() == [
        "llama llama 750",
        "root root 640",
    ]
    assert clean_host.sh("getent passwd llama").strip().endswith("/usr/sbin/nologin")
    brought = json.loads(clean_host.sh("cat /var/lib/bigiron/packages.json"))["installed_packages"]
    assert "ninja-build" in brought

    removed = clean_host.removes("base")
    assert {"Remove | Purge the packages that were brought", "Remove | Delete the service user"} <= set(removed.changed)
    clean_host.sh("rm -r /srv/models /etc/bigiron")  # what stood there before is not known, so these stay
    assert clean_host.tree() == before


def test_package_of_a_person_survives_teardown(clean_host):
    clean_host.sh("apt-get -qq install -y --no-install-recommends tree >/dev/null 2>&1")
    clean_host.converge("base", base_packages=["tree", "ninja-build"])
    clean_host.removes("base")
    have = clean_host.sh("dpkg-query -W -f '${Package} ' tree ninja-build 2>/dev/null", check=False).split()
    assert have == ["tree"]
    clean_host.sh("apt-get -qq purge -y tree >/dev/null 2>&1")


def test_unknown_package_fails_by_name_and_leaves_no_record(clean_host):
    failed = clean_host.run("base", base_packages=["no-such-package-at-all"])
    assert failed.code != 0
    assert "no-such-package-at-all" in failed.failed[-1]
    assert clean_host.sh("ls /var/lib/bigiron 2>/dev/null", check=False) == ""


LOCK = "import fcntl, sys, time; f = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(f, 2); print(flush=True); time.sleep(int(sys.argv[1]))"
# comes back once the lock is held
HOLD = f'mkfifo /run/held; nohup python3 -c "{LOCK}" %d >/run/held 2>/dev/null & echo $! >/run/holder; read _ </run/held; rm /run/held'


def test_busy_package_manager_is_waited_for_and_a_stuck_one_is_named(clean_host):
    clean_host.sh(HOLD % 8)
    assert clean_host.run("base", base_packages=["tree"]).code == 0
    clean_host.sh(HOLD % 3600)
    failed = clean_host.run("base", base_packages=["ninja-build"], base_apt_lock_timeout_s=2)
    clean_host.sh("kill $(cat /run/holder); rm /run/holder")
    assert failed.code != 0
    assert "lock-frontend" in failed.failed[-1]
    assert "python3 (pid " in failed.failed[-1]


def test_other_distribution_is_refused_before_anything_is_touched(clean_host):
    clean_host.sh("mv /etc/os-release /run/os-release.was; mv /etc/debian_version /run/; echo ID=fedora >/etc/os-release")
    try:
        refused = clean_host.run("base", **WANTED)
    finally:
        clean_host.sh("rm /etc/os-release; mv /run/os-release.was /etc/os-release; mv /run/debian_version /etc/")
    assert refused.code != 0
    assert "not of the Debian family" in refused.failed[-1]
    assert refused.changed == []


def test_a_folder_of_a_person_keeps_owner_and_mode_and_one_made_here_is_put_right(clean_host):
    folders = [{"path": path, "mode": "0755", "keep": True} for path in ("/srv/theirs", "/srv/made")]
    clean_host.sh("mkdir -p /srv/theirs && chown daemon:games /srv/theirs && chmod 0775 /srv/theirs")
    clean_host.converge("base", base_directories=folders)
    clean_host.sh("chmod 0700 /srv/made")
    again = clean_host.run("base", base_directories=folders)
    assert again.changed == ["Files | Make folders"], again
    stat = clean_host.sh("stat -c '%U %G %a' /srv/theirs /srv/made; cat /var/lib/bigiron/folders; rmdir /srv/theirs /srv/made")
    assert stat.splitlines() == ["daemon games 775", "root root 755", "/srv/made"]


def test_a_folder_of_a_person_that_the_service_cannot_read_is_refused_with_the_command(clean_host):
    clean_host.sh("mkdir -p /srv/closed/deep && chmod 0700 /srv/closed")
    folders = [{"path": path, "keep": True} for path in ("/srv/closed/deep", "/srv/other")]
    refused = clean_host.run("base", base_directories=folders)
    left = clean_host.sh("stat -c %a /srv/closed; ls -d /srv/other 2>/dev/null; rm -r /srv/closed", check=False)
    assert refused.code != 0
    assert "chmod o+rx /srv/closed/deep" in refused.failed[-1], refused
    assert left.split() == ["700"]


def test_a_file_that_is_there_keeps_its_mode_unless_one_is_given(clean_host):
    clean_host.sh("umask 077; echo secret >/etc/bigiron-test-mode")
    files = [{"path": "/etc/bigiron-test-mode", "content": "new"}, {"path": "/etc/bigiron-test-new", "content": "new"}]
    clean_host.converge("base", base_files=files)
    modes = clean_host.sh("stat -c %a /etc/bigiron-test-mode /etc/bigiron-test-new; rm /etc/bigiron-test-*").split()
    assert modes == ["600", "644"]
