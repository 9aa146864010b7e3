"""The loop of the playbooks, with roles that do nothing: who is refused, and in which order each host gets its parts."""

import json
import os
import subprocess
import sys

import pytest

from bigiron.paths import PROJECT

PARTS = ("base", "llama_cpp", "model", "llama_server")


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """``play(name, {host: parts or None}, *words)`` -> (exit code, {host: [role, ...] in the order applied}, {host: message})."""
    folder = tmp_path_factory.mktemp("collection")
    root = folder / "ansible_collections" / "bigiron" / "host"
    root.mkdir(parents=True)
    for name in ("plugins", "playbooks", "src"):
        (root / name).symlink_to(PROJECT / name)
    for part in PARTS:
        for entry in ("main", "remove"):
            tasks = root / "roles" / part / "tasks" / f"{entry}.yml"
            tasks.parent.mkdir(parents=True, exist_ok=True)
            tasks.write_text(json.dumps([{"name": entry, "ansible.builtin.debug": {"msg": part}}]))
    (folder / "ansible.cfg").write_text(f"[defaults]\ncollections_path = {folder}\n")

    def run(name, hosts, *words):
        # an address that nothing answers: a task that connects would end in "unreachable"
        variables = {
            host: {"ansible_host": "192.0.2.1", **({} if parts is None else {"bigiron_parts": parts})}
            for host, parts in hosts.items()
        }
        (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": variables}}))
        argv = [sys.executable, "-m", "ansible", "playbook", "-i", str(folder / "hosts.yml"), f"bigiron.host.{name}", *words]
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8", "ANSIBLE_STDOUT_CALLBACK": "bigiron.host.events",
                       "ANSIBLE_CONFIG": str(folder / "ansible.cfg")}  # fmt: skip
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=120)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert events, done.stderr
        order = {host: [e["role"] for e in events if e["host"] == host and e["event"] == "ok" and e["role"]] for host in hosts}
        return done.returncode, order, {e["host"]: e["msg"] for e in events if e["event"] in {"failed", "unreachable"}}

    return run


def test_each_host_gets_its_own_parts_in_order_whoever_comes_first(play):
    hosts = {"a": ["llama_server"], "b": list(PARTS), "c": ["base", "llama_server"], "d": ["model", "llama_server"]}
    code, order, failed = play("provision", hosts)
    assert (code, order, failed) == (0, hosts, {})


def test_a_host_without_a_plan_is_refused_and_stops_no_other(play):
    code, order, failed = play("provision", {"controller": None, "a": ["base", "model"]})
    assert code == 2
    assert order == {"controller": [], "a": ["base", "model"]}
    assert failed.keys() == {"controller"}
    assert "./inv plan --host controller --write DIR" in failed["controller"]


def test_teardown_is_the_same_list_backwards(play):
    code, order, failed = play("teardown", {"a": ["llama_server"], "b": list(PARTS), "c": None})
    assert code == 2
    assert order == {"a": ["llama_server"], "b": list(reversed(PARTS)), "c": []}
    assert "c has no list of parts" in failed["c"]


def test_a_part_alone_by_its_tag(play):
    assert play("provision", {"a": list(PARTS), "b": ["base"]}, "--tags", "model")[:2] == (0, {"a": ["model"], "b": []})


def test_hosts_that_contradict_each_other_are_told(play):
    code, order, failed = play("provision", {"a": ["base", "model"], "b": ["model", "base"]})
    assert code == 2
    assert order == {"a": [], "b": []}
    assert "opposite orders in bigiron_parts" in " ".join(failed.values())
