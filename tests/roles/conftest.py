"""Plays of single roles on a fresh lab host of their own, with stand-ins for llama.cpp's source and for the hub."""

import contextlib
import functools
import hashlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from bigiron.fleet.inventory import clean_env
from bigiron.parts import NAMES
from bigiron.paths import PROJECT

HOST = "lab06"  # the other test hosts belong to the main job


def documented(role):
    """Every variable that the role's argument specs name."""
    entries = yaml.safe_load((PROJECT / "roles" / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    return {name for entry in entries.values() for name in entry["options"]}


@dataclass
class Play:
    """A finished play: the names of changed tasks, what failed, and everything that was printed or logged."""

    code: int
    output: str
    log: str
    changed: list = field(default_factory=list)
    failed: list = field(default_factory=list)

    def __str__(self) -> str:
        return f"exit {self.code}\n{self.output[-6000:]}"


class Host:
    """Runs roles on one lab host."""

    name = HOST

    def __init__(self, folder: Path, gateway: str) -> None:
        self.folder = folder
        self.gateway = gateway

    def run(self, *roles, entry="main", check=False, arguments=(), playbook=None, kill_when="", **variables):
        """Apply ``roles`` (or a playbook of the project) with ``variables`` as host variables, as a person would.

        ``kill_when``: kill -9 Ansible as soon as this shell condition holds on the host.
        """
        assert not roles or variables.keys() <= set().union(*map(documented, roles)), "only what the roles document"
        plan = self.folder / "plan"
        (plan / "host_vars").mkdir(parents=True, exist_ok=True)
        (plan / "hosts.json").write_text(json.dumps({"all": {"hosts": {HOST: {}}}}))
        (plan / "host_vars" / f"{HOST}.json").write_text(json.dumps(variables))
        play = self.folder / "play.yml"
        tasks = [{"ansible.builtin.include_role": {"name": f"bigiron.host.{role}", "tasks_from": entry}} for role in roles]
        play.write_text(json.dumps([{"hosts": HOST, "gather_facts": False, "tasks": tasks}]))
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        path = PROJECT / "playbooks" / f"{playbook}.yml" if playbook else play
        argv = [
            sys.executable,
            "-m",
            "ansible",
            "playbook",
            str(path),
            "--diff",
            "-i",
            str(PROJECT / "inventory/lab"),
            "-i",
            str(plan),
        ]
        argv += ["--limit", HOST, *(["--check"] if check else []), *arguments]
        environment = {
            **clean_env(), "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "ANSIBLE_STDOUT_CALLBACK": "bigiron.host.events",
            "ANSIBLE_BIGIRON_LOG": str(log),
        }  # fmt: skip
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            argv,
            cwd=PROJECT,
            env=environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        if kill_when:
            self.sh(f"until {kill_when}; do sleep 0.1; done")
            os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=900)
        result = Play(process.returncode, stdout + stderr, log.read_text() if log.exists() else "")
        for line in stdout.splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                event = json.loads(line)
                if event["event"] == "changed":
                    result.changed.append(event["task"])
                elif event["event"] in {"failed", "unreachable"}:
                    result.failed.append(event["msg"])
        return result

    def converge(self, *roles, **variables):
        """Apply, see that it worked, apply again, see that nothing changed; the first play is returned."""
        first = self.run(*roles, **variables)
        assert first.code == 0, first
        again = self.run(*roles, **variables)
        assert (again.code, again.changed) == (0, []), again
        return first

    def teardown(self):
        """Everything away, models too."""
        torn = self.run(playbook="teardown", bigiron_parts=NAMES, model_remove=True)
        assert torn.code == 0, torn

    def removes(self, role, **variables):
        """Check mode predicts and changes nothing, then it removes, then nothing is left to remove; the real run is returned."""
        before = self.tree()
        predicted = self.run(role, entry="remove", check=True, **variables)
        assert predicted.code == 0, predicted
        assert self.tree() == before
        done = self.run(role, entry="remove", **variables)
        assert done.code == 0, done
        assert set(done.changed) <= set(predicted.changed)
        again = self.run(role, entry="remove", **variables)
        assert (again.code, again.changed) == (0, []), again
        return done

    def sh(self, script, check=True, stdin=b""):
        """Run a shell script on the host over plain ssh, with ``stdin`` as its input."""
        from bigiron.lab import lab

        done = subprocess.run([*lab.ssh_argv(HOST), script], capture_output=True, input=stdin, check=False, timeout=300)
        told, complaint = (each.decode(errors="replace") for each in (done.stdout, done.stderr))
        assert not check or done.returncode == 0, f"{script}\n{told}{complaint}"
        return told

    def tree(self):
        """Everything these roles could touch, as text; folders without their size, which never shrinks on ext4."""
        return self.sh(
            "find /etc /opt /srv /usr/bin /var/lib/bigiron /var/cache/bigiron /run/bigiron -xdev "
            "-not -path '/etc/ld.so.cache' -not -name '*-' "
            "\\( -type d -printf '%p d %m %u %g\\n' -o -printf '%p %y %m %u %g %s %l\\n' \\) 2>/dev/null | sort; "
            "getent passwd; dpkg-query -W | sort"
        )


@pytest.fixture(scope="session")
def role_host(lab_session, tmp_path_factory):
    """A lab host that holds nothing of bigiron's."""
    from bigiron.lab import lab

    gateway = lab.up(0, lambda _line: None, names=[HOST]).gateway
    host = Host(tmp_path_factory.mktemp("play"), gateway)
    host.teardown()
    yield host
    host.teardown()


@pytest.fixture
def clean_host(role_host):
    """The same host, emptied again before this test."""
    role_host.teardown()
    return role_host


class Files:
    """A folder served over HTTP where lab hosts reach it; ``asked`` holds the request headers."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.asked = []
        outer = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append((self.path, dict(self.headers)))
                super().do_GET()

            def log_message(self, *_args):
                pass

        self.server = http.server.ThreadingHTTPServer((address, 0), functools.partial(Handler, directory=str(folder)))
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://{address}:{self.server.server_address[1]}"

    def put(self, name: str, content: bytes) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return hashlib.sha256(content).hexdigest()


@pytest.fixture
def files(role_host, tmp_path):
    served = Files(tmp_path / "served", role_host.gateway)
    served.folder.mkdir(exist_ok=True)
    yield served
    served.server.shutdown()
    served.server.server_close()
