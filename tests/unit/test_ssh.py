"""Settings, routes, host keys and sudo's words, without a network; and sessions on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bigiron.errors import BigironError, Unreachable, UsageError
from bigiron.fleet import environment, hostkeys, sudo
from bigiron.fleet.connection import from_vars
from bigiron.fleet.inventory import Target
from bigiron.fleet.route import Route, resolve
from bigiron.fleet.ssh import Session, run_many

LOCAL = {"ansible_connection": "local", "ansible_become": False}


@pytest.fixture
def cfg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "ANSIBLE_REMOTE_USER",
        "ANSIBLE_REMOTE_PORT",
        "ANSIBLE_PRIVATE_KEY_FILE",
        "ANSIBLE_BECOME_PASS",
        "ANSIBLE_SSH_ARGS",
    ):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "ansible.cfg"
    path.write_text("[defaults]\ntimeout = 7\n")
    monkeypatch.setattr(environment, "ANSIBLE_CFG", path)
    return path


def route(connection_vars: dict[str, Any], tmp_path: Path, config: str = "") -> Route:
    file = tmp_path / "ssh_config"
    file.write_text(config)
    return resolve(from_vars("box", {"ansible_ssh_common_args": f"-F {file}", **connection_vars}))


# precedence: a host's variables, then the environment, then ansible.cfg, then ssh_config


@pytest.mark.parametrize(
    ("variable", "env", "section", "key", "pick"),
    [
        ("ansible_user", "ANSIBLE_REMOTE_USER", "defaults", "remote_user", lambda found: found.user),
        ("ansible_port", "ANSIBLE_REMOTE_PORT", "defaults", "remote_port", lambda found: str(found.port)),
        (
            "ansible_private_key_file",
            "ANSIBLE_PRIVATE_KEY_FILE",
            "defaults",
            "private_key_file",
            lambda found: found.identity_files[0],
        ),
    ],
)
def test_precedence(
    cfg: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, env: str, section: str, key: str, pick: Any
) -> None:
    config = "Host *\n  User 1\n  Port 1\n  IdentityFile 1\n"
    assert pick(route({}, tmp_path, config)) == "1"
    cfg.write_text(f"[{section}]\n{key} = 2\n")
    assert pick(route({}, tmp_path, config)) == "2"
    monkeypatch.setenv(env, "3")
    assert pick(route({}, tmp_path, config)) == "3"
    assert pick(route({variable: "4"}, tmp_path, config)) == "4"
    monkeypatch.setenv(env, "")  # an empty setting is no setting
    assert pick(route({}, tmp_path, config)) == "2"


def test_sudo_password_precedence(cfg: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_vars("box", {}).become_password is None
    monkeypatch.setenv("ANSIBLE_BECOME_PASS", "from env")
    assert from_vars("box", {}).become_password() == "from env"  # type: ignore[misc]
    both = from_vars("box", {"ansible_become_pass": "low", "ansible_become_password": "high"})
    assert both.become_password() == "high"  # type: ignore[misc]
    assert "high" not in repr(both)


def test_every_setting_names_who_sets_it_and_passwords_are_masked(cfg: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg.write_text("[defaults]\nremote_user = low\nremote_port = 2\nprivate_key_file = k\n")
    monkeypatch.setenv("ANSIBLE_REMOTE_USER", "middle")
    monkeypatch.setenv("ANSIBLE_BECOME_PASS", "geheim")
    monkeypatch.setenv("ANSIBLE_REMOTE_PORT", "3")
    found = environment.effective({"ansible_user": "high", "ansible_password": "geheim too"})
    assert found["user"] == ("high", "ansible_user in the inventory")
    assert found["port"] == ("3", "ANSIBLE_REMOTE_PORT in the environment")
    assert found["key_file"] == ("k", "private_key_file in [defaults] of ansible.cfg")
    assert found["password"] == ("***", "ansible_password in the inventory")
    assert found["become_password"] == ("***", "ANSIBLE_BECOME_PASS in the environment")
    assert "geheim" not in str(found)
    assert "become" not in found


def test_options_are_read_as_ssh_reads_them(cfg: Path, tmp_path: Path) -> None:
    config = "Host box\n  HostName 10.0.0.9\n  HostKeyAlias alias\nHost j\n  User jump\n  Port 44\n"
    known = tmp_path / "known hosts"
    key = tmp_path / "key"
    known.touch()
    key.touch()
    found = route(
        {
            "ansible_ssh_extra_args": f"-J me@j:45,other -o UserKnownHostsFile='\"{known}\"' "
            f"-o StrictHostKeyChecking=accept-new -i {key} -l u -p 9"
        },
        tmp_path,
        config,
    )
    assert (found.host, found.port, found.user, found.key_name, found.strict) == ("10.0.0.9", 9, "u", "alias", "accept-new")
    assert found.identity_files == (str(key),)
    assert found.known_hosts[0] == str(known)
    assert [(hop.host, hop.user, hop.port) for hop in found.via][:1] == [("j", "me", 45)]
    assert found.connect_timeout_s == 7


def test_host_key_checking_off(cfg: Path, tmp_path: Path) -> None:
    assert route({"ansible_host_key_checking": "false"}, tmp_path).strict == "no"
    assert route({}, tmp_path).strict == "ask"


def test_proxy_command_tokens(cfg: Path, tmp_path: Path) -> None:
    found = route({"ansible_port": 23}, tmp_path, "Host *\n  User me\n  ProxyCommand nc -X %% %h %p %r\n")
    assert found.proxy_command == "nc -X % box 23 me"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"ansible_connection": "docker"}, "docker"),
        ({"ansible_become_method": "su"}, "su"),
        ({"ansible_port": "ssh"}, "not a number"),
        ({"ansible_ssh_common_args": "-o 'User=x"}, "split into words"),
    ],
)
def test_wrong_settings_are_usage_errors(cfg: Path, variables: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        from_vars("box", variables)


def test_a_host_name_cannot_be_an_option(cfg: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be a host name"):
        route({"ansible_host": "-oProxyCommand=touch /tmp/x"}, tmp_path)


# known_hosts


def test_known_hosts_forms(tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, stdin=subprocess.DEVNULL)
    kind, blob = key.with_suffix(".pub").read_text().split()[:2]
    file = tmp_path / "known_hosts"
    file.write_text(
        f"# comment\n[box]:2222,10.0.0.* {kind} {blob}\n*.lab,!bad.lab {kind} {blob}\nbroken line\nplain {kind} %%%\n"
    )
    files = (str(file), str(tmp_path / "missing"))
    lines = {
        name: [key.line for key in hostkeys.lookup(name, files)]
        for name in ("[box]:2222", "box", "10.0.0.7", "a.lab", "bad.lab", "plain")
    }
    assert lines == {"[box]:2222": [2], "box": [], "10.0.0.7": [2], "a.lab": [3], "bad.lab": [], "plain": []}
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=False, capture_output=True)
    assert hostkeys.lookup("[box]:2222", files)
    printed = subprocess.run(["ssh-keygen", "-lf", f"{key}.pub"], check=True, capture_output=True, text=True).stdout.split()[1]
    assert hostkeys.fingerprint(hostkeys.lookup("[box]:2222", files)[0].blob) == printed


def test_a_recorded_key_is_found_again_by_ssh(tmp_path: Path) -> None:
    file = tmp_path / "new" / "known_hosts"
    for hashed in (False, True):
        hop = Route("box", "box", 2222, "me", known_hosts=(str(file),), strict="accept-new", hash_known_hosts=hashed)
        hostkeys.check(hop, "ssh-ed25519", b"blob", [])
        found = subprocess.run(["ssh-keygen", "-F", "[box]:2222", "-f", str(file)], check=False, capture_output=True, text=True)
        assert "[box]:2222 found: line 1" in found.stdout
        file.unlink()


def test_the_key_type_we_know_is_asked_for_first() -> None:
    known = [hostkeys.KnownKey("", "ssh-rsa", b"x", "f", 1)]
    offered = ("ssh-ed25519", "rsa-sha2-512", "rsa-sha2-256")
    assert hostkeys.preferred_types(known, offered) == ("rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519")


# sudo


@pytest.mark.parametrize(
    ("stderr", "sentence"),
    [
        ("sudo: sorry, you must have a tty to run sudo\n", "requiretty"),
        ("me is not in the sudoers file.  This incident will be reported.\n", "me is not in the sudoers file"),
        ("Sorry, user me is not allowed to execute '/bin/sh -c x' as root on box.\n", "not everything as root"),
        ("Sorry, user me may not run sudo on box.\n", "me may not run sudo"),
        ("sudo: a password is required\n", "asks me for a password"),
        ("sudo: interactive authentication is required\n", "asks me for a password"),
        ("/bin/sh: 1: exec: sudo: not found\n", "not installed"),
        ("sh: line 1: exec: sudo: not found\n", "not installed"),
        ("sudo: unknown user: llama\n", "does not know"),
        ("sudo: /usr/bin/sudo must be owned by uid 0 and have the setuid bit set\n", "setuid"),
        (
            "sudo: unable to resolve host box: Name or service not known\nsudo: a password is required\n",
            "asks me for a password",
        ),
    ],
)
def test_what_sudo_says(stderr: str, sentence: str) -> None:
    error = sudo.explain(stderr, "box", "me", "root")
    assert error is not None
    assert sentence in str(error)


def test_what_sudo_does_not_say() -> None:
    assert sudo.explain("sudo: unable to resolve host box\nTraceback ...", "box", "me", "root") is None


# this machine


def test_local_sessions_run_without_ssh() -> None:
    with Session(Target("here", (), LOCAL)) as session:
        assert session.run(["printf", "%s", "a b'c"]).stdout == "a b'c"
        assert session.run(["cat"], data=b"x" * 300_000).stdout == "x" * 300_000
        assert session.run(["false"]).status == 1
        assert session.read_file("/no/such/file") is None
        with pytest.raises(BigironError, match="KeyError"):
            session.run_program("bigiron.onhost.observe:main", {})
        with pytest.raises(BigironError, match="still not done after 0 s"):
            session.run(["sleep", "20"], timeout_s=0.3)


def test_run_many_keeps_order_and_errors_apart() -> None:
    def work(target: Target) -> str:
        if target.name == "bad":
            raise Unreachable("off", where="bad")
        with Session(target) as session:
            return session.run(["echo", target.name]).stdout.strip()

    targets = [Target(name, (), LOCAL) for name in ("b", "bad", "a")]
    results = run_many(targets, work, max_workers=2)
    assert list(results) == ["b", "bad", "a"]
    assert (results["b"], results["a"]) == ("b", "a")
    assert isinstance(results["bad"], Unreachable)
    assert run_many([], work) == {}


def test_run_many_raises_defects() -> None:
    def work(target: Target) -> str:
        raise KeyError(target.name)

    with pytest.raises(KeyError):
        run_many([Target("a", (), LOCAL)], work)
