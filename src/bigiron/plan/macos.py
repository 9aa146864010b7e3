"""macOS: the service as launchd has it, and what a Mac must have before llama.cpp is compiled there. Nothing calls launchd or a Mac yet.

This version provisions Debian-like hosts only (`bigiron.parts.base.unsuited`); the functions here are what a part for Metal stands on.
"""

from __future__ import annotations

import plistlib
from collections.abc import Mapping
from typing import Any

from bigiron.errors import Refused

THROTTLE_S = 10
"""launchd's own smallest pause between two starts (launchd.plist(5), ThrottleInterval)."""
UNLIMITED = 2**63 - 1
FOLDER = "/Library/LaunchDaemons"
LICENCE = "license"


def label(variables: Mapping[str, Any]) -> str:
    return f"bigiron.llama-server-{variables['llama_server_service']}"


def plist(variables: Mapping[str, Any]) -> bytes:
    """The service of the role llama_server's variables as a property list: what the systemd unit says, in launchd's words.

    launchd has no credentials: the key is read where it lies, and must belong to the service user alone. It has no sandbox of systemd's
    kind either.
    """
    service, user = variables["llama_server_service"], variables["llama_server_user"]
    key = f"{variables['llama_server_config_dir']}/credentials/{service}.key"
    given = f"/run/credentials/llama-server-{service}.service/api-key"
    argv = [key if word == given else word for word in variables["llama_server_argv"]]
    environment = [f"{name}={value}" for name, value in sorted(variables["llama_server_environment"].items())]
    limits = {"NumberOfFiles": 65536, **({"MemoryLock": UNLIMITED} if variables["llama_server_lock_memory"] else {})}
    log = f"/var/log/llama-server-{service}.log"
    content = {
        "Label": label(variables),
        "ProgramArguments": ["/usr/bin/env", "-i", *environment, *argv],
        "UserName": user,
        "GroupName": user,
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": THROTTLE_S,
        "ExitTimeOut": 60,
        "SoftResourceLimits": limits,
        "HardResourceLimits": limits,
        "Umask": 0o077,
        # any other kind is slowed down when nobody sits at the machine
        "ProcessType": "Interactive",
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    return plistlib.dumps(content)


def load(variables: Mapping[str, Any], *, loaded: bool) -> list[list[str]]:
    """What makes launchd run the present property list; ``loaded`` is whether ``launchctl print`` finds the service.

    ``bootstrap`` of a loaded service ends with "5: Input/output error", and a property list that changed is read on bootstrap alone.
    """
    target, path = f"system/{label(variables)}", f"{FOLDER}/{label(variables)}.plist"
    away = [["launchctl", "bootout", target]] if loaded else []
    return [*away, ["launchctl", "bootstrap", "system", path], ["launchctl", "print", target]]


def tools_problem(selected: tuple[int, str], git: tuple[int, str]) -> Refused | None:
    """What is wrong with the command line tools, from exit code and output of ``xcode-select -p`` and ``git --version``. Xcode is not needed."""
    if selected[0] != 0 or not selected[1].strip().startswith("/"):
        return Refused(
            "the command line tools are not installed (xcode-select -p names no folder)", hint="xcode-select --install"
        )
    if git[0] == 69 or LICENCE in git[1].lower():
        return Refused(
            "the licence of Xcode was not accepted, and no tool of it runs until then", hint="sudo xcodebuild -license accept"
        )
    return None


def brew(argv: list[str], user: str, owner_uid: int) -> list[str]:
    """The command that runs Homebrew as its owner, whoever connects. Raises Refused where that is root: Homebrew refuses it, rightly."""
    if user == "root" or owner_uid == 0:
        raise Refused("Homebrew does not run as root", hint="name the user that Homebrew belongs to: ls -ld $(brew --prefix)")
    return ["sudo", "-H", "-n", "-u", user, "--", "brew", *argv]
