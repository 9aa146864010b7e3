"""The base roots: one fresh Debian of each release as a cloud image would be (no compiler, no curl), built once and copied per host."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bigiron import paths
from bigiron.errors import BigironError
from bigiron.lab import apt, tools

PACKAGES = (
    "apt",
    "ca-certificates",
    "dbus",
    "iproute2",
    "libpam-systemd",
    "openssh-server",
    "python3",
    "sudo",
    "systemd",
    "systemd-sysv",
)
ADMIN = "admin"
"""The lab's sudo user (no password asked), for what must be tried without logging in as root."""

FILES = {
    "etc/ssh/sshd_config.d/lab.conf": (
        "UseDNS no\nMaxStartups 64\nMaxSessions 64\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n",
        0o644,
    ),
    f"etc/sudoers.d/{ADMIN}": (f"{ADMIN} ALL=(ALL:ALL) NOPASSWD: ALL\n", 0o440),
    "etc/resolv.conf": ("", 0o644),
    "etc/machine-id": ("", 0o444),
}
"""Path in the root -> (text, mode)."""

REMOVED = (
    "etc/ssh/ssh_host_*",
    "etc/hostname",
    "var/lib/dbus/machine-id",
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/dpkg/dpkg.cfg.d/99mmdebstrap",
)
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "systemd-networkd-wait-online.service",
)
"""Units that would hold the apt lock, or that look for disks and networks a container does not have."""

HOOKS = (
    'chroot "$1" systemctl enable systemd-networkd',
    f'chroot "$1" useradd --create-home --shell /bin/bash --user-group {ADMIN}',
)
_SMALLER = tuple(f"path-exclude=/usr/share/{folder}/*" for folder in ("man", "doc", "locale", "info"))


UNUSED_S = 14 * 86400
"""A base root that no lab has copied for so long goes when a new one is built."""


@dataclass(frozen=True)
class Recipe:
    """What a base root is made from; the same recipe gives the same cached folder."""

    release: str
    sources: str
    settings: str

    @property
    def digest(self) -> str:
        """Twelve hex digits that name the cached folder."""
        parts = [
            self.release,
            self.sources,
            self.settings,
            *PACKAGES,
            repr(FILES),
            *REMOVED,
            *MASKED,
            *HOOKS,
            *_SMALLER,
            os.uname().machine,
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]

    @property
    def path(self) -> Path:
        """Where the base root is, or will be."""
        return paths.cache_dir("lab") / f"base-{self.digest}"


def recipe(release: str) -> Recipe:
    """The recipe for Debian ``release`` here: the controller's own sources, made to fit, or none: then mmdebstrap's default mirror."""
    return Recipe(release, apt.controller_sources(release), apt.controller_settings())


def ensure(release: str, say: Callable[[str], None]) -> Path:
    """The base root of ``release``, built when it is not cached. Raises BigironError with mmdebstrap's last complaint."""
    wanted = recipe(release)
    cache = paths.cache_dir("lab")
    with contextlib.suppress(FileNotFoundError):
        os.utime(wanted.path)
        return wanted.path
    with paths.locked(cache / "base.lock", "waiting for another lab that is building the base root", say=say):
        if wanted.path.is_dir():
            return wanted.path
        for stale in cache.glob("tmp-base-*"):
            tools.remove_tree(stale)
        say(f"building the base root once: Debian {wanted.release} with mmdebstrap (about half a minute)")
        work = Path(tempfile.mkdtemp(prefix="tmp-base-", dir=cache))
        try:
            root = work / "root"
            _bootstrap(wanted, root, work)
            _finish(wanted, root)
            root.rename(wanted.path)
            os.utime(wanted.path)
        finally:
            for stale in cache.glob("tmp-base-*"):  # ours, and what an orphan of a killed run wrote in the meantime
                tools.remove_tree(stale)
        for old in cache.glob("base-*"):
            if old.is_dir() and old.stat().st_mtime < time.time() - UNUSED_S:
                tools.remove_tree(old)
    return wanted.path


def argv(wanted: Recipe, root: Path, work: Path) -> list[str]:
    """The mmdebstrap command. Package lists stay: a fresh cloud image has them, and ``apt-cache policy`` must answer."""
    command = ["mmdebstrap", "--variant=minbase", "--mode=root", "--format=directory", "--skip=cleanup/apt/lists"]
    command += [f"--include={','.join(PACKAGES)}", f"--aptopt={work / 'settings.conf'}", "--dpkgopt=force-unsafe-io"]
    command += [f"--dpkgopt={option}" for option in _SMALLER]
    command += [f"--customize-hook={hook}" for hook in HOOKS]
    command += [wanted.release, str(root)]
    return command + ([str(work / "lab.sources")] if wanted.sources else [])


def _bootstrap(wanted: Recipe, root: Path, work: Path) -> None:
    work.chmod(0o755)  # apt's sandbox user has to reach the root inside
    (work / "settings.conf").write_text(wanted.settings, encoding="utf-8")
    (work / "lab.sources").write_text(wanted.sources, encoding="utf-8")
    log = work / "log"
    with log.open("wb") as stream:
        done = subprocess.run(
            tools.bound(argv(wanted, root, work)),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=tools.environment(),
            timeout=1200,
            check=False,
        )
    if done.returncode != 0:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.startswith("E:")]
        raise BigironError(
            lines[0] if lines else f"mmdebstrap exited with {done.returncode}",
            where="mmdebstrap",
            hint="does apt-get update work on this machine? the lab uses the same sources",
        )


def _finish(wanted: Recipe, root: Path) -> None:
    for pattern in REMOVED:
        for path in root.glob(pattern):
            path.unlink()
    for name, (text, mode) in FILES.items():
        write(root / name, text, mode)
    write(root / "etc/apt/apt.conf.d/50lab", wanted.settings)
    write(root / "etc/dpkg/dpkg.cfg.d/50lab", "".join(f"{option}\n" for option in ("force-unsafe-io", *_SMALLER)))
    for unit in MASKED:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file into a root that is not running, making its folder; replaces whatever was there, never through a link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
