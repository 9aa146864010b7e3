"""The lab itself, with real containers: up, again, killed, beside another, down; in copies of the project."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bigiron import paths
from bigiron.lab import seed, tools

WHY_NOT = tools.unmet()
pytestmark = [pytest.mark.lab, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)), pytest.mark.timeout(600)]

PROGRAM = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[3] + "/src")
from bigiron import paths
if paths.PROJECT != pathlib.Path(sys.argv[3]).resolve():
    sys.exit(f"this is the lab of {paths.PROJECT}, which the test must not touch")
from bigiron.errors import BigironError
from bigiron.lab import lab, mirror, state
said = []
arguments = json.loads(sys.argv[2])
try:
    call = {"up": lambda: lab.up(arguments[0], said.append), "down": lambda: lab.down(said.append), "status": lab.status,
            "mirror": mirror.status, "ssh_argv": lambda: lab.ssh_argv(*arguments)}[sys.argv[1]]
    result = call()
    answer = result if isinstance(result, list) else result.to_json()
    print(json.dumps({"answer": answer, "said": said, "key": state.KEY}))
except BigironError as error:
    sys.exit(f"{error.to_json()} {said}")
"""


@dataclass(frozen=True)
class Project:
    """A copy of this project in its own folder."""

    folder: Path

    def start(self, call: str, *arguments: object) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", PROGRAM, call, json.dumps(arguments), str(self.folder)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, cwd=self.folder, text=True, stdout=pipe, stderr=pipe)

    def ask(self, call: str, *arguments: object) -> dict[str, Any]:
        process = self.start(call, *arguments)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        result: dict[str, Any] = json.loads(out)
        return result

    def call(self, call: str, *arguments: object) -> Any:
        return self.ask(call, *arguments)["answer"]

    def ssh(self, host: str, command: str, user: str = "root") -> str:
        argv = list(self.call("ssh_argv", host))
        argv[argv.index("-l") + 1] = user
        done = subprocess.run(
            [*argv, command], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def copy_project(folder: Path) -> Project:
    ignored = shutil.ignore_patterns("__pycache__", "90-state.yml", "locks")
    for name in ("src", "templates", "inventory"):
        shutil.copytree(paths.PROJECT / name, folder / name, ignore=ignored)
    shutil.copy(paths.PROJECT / "ansible.cfg", folder)
    return Project(folder)


def lines(*argv: str) -> set[str]:
    return set(
        subprocess.run(
            [tools.find(argv[0]) or argv[0], *argv[1:]], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    )


def traces(project: Project, key: str) -> dict[str, set[str]]:
    """What is on this machine that could be this lab's: by its key or its folder, whoever's it is."""
    ours = re.compile(f"{key}|{re.escape(str(project.folder))}")
    processes = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                text = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                text += " " + (entry / "mountinfo").read_text(errors="replace")
                text += " ".join(str((entry / link).readlink()) for link in ("cwd", "root", "exe"))
                if ours.search(text):
                    processes.add(f"{entry.name}: {text[:200]}")
    # os.walk and not rglob: other labs' groups come and go meanwhile, which rglob takes for an error
    groups = {f"{folder}/{name}" for folder, names, _ in os.walk("/sys/fs/cgroup") for name in names if ours.search(name)}
    runtime = {str(path) for top in ("/run", "/run/systemd/nspawn", "/run/systemd/nspawn/propagate", "/run/bigiron-lab")
               if Path(top).is_dir() for path in Path(top).iterdir() if ours.search(path.name)}  # fmt: skip
    return {
        "links": {line for line in lines("ip", "-br", "link") if ours.search(line)},
        "routes": {line for line in lines("ip", "route", "show", "table", "all") if ours.search(line)},
        "tables": {line for line in lines("nft", "list", "tables") if ours.search(line)},
        "rules": {line for line in lines("nft", "list", "ruleset") if ours.search(line)},
        "mounts": {line for line in Path("/proc/mounts").read_text().splitlines() if ours.search(line)},
        "processes": processes,
        "groups": groups,
        "runtime": runtime,
    }


def assert_nothing_left(project: Project, key: str) -> None:
    left = {what: found for what, found in traces(project, key).items() if found}
    assert left == {}
    assert not (project.folder / "inventory/lab/90-state.yml").exists()
    folder = project.folder / ".bigiron/lab"
    assert [path.name for path in folder.glob("*") if path.name != "lock"] == []


def forwarding() -> str:
    return Path("/proc/sys/net/ipv4/ip_forward").read_text().strip()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A lab with lab01 up, taken down at the end whatever happened."""
    copy = copy_project(tmp_path_factory.mktemp("project"))
    try:
        copy.call("up", 1)
        yield copy
    finally:
        copy.call("down")
        shutil.rmtree(copy.folder)


def test_a_host_is_a_fresh_machine_with_systemd_and_apt(project: Project) -> None:
    (host,) = project.call("status")["hosts"]
    assert (host["name"], host["state"], host["boot_ok"]) == ("lab01", "running", True)
    assert project.ssh("lab01", "hostname; systemctl is-system-running") == "lab01\nrunning"
    assert project.ssh("lab01", "for p in gcc g++ cmake curl git; do command -v $p || :; done") == ""
    assert "Candidate: (none)" not in project.ssh("lab01", "apt-cache policy g++")
    assert project.ssh("lab01", "sudo -n id -u", user="admin") == "0"
    assert (
        project.ssh("lab01", "touch /var/cache/bigiron-ccache/.probe && rm /var/cache/bigiron-ccache/.probe; echo ok") == "ok"
    )


def test_apt_reaches_its_archive_through_the_bridge(project: Project) -> None:
    out = project.ssh("lab01", "LC_ALL=C apt-get update 2>&1; apt-get download --print-uris ninja-build | head -1")
    assert not re.search(r"^(Err|E|W):", out, re.MULTILINE), out


def test_the_mirror_is_reached_by_name_and_serves_ranges(project: Project) -> None:
    path = f"/{seed.REPO}/resolve/{seed.REVISION}/README.md"
    script = (
        "import urllib.request as u; r=u.Request('http://mirror'+__import__('sys').argv[1], headers={'Range':'bytes=4-8'});"
        "a=u.urlopen(r); print(a.status, a.read().decode(), a.headers['X-Repo-Commit'])"
    )
    url = str(project.call("status")["mirror_url"])
    port = url.partition("//")[2].partition(":")[2]
    script = script.replace("http://mirror", f"http://mirror:{port}" if port else "http://mirror")
    whole = (seed.root() / "repos" / seed.REPO / seed.REVISION / "README.md").read_bytes()
    assert project.ssh(
        "lab01", f'python3 -c "{script}" {path}'
    ) == f"206 {whole[4:9].decode().strip()} {seed.REVISION}".replace("  ", " ")


def test_the_hubs_own_client_lists_and_downloads(project: Project, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    url = project.call("status")["mirror_url"]
    api = hub.HfApi(endpoint=url, token=False)
    files = {
        entry.path: entry
        for entry in api.list_repo_tree(seed.REPO, recursive=True, revision=seed.REVISION)
        if hasattr(entry, "size")
    }
    shards = [path for path in files if path.endswith(".gguf")]
    assert len(shards) >= 3
    assert api.model_info(seed.REPO).sha == seed.REVISION
    for path in (shards[0], "README.md"):
        got = Path(hub.hf_hub_download(seed.REPO, path, revision=seed.REVISION, endpoint=url, cache_dir=tmp_path, token=False))
        assert got.stat().st_size == files[path].size
    digest = subprocess.run(
        ["sha256sum", tmp_path.rglob(Path(shards[0]).name).__next__()], capture_output=True, text=True, check=True
    )
    assert digest.stdout.split()[0] == files[shards[0]].lfs.sha256
    with pytest.raises(EntryNotFoundError):
        hub.hf_hub_download(seed.REPO, "none.gguf", revision=seed.REVISION, endpoint=url, cache_dir=tmp_path, token=False)
    with pytest.raises(RevisionNotFoundError):
        list(api.list_repo_tree(seed.REPO, recursive=True, revision="0" * 40))
    with pytest.raises(RepositoryNotFoundError):
        list(api.list_repo_tree("lab/none", recursive=True, revision=seed.REVISION))


def test_the_mirrors_workers_are_not_root(project: Project) -> None:
    master = project.call("mirror")["pid"]
    children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
    owners = {int(re.search(r"^Uid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1]) for pid in children}
    assert owners
    assert 0 not in owners


def ping(project: Project) -> str:
    environment = {**os.environ, "ANSIBLE_CONFIG": str(project.folder / "ansible.cfg")}
    command = [str(Path(sys.executable).with_name("ansible")), "-i", "inventory/lab", "lab01", "-m", "ansible.builtin.ping"]
    done = subprocess.run(
        command, cwd=project.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ansible_reaches_the_host_by_the_generated_inventory(project: Project) -> None:
    assert '"pong"' in ping(project)


def test_up_again_changes_nothing(project: Project) -> None:
    before = project.call("status")
    inventory = project.folder / "inventory/lab/90-state.yml"
    written = inventory.stat().st_mtime_ns
    again = project.ask("up", 1)
    assert again["answer"] == before
    assert again["said"] == []
    assert inventory.stat().st_mtime_ns == written


def test_a_host_that_died_is_brought_back_with_its_disk(project: Project) -> None:
    project.ssh("lab01", "echo kept > /root/kept; sync")
    (host,) = project.call("status")["hosts"]
    os.kill(host["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while project.call("status")["hosts"][0]["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert project.call("status")["hosts"][0]["state"] == "stopped"
    assert project.call("up", 1)["hosts"][0]["pid"] != host["pid"]
    assert project.ssh("lab01", "cat /root/kept") == "kept"


def test_a_lost_record_does_not_lose_the_host(project: Project) -> None:
    before = project.call("status")
    (project.folder / ".bigiron/lab/state.json").unlink()
    assert project.call("up", 1) == before


def test_two_labs_do_not_collide_and_down_leaves_nothing(project: Project, tmp_path: Path) -> None:
    other = copy_project(tmp_path / "other lab, a folder with blanks")
    try:
        there = other.ask("up", 1)
        here = project.call("status")
        assert there["answer"]["bridge"] != here["bridge"]
        assert there["answer"]["subnet"] != here["subnet"]
        other.ssh("lab01", "echo other > /root/who")
        assert '"pong"' in ping(other)
        assert project.ssh("lab01", "cat /root/who 2>/dev/null || echo not there") == "not there"
        found = traces(other, there["key"])
        assert all(found[what] for what in ("links", "tables", "processes", "runtime")), "the look for leftovers sees nothing"
    finally:
        other.call("down")
    assert_nothing_left(other, there["key"])
    assert forwarding() == "1", "the lab that is still up needs it"
    assert project.call("status")["hosts"][0]["boot_ok"] is True
    assert project.ssh("lab01", "apt-get update 2>&1 | grep -c ^Err || :") == "0"


def test_a_killed_up_is_carried_on_and_a_killed_down_too(tmp_path: Path) -> None:
    copy = copy_project(tmp_path / "killed")
    seconds = [random.uniform(0.1, 3.5) for _ in range(6)]
    print("killed after", seconds)
    try:
        for number, moment in enumerate(seconds):
            process = copy.start("down" if number % 3 == 2 else "up", 1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            process.kill()
            process.communicate()
        result = copy.ask("up", 1)
        (host,) = result["answer"]["hosts"]
        assert (host["state"], host["boot_ok"]) == ("running", True)
        assert copy.ssh("lab01", "hostname") == "lab01"
        leaders = {one for one in traces(copy, result["key"])["processes"] if f"--machine={result['key']}-lab01" in one}
        assert len(leaders) == 1, "a killed run left a second container"
    finally:
        copy.call("down")
    assert_nothing_left(copy, result["key"])


def test_a_dropping_firewall_lets_the_bridge_through_and_gets_its_rules_back(tmp_path: Path) -> None:
    """In a network namespace of its own, so that no other lab loses its way out meanwhile."""
    script = """
set -e
nft -f - <<'END'
table ip filter {
    chain FORWARD {
        type filter hook forward priority filter; policy drop;
        ct state established accept
    }
}
table inet own {
    chain in {
        type filter hook input priority 10; policy drop;
    }
}
END
nft list ruleset >before
"$1" -c 'from bigiron.lab import firewall; firewall.open_bridge(); firewall.open_bridge()'
nft list ruleset >open
"$1" -c 'from bigiron.lab import firewall; firewall.close_bridge()'
nft list ruleset >after
grep -c accept open before after
cmp before after
"""
    command = ["unshare", "--net", "sh", "-c", script, "sh", sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(paths.PROJECT / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["open:4", "before:1", "after:1"]
