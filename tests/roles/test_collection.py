"""The collection as a stranger has it: built, installed into an empty folder, and run by an Ansible that has never heard of this clone."""

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import yaml

from bigiron.paths import PROJECT

pytestmark = [pytest.mark.lab, pytest.mark.timeout(45 * 60)]  # the first that needs the release compiles it

HOST = "lab06"


class Stranger:
    """An interpreter with Ansible and without the package ``bigiron``, an empty home and working folder, and the installed collection."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", symlinks=True)
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
        # this folder's packages and not its .pth files, one of which names our src
        (site / "ansible.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.python = str(folder / "venv" / "bin" / "python")
        self.cwd = folder / "cwd"
        self.cwd.mkdir()
        (folder / "ansible.cfg").write_text("[inventory]\nignore_patterns = ^locks$\n")
        self.env = {
            "HOME": str(folder), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(folder / "collections"),
        }  # fmt: skip

    def run(self, *words: str, timeout: float = 900) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.python, *words], cwd=self.cwd, env=self.env, capture_output=True, text=True, check=False, timeout=timeout,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def play(self, name: str, *words: str) -> tuple[int, int, str]:
        """Exit code, number of changes, and all of the output of the collection's playbook ``name``."""
        done = self.run("-m", "ansible", "playbook", f"bigiron.host.{name}", *words)
        counted = re.search(r"changed=(\d+)", done.stdout)
        return done.returncode, int(counted[1]) if counted else 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    one = Stranger(tmp_path_factory.mktemp("stranger"))
    built = one.run("-m", "ansible", "galaxy", "collection", "build", str(PROJECT), "--output-path", str(one.folder))
    assert built.returncode == 0, built.stdout + built.stderr
    assert "[WARNING]" not in built.stderr, built.stderr
    (archive,) = one.folder.glob("bigiron-host-*.tar.gz")
    target = str(one.folder / "collections")
    done = one.run("-m", "ansible", "galaxy", "collection", "install", "--offline", str(archive), "-p", target)
    assert done.returncode == 0, done.stdout + done.stderr
    return one


def written(folder: Path, *words: str) -> subprocess.CompletedProcess:
    argv = [str(PROJECT / "inv"), "plan", "--host", HOST, "--write", str(folder), *words]
    return subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=300)


def test_the_stranger_has_no_package_of_ours(stranger):
    done = stranger.run("-c", "import ansible, bigiron")
    assert done.returncode == 1
    assert "No module named 'bigiron'" in done.stderr
    installed = stranger.folder / "collections/ansible_collections/bigiron/host"
    assert not any((installed / name).exists() for name in ("tests", "inventory", "tasks.py", ".git", "ansible_collections"))
    assert str(PROJECT) not in str((installed / "plugins/module_utils/bigiron").resolve())


def test_renders_what_the_plan_renders(stranger):
    from bigiron.render import render

    argv = [
        "/opt/x",
        r"blk\.(3|4)\.ffn=CUDA0",
        'say "hi"',
        "100%",
        "$HOME",
        "{% if x %}{{ y }}",
        "tab\there",
        "größe",
        "",
        "'",
        "\\",
    ]
    defaults = yaml.safe_load((PROJECT / "roles/llama_server/defaults/main.yml").read_text())
    wanted = {**defaults, "llama_server_argv": argv}
    (stranger.folder / "wanted.json").write_text(json.dumps(wanted))
    task = {"ansible.builtin.copy": {"dest": str(stranger.folder / "unit"), "content": "{{ text }}"}, "vars": {
        "text": "{{ 'llama-server.service' | bigiron.host.render(lookup('ansible.builtin.file', file) | from_json) }}",
        "file": str(stranger.folder / "wanted.json"),
    }}  # fmt: skip
    play = stranger.folder / "render.yml"
    play.write_text(json.dumps([{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": [task]}]))
    interpreter = json.dumps({"ansible_python_interpreter": sys.executable})
    done = stranger.run("-m", "ansible", "playbook", "-i", "localhost,", "-e", interpreter, str(play))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (stranger.folder / "unit").read_text() == render("llama-server.service", wanted)


def test_provisions_and_removes_a_host_with_ansible_alone(stranger, clean_host, tmp_path):
    before = clean_host.tree()
    plan = tmp_path / "plan"
    done = written(plan)
    assert done.returncode == 0, done.stdout + done.stderr
    sources = ["-i", str(PROJECT / "inventory/lab"), "-i", str(plan), "--limit", HOST]

    code, changed, said = stranger.play("provision", *sources, "--check")
    assert (code, changed > 0) == (0, True), said
    assert clean_host.tree() == before
    code, changed, said = stranger.play("provision", *sources)
    assert (code, changed > 0) == (0, True), said
    assert stranger.play("provision", *sources)[:2] == (0, 0)

    # the same host as the front door makes
    drift = subprocess.run([str(PROJECT / "inv"), "drift", "--host", HOST], capture_output=True, text=True, check=False)
    assert drift.returncode == 0, drift.stdout + drift.stderr
    verify = subprocess.run([str(PROJECT / "inv"), "verify", "--host", HOST], capture_output=True, text=True, check=False)
    assert verify.returncode == 0, verify.stdout + verify.stderr

    code, changed, said = stranger.play("teardown", *sources, "-e", '{"model_remove": true}')
    assert (code, changed > 0) == (0, True), said
    assert stranger.play("teardown", *sources)[:2] == (0, 0)
    assert clean_host.tree() == before


def test_a_plan_written_twice_is_the_same_and_holds_no_secret(clean_host, tmp_path):
    plan = tmp_path / "plan"
    assert written(plan).returncode == 0
    first = {path: path.read_bytes() for path in plan.rglob("*") if path.is_file()}
    assert {str(path.relative_to(plan)) for path in first} == {"hosts.yml", f"host_vars/{HOST}.json"}
    assert written(plan, "--json").returncode == 0
    assert {path: path.read_bytes() for path in plan.rglob("*") if path.is_file()} == first
    values = json.loads((plan / "host_vars" / f"{HOST}.json").read_text())
    assert values["bigiron_parts"][0] == "base"
    assert not {"llama_server_api_key", "model_token"} & values.keys()


def test_the_commands_of_the_docs_do_what_they_say(clean_host):
    """The section of docs/provision.md on Ansible without the front door, as it stands there, on this host."""
    text = (PROJECT / "docs" / "provision.md").read_text(encoding="utf-8")
    section = text[text.index("## Without the front door") :]
    commands = [
        line for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) for line in block.splitlines() if line.strip()
    ]
    here = [line.replace("lab01", HOST) for line in commands if not line.startswith("ansible-galaxy")]
    assert any("playbooks/provision.yml" in line for line in here)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for line in here:
        done = subprocess.run(
            shlex.split(line, comments=True),
            cwd=PROJECT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_the_play_of_the_docs_applies_one_role(stranger, clean_host):
    """The example of docs/provision.md, by the installed collection."""
    (example,) = re.findall(r"```yaml\n(.*?)```", (PROJECT / "docs" / "provision.md").read_text(encoding="utf-8"), re.DOTALL)
    play = stranger.folder / "example.yml"
    play.write_text(example.replace("hosts: gpu", f"hosts: {HOST}"))
    words = ["-m", "ansible", "playbook", "-i", str(PROJECT / "inventory/lab"), str(play)]
    first, again = stranger.run(*words), stranger.run(*words)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "changed=0" in again.stdout, again.stdout + again.stderr
    assert clean_host.sh("command -v tmux").strip() == "/usr/bin/tmux"
