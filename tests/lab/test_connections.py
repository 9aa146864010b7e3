"""How hosts are reached, by a real sshd and a real sudo."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bigiron.errors import BigironError, Unreachable, UsageError
from bigiron.fleet.inventory import Target
from bigiron.fleet.ssh import Session, run_many
from fixtures.sshd import PASSWORD, Lab, running

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def sshd() -> Iterator[Lab]:
    with running() as lab:
        yield lab


@pytest.fixture
def lab(sshd: Lab) -> Lab:
    sshd.known()
    return sshd


def whoami(target: Target, **options: Any) -> str:
    with Session(target) as session:
        return session.run(["id", "-un"], become=True, **options).stdout.strip()


def program(target: Target) -> dict[str, Any]:
    with Session(target) as session:
        return session.run_program("bigiron.onhost.observe:main", {}, timeout_s=20)


def refusal(target: Target) -> BigironError:
    with pytest.raises(BigironError) as caught:
        whoami(target)
    assert "Traceback" not in str(caught.value)
    return caught.value


# becoming root (public reports: become prompts, requiretty, one attempt)


@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("root", None),
        ("free", None),
        ("free", PASSWORD),
        ("free", "wrong"),
        ("pw", PASSWORD),
        ("root", "wrong"),
        ("noisy", None),
        ("noisy", "x"),
    ],
)
def test_becomes_root(lab: Lab, user: str, password: str | None) -> None:
    assert whoami(lab.target(user, ansible_become_password=password)) == "root"


@pytest.mark.parametrize(
    ("user", "variables", "who"),
    [
        ("root", {}, "root"),
        ("free", {}, "root"),
        ("free", {"ansible_become_password": PASSWORD}, "root"),
        ("pw", {"ansible_become_password": PASSWORD}, "root"),
        ("pw", {}, "pw"),
        ("pw", {"ansible_become": False}, "pw"),
    ],
)
def test_the_verifier_and_a_persons_tests_become_who_the_inventory_says(
    lab: Lab, user: str, variables: dict[str, Any], who: str
) -> None:
    """Without a way to become root the collector looks as who it is; what only root may read stays open."""
    from bigiron.judge import collect

    with collect.opened(lab.target(user, **variables).connection) as reached:
        assert (reached.collect(dict)["host"]["euid"] == 0) is (who == "root")
        host = reached.for_tests()
        assert host.check_output("id -un; echo %s", "it's me").split("\n") == [who, "it's me"]


def test_a_password_that_sudo_does_not_want_is_not_executed(lab: Lab) -> None:
    target = lab.target("free", ansible_become_password="touch /run/bigiron-executed")
    assert whoami(target) == "root"
    assert not Path("/run/bigiron-executed").exists()


def test_wrong_password_is_tried_once(lab: Lab) -> None:
    before = lab.sudo_log()
    error = refusal(lab.target("pw", ansible_become_password="wrong horse"))
    assert isinstance(error, Unreachable)
    assert "wrong sudo password for pw" in str(error)
    assert "wrong horse" not in str(error) + str(error.hint)
    for _ in range(600):
        new = lab.sudo_log().removeprefix(before)
        if "incorrect password attempt" in new:
            break
        time.sleep(0.1)
    assert "1 incorrect password attempt" in new.replace("\n    ", " ")


@pytest.mark.parametrize(
    ("user", "variables", "sentence"),
    [
        ("pw", {}, "sudo asks pw for a password and none is set"),
        ("plain", {}, "sudo asks plain for a password and none is set"),
        ("plain", {"ansible_become_password": PASSWORD}, "plain is not in the sudoers file"),
        ("one", {}, "sudo lets one run only /usr/bin/id, /usr/bin/uptime without a password"),
        ("onepw", {"ansible_become_password": PASSWORD}, "sudo lets onepw run some commands, but not everything as root"),
        ("tty", {}, "requiretty"),
        ("plain", {"ansible_become_exe": "/nowhere/sudo"}, "sudo is not installed"),
        ("free", {"ansible_become_user": "nobody-such"}, "does not know the user nobody-such"),
    ],
)
def test_each_refusal_of_sudo_has_its_own_sentence(lab: Lab, user: str, variables: dict[str, str], sentence: str) -> None:
    error = refusal(lab.target(user, **variables))
    assert isinstance(error, Unreachable)
    assert sentence in str(error)
    assert error.hint


def test_without_become_the_user_stays(lab: Lab) -> None:
    assert whoami(lab.target("pw", ansible_become=False)) == "pw"


# programs


def test_program_runs_and_its_errors_are_typed(lab: Lab) -> None:
    for user in ("root", "noisy"):
        with pytest.raises(BigironError, match="KeyError") as caught:
            program(lab.target(user))
        assert "bigiron.onhost.observe:" in str(caught.value.hint)


def test_old_and_missing_python_are_named(lab: Lab, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    old = lab.folder / "python3"
    old.write_text("#!/bin/sh\necho 'Unknown option: -I' >&2; exit 2\n")
    old.chmod(0o755)
    with pytest.raises(Unreachable, match="too old"):
        program(lab.target(ansible_python_interpreter=str(old)))
    with pytest.raises(Unreachable, match="/nowhere/python is not there"):
        program(lab.target(ansible_python_interpreter="/nowhere/python"))


# reaching the host


def test_refused_unresolved_and_silent(lab: Lab) -> None:
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        port = dead.getsockname()[1]
        assert f"127.0.0.1:{port} refuses the connection" in str(refusal(lab.target(ansible_port=port)))
        dead.listen(1)
        error = refusal(lab.target(ansible_port=port, ansible_ssh_timeout=1))
        assert "does not answer as an SSH server" in str(error)
    error = refusal(lab.target(ansible_host="no-such-host.invalid"))
    assert "no-such-host.invalid cannot be resolved" in str(error)
    assert error.exit_code == 3


def test_wrong_key_names_user_and_keys(lab: Lab) -> None:
    other = str(lab.folder / "other_key")
    error = refusal(lab.target("free", ansible_private_key_file=other))
    assert f"127.0.0.1:{lab.port} does not let free in; keys tried: {other}" in str(error)
    assert isinstance(error, Unreachable)


def test_encrypted_key_without_agent(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    error = refusal(lab.target(ansible_private_key_file=str(lab.folder / "locked_key")))
    assert "locked_key is protected by a passphrase" in str(error)
    assert error.hint == f"ssh-add {lab.folder}/locked_key"


def test_the_agent_serves_what_the_files_cannot(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    sock, ask, locked = lab.folder / "agent", lab.folder / "ask", lab.folder / "locked_key"
    ask.write_text("#!/bin/sh\necho a passphrase\n")
    ask.chmod(0o755)
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
    try:
        while not sock.exists():
            time.sleep(0.02)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        env = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run(["ssh-add", "-q", str(locked)], check=True, env=env)
        assert whoami(lab.target(ansible_private_key_file=str(locked))) == "root"
        common = lab.target().vars["ansible_ssh_common_args"].replace("IdentitiesOnly=yes", "IdentitiesOnly=no")
        other = str(lab.folder / "other_key")
        assert whoami(lab.target(ansible_private_key_file=other, ansible_ssh_common_args=common)) == "root"
        assert "keys tried: " + other in str(refusal(lab.target(ansible_private_key_file=other)))
    finally:
        agent.terminate()
        agent.wait(10)


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_other_kinds_of_key(lab: Lab, kind: str) -> None:
    key = lab.folder / kind
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(key)], check=True, stdin=subprocess.DEVNULL)
    with (lab.folder / "authorized_keys").open("a") as authorized:
        authorized.write(key.with_suffix(".pub").read_text())
    assert whoami(lab.target(ansible_private_key_file=str(key))) == "root"


def test_changed_host_key_shows_both_fingerprints(lab: Lab) -> None:
    lab.known("other_host")
    error = refusal(lab.target())
    prints = [
        subprocess.run(
            ["ssh-keygen", "-lf", str(lab.folder / f"{key}.pub")], check=True, capture_output=True, text=True
        ).stdout.split()[1]
        for key in ("other_host", "host_ed25519")
    ]
    assert f"expected ssh-ed25519 {prints[0]} ({lab.known_hosts}:2), got ssh-ed25519 {prints[1]}" in str(error)
    assert f"ssh-keygen -f {lab.known_hosts} -R '[127.0.0.1]:{lab.port}'" in str(error.hint)
    remove = str(error.hint).partition(": ")[2].partition(";")[0]
    subprocess.run(remove, shell=True, check=True, capture_output=True)
    assert "unknown" in str(refusal(lab.target()))


def test_unknown_host_key_under_each_policy(lab: Lab) -> None:
    lab.known_hosts.write_text("")
    error = refusal(lab.target())
    assert "is unknown: ssh-ed25519 SHA256:" in str(error)
    assert "StrictHostKeyChecking=ask" in str(error.hint)
    common = (
        lab.target().vars["ansible_ssh_common_args"].replace("StrictHostKeyChecking=yes", "StrictHostKeyChecking=accept-new")
    )
    assert whoami(lab.target(ansible_ssh_common_args=common)) == "root"
    assert whoami(lab.target()) == "root"  # recorded by the line before
    lab.known(marker="@revoked ")
    assert "revoked" in str(refusal(lab.target(ansible_ssh_common_args=common)))


def test_ssh_config_decides_as_it_does_for_ssh(lab: Lab) -> None:
    config = lab.folder / "ssh_config"
    config.write_text(
        f"Include {lab.folder}/more.conf\nHost *\n  UserKnownHostsFile {lab.known_hosts}\n"
        "  GlobalKnownHostsFile none\n  IdentitiesOnly yes\n"
    )
    (lab.folder / "more.conf").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {lab.port}\n  User free\n  IdentityFile {lab.key}\n"
        f"Host hop\n  HostName 127.0.0.1\n  Port {lab.port}\n  User plain\n  IdentityFile {lab.key}\n"
        f"Host far\n  HostName 127.0.0.1\n  Port {lab.port}\n  User pw\n  IdentityFile {lab.key}\n  ProxyJump hop\n"
        f"Host piped\n  HostName 127.0.0.1\n  Port {lab.port}\n  User pw\n  IdentityFile {lab.key}\n"
        f"  ProxyCommand ssh -F {config} -W %h:%p hop\n"
        f"Host lost\n  HostName 127.0.0.1\n  IdentityFile {lab.key}\n  ProxyJump nowhere\n"
        f"Host nowhere\n  HostName 127.0.0.1\n  Port 1\n"
        f"Host beyond\n  HostName 127.0.0.1\n  Port 1\n  ProxyJump hop\n"
        f"Host broken\n  HostName 127.0.0.1\n  ProxyCommand echo the proxy is gone >&2; exit 1\n"
    )

    def at(host: str) -> Target:
        return Target(host, (), {"ansible_become": False, "ansible_ssh_common_args": f"-F {config}"})

    assert [whoami(at(host)) for host in ("box", "far", "piped")] == ["free", "pw", "pw"]
    jumped = Target("box", (), {"ansible_become": False, "ansible_ssh_common_args": f"-F {config} -J hop"})
    assert whoami(jumped) == "free"
    assert "jump host nowhere: 127.0.0.1:1 refuses" in str(refusal(at("lost")))
    assert "jump host 127.0.0.1 cannot reach 127.0.0.1:1" in str(refusal(at("beyond")))
    assert "the proxy is gone" in str(refusal(at("broken")))


def test_options_that_ssh_rejects_are_usage_errors(lab: Lab) -> None:
    error = refusal(lab.target(ansible_ssh_extra_args="-o NoSuchOption=1"))
    assert isinstance(error, UsageError)
    assert "NoSuchOption" in str(error).replace("nosuchoption", "NoSuchOption")


# several hosts


def test_many_hosts_keep_their_own_errors(lab: Lab) -> None:
    targets = [lab.target("free", name=f"n{index}") for index in range(8)] + [lab.target(name="dead", ansible_port=1)]
    results = run_many(targets, whoami)
    assert list(results) == [target.name for target in targets]
    assert [results[f"n{index}"] for index in range(8)] == ["root"] * 8
    assert isinstance(results["dead"], Unreachable)


def test_another_exception_closes_what_is_open(lab: Lab) -> None:
    inside, ended = threading.Event(), threading.Event()

    def work(target: Target) -> str:
        if target.name == "bad":
            assert inside.wait(60)
            raise KeyboardInterrupt
        try:
            with Session(target) as session:
                inside.set()
                return session.run(["sleep", "3600"], timeout_s=3600).stdout
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_many([lab.target(name="slow"), lab.target(name="bad")], work)
    assert ended.wait(60)


def test_ctrl_c_ends_at_once(lab: Lab) -> None:
    code = f"""
from bigiron.fleet.inventory import Target
from bigiron.fleet.ssh import Session, run_many

def work(target):
    with Session(target) as session:
        print("in", flush=True) if session.run(["true"]).status == 0 else None
        session.run(["sleep", "3600"], timeout_s=3600)

try:
    print(run_many([Target(name, (), {dict(lab.target().vars)!r}) for name in "abcd"], work))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    process = subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(4)] == ["in\n"] * 4
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("interrupted\n", "")


def test_a_command_that_does_not_end_is_given_up(lab: Lab) -> None:
    with Session(lab.target()) as session:
        with pytest.raises(BigironError, match="still not done after 1 s"):
            session.run(["sleep", "3600"], timeout_s=1)
        assert session.run(["echo", "still here"]).stdout == "still here\n"


def test_reads_files_over_the_same_connection(lab: Lab) -> None:
    (lab.folder / "bytes").write_bytes(bytes(range(256)) * 400)
    with Session(lab.target("plain")) as session:
        assert session.read_file(str(lab.folder / "bytes")) == bytes(range(256)) * 400
        assert session.read_file("/no/such/file") is None
        with pytest.raises(BigironError, match="Permission denied"):
            session.read_file(f"{lab.folder}/etc/shadow")
