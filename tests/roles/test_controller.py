"""What is left of a play when the controller is killed: nothing, here and on the host."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from bigiron.paths import PROJECT

pytestmark = pytest.mark.lab

CONTROLLER = """
import sys
from pathlib import Path
from bigiron.fleet import play
folder = Path(sys.argv[1])
ansible = [sys.executable, "-m", "ansible", "playbook", str(folder / "play.yml"), "-i", sys.argv[2], "--limit", sys.argv[3]]
play.playbook_argv = lambda *_: ansible
play.run("test", [], [sys.argv[3]], folder, lambda event: print(event["event"], flush=True))
"""


def running(word):
    """Processes of this machine, those of lab hosts included, whose command line holds ``word``."""
    listed = subprocess.run(["ps", "-wweo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if word in line]


def soon(condition):
    """Whether ``condition()`` comes true within a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def killed(role_host, tmp_path):
    """Start ``task`` on the host through `play.run`, SIGKILL the controller once ``started()``; returns Ansible's playbook."""

    def kill(task, started):
        play = tmp_path / "play.yml"
        play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "become": True, "tasks": [task]}]))
        argv = [sys.executable, "-c", CONTROLLER, str(tmp_path), str(PROJECT / "inventory/lab"), role_host.name]
        with subprocess.Popen(argv, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as controller:
            assert controller.stdout.readline() == "play\n"
            assert soon(started)
            assert running(str(play))
            os.kill(controller.pid, signal.SIGKILL)
        return str(play)

    return kill


def test_ansible_and_its_workers_end_with_the_controller(killed):
    play = killed({"ansible.builtin.command": "sleep 619"}, lambda: running("sleep 619"))
    assert soon(lambda: not running(play)), running(play)


def test_a_fetch_on_the_host_ends_with_the_controller(killed, role_host):
    with socket.create_server((role_host.gateway, 0)) as silent:  # takes connections and never answers
        silent.settimeout(60)
        wanted = {
            "root": "/srv/models", "repo": "org/name", "revision": "0" * 40, "endpoint": "http://{}:{}".format(*silent.getsockname()),
            "files": [{"path": "x.gguf", "size": 5, "sha256": "0" * 64}],
        }  # fmt: skip
        killed({"bigiron.host.model_files": wanted}, silent.accept)
        part = f"/srv/models/org/name/{'0' * 40}/x.gguf.part"
        assert soon(lambda: role_host.sh(f"flock -n {part} echo free", check=False) == "free\n")
    role_host.sh("rm -rf /srv/models")
