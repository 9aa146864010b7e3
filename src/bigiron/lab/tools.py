"""The programs the lab needs on the controller: found, or installed with apt when we are root."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bigiron.errors import BigironError, Refused

PROGRAMS: Mapping[str, str] = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "ip": "iproute2",
    "nginx": "nginx-light",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "setpriv": "util-linux",
}
"""Program -> the Debian package that brings it."""

INSTEAD = "point --inventory at a real host, or use an inventory entry with ansible_connection: local"
_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


def find(program: str) -> str | None:
    """Where ``program`` is; a root shell without /usr/sbin on its PATH (su, cron) finds it all the same."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":" + _SYSTEM_PATH)


def missing() -> dict[str, str]:
    """Programs that are not there -> the package that brings them."""
    return {program: package for program, package in PROGRAMS.items() if find(program) is None}


def unmet() -> str | None:
    """Why this machine cannot run a lab, or None when it can (missing programs that apt can install do not count)."""
    if platform.system() != "Linux":
        return f"the lab needs Linux (this is {platform.system()})"
    if os.geteuid() != 0:
        return "the lab needs root (network bridge and booted containers)"
    if missing() and find("apt-get") is None:
        return (
            "the lab needs " + ", ".join(sorted(set(missing().values()))) + ", and this machine has no apt-get to install them"
        )
    return None


def ensure(say: Callable[[str], None]) -> None:
    """Make sure every program is there. Raises Refused when this machine cannot have a lab, BigironError when apt fails."""
    why = unmet()
    if why is not None:
        raise Refused(why, hint=INSTEAD)
    packages = sorted(set(missing().values()))
    if packages:
        say("installing " + ", ".join(packages) + " with apt-get")
        _install(packages)
    still = missing()
    if still:
        raise BigironError(
            f"{', '.join(sorted(still))} still missing after installing {', '.join(packages)}", hint="install them by hand"
        )


def run(
    argv: Sequence[str], *, text: str | None = None, timeout_s: float = 120, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, output captured. With ``check``, raises BigironError with its error line when it fails."""
    program = find(argv[0]) or argv[0]
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env=environment(),
        )
    except FileNotFoundError:
        raise BigironError(f"{argv[0]} is not installed", hint="run ./inv lab.up, which installs it") from None
    except subprocess.TimeoutExpired:
        raise BigironError(f"{argv[0]} did not end within {timeout_s:.0f} s", where=" ".join(argv[:4])) from None
    if check and done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        telling = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else f"exit {done.returncode}")
        raise BigironError(telling, where=" ".join(argv[:4]))
    return done


def bound(argv: Sequence[str], sig: str = "TERM") -> list[str]:
    """``argv``, sent ``sig`` by the kernel when we die, even by SIGKILL: a killed run must not leave a writer behind."""
    return [find("setpriv") or "setpriv", "--pdeathsig", sig, find(argv[0]) or argv[0], *argv[1:]]


def remove_tree(path: Path) -> None:
    """Remove a root folder and all in it. Raises BigironError when something is mounted inside: that is not ours to delete."""
    inside = f"{path}/".encode()
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        mount = line.split()[4].replace(b"\\040", b" ")
        if mount.startswith(inside):
            raise BigironError(
                f"{mount.decode(errors='replace')} is mounted", where=str(path), hint="unmount it, then try again"
            )
    shutil.rmtree(path, ignore_errors=True)


def environment() -> dict[str, str]:
    """Our environment with plain messages and the system folders on PATH."""
    return {**os.environ, "LC_ALL": "C", "PATH": os.environ.get("PATH", "") + ":" + _SYSTEM_PATH}


def _install(packages: Sequence[str]) -> None:
    """Install without starting anything: a system nginx on port 80 is not what the person asked for.

    apt knows no such switch; Debian's way is a ``policy-rc.d`` that says 101 ("do not"). A RUNLEVEL or a diversion would touch
    the machine more, so the file is put there only when none is, and taken away in any case.
    """
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    options = ["-o", "Dpkg::Options::=--force-confold", "-o", "DPkg::Lock::Timeout=300"]
    environment_ = {**environment(), "DEBIAN_FRONTEND": "noninteractive"}
    log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed below
    try:
        if ours:
            policy.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
            policy.chmod(0o755)
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            done = subprocess.run(
                ["apt-get", "-q", *options, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment_,
                timeout=900,
                check=False,
            )
            if done.returncode != 0 and arguments[0] == "install":
                log.seek(0)
                lines = [line for line in log.read().splitlines() if line.startswith("E:")] or ["apt-get failed"]
                raise BigironError(
                    lines[-1], where="apt-get install", hint="install by hand: apt-get install " + " ".join(packages)
                )
    finally:
        log.close()
        if ours:
            policy.unlink(missing_ok=True)
