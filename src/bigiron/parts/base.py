"""The host itself: packages, the service account, the folders that the parts stand in, and a person's plain files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from bigiron.errors import Refused
from bigiron.machine.description import Machine
from bigiron.onhost import aptsources
from bigiron.parts.part import HOST, Facts, Planned, Resource, Watched, file_resource
from bigiron.plan import devices, reboot
from bigiron.plan.apt import Apt
from bigiron.plan.places import MADE_FOLDERS, kept

STAGE = HOST
USER = "llama"
PACKAGES = ("ca-certificates", "libgomp1")


def packages(_facts: Facts) -> tuple[str, ...]:
    return PACKAGES


def unsuited(machine: Machine) -> Refused | None:
    """Why this machine cannot be a llama.cpp host at all."""
    if machine.os.id == "macos":
        return Refused(
            f"{machine.os.pretty or 'macOS'}: this version does not provision Macs, it plans and builds on Debian and Ubuntu only",
            hint="./inv plan --machine FILE says what fits on a machine that it cannot provision (docs/plan.md)",
        )
    if machine.init != "systemd":
        return Refused(
            f"PID 1 is {machine.init or 'unknown'}, not systemd: llama-server needs a unit to run under",
            hint="boot the host with systemd (a container needs its own init), or choose another host",
        )
    if not machine.os.debian_like:
        return Refused(
            f"{machine.os.pretty or machine.os.id or 'this system'} is not Debian-like",
            hint="this version installs packages with apt only; use Debian or Ubuntu on this host",
        )
    return None


def watch(wish: Mapping[str, Any]) -> Watched:
    watched: Watched = {
        "package": [_split(each)[0] for each in wish["base_extra_packages"]],
        "user": [USER],
        "file": [MADE_FOLDERS, *(entry["path"] for entry in wish["base_files"])],
        "disk": ["/usr"],
    }
    return {**watched, "boot": []} if wish["base_watch_reboot"] else watched


def plan(facts: Facts, _so_far: Planned) -> Planned:
    wanted = sorted({*facts.packages, *facts.wish["base_extra_packages"]})
    files = [_file(entry, facts.observed["paths"].get(entry["path"], {})) for entry in facts.wish["base_files"]]
    resources = [*_apt_files(facts.apt), *(_package(each, facts.apt.holds) for each in wanted)]
    member = {"groups": list(facts.groups)} if facts.groups else {}
    resources.append(Resource("user", USER, "base", {"group": USER, "shell": "/usr/sbin/nologin", **member}))
    resources += [Resource("directory", entry["path"], "base", _status(entry, facts.observed)) for entry in facts.directories]
    resources += [
        file_resource("base", entry["path"], entry["content"], entry["mode"], entry["owner"], entry["group"]) for entry in files
    ]
    refusals = []
    if facts.observed.get("uid"):
        what = f"the connection acts as user {facts.observed['uid']}, not as root, and cannot change this host"
        refusals.append(Refused(what, hint="set ansible_become: true (sudo), or connect as root"))
    refusals += [problem for one in facts.apt.repositories if (problem := one.refusal())]
    refusals += devices.refusals(facts.groups, facts.observed)
    return Planned(
        {
            "base_packages": wanted,
            "base_user": USER,
            "base_directories": [dict(entry) for entry in facts.directories],
            "base_files": files,
            **facts.apt.variables(),
            **({"base_user_groups": list(facts.groups)} if facts.groups else {}),
        },
        resources,
        refusals=refusals,
        reboot=_reboot(facts),
    )


def _reboot(facts: Facts) -> list[str]:
    if not facts.wish["base_watch_reboot"]:
        return []
    boot = facts.observed["boot"]
    return [each for each in (reboot.required(boot), reboot.newer_kernel(boot)) if each]


def _package(package: str, holds: Collection[str]) -> Resource:
    name, version = _split(package)
    return Resource("package", name, "base", {"version": version, **({"hold": True} if name in holds else {})})


def _apt_files(apt: Apt) -> list[Resource]:
    variables = apt.variables()
    if not variables:
        return []
    repositories, pins = variables["base_repositories"], variables["base_pins"]
    listed = {aptsources.sources_path(one["name"]): {"uri": one["uri"], "suites": one["suites"]} for one in repositories}
    keys = [
        Resource(
            "apt", aptsources.key_path(one.name), "base", {"fingerprints": [each.replace(" ", "") for each in one.fingerprints]}
        )
        for one in apt.repositories
    ]
    files = aptsources.wanted_files(repositories, pins, apt.holds)
    return [*keys, *(Resource("apt", path, "base", {"text": text, **listed.get(path, {})}) for path, text in files.items())]


def _file(entry: Mapping[str, Any], have: Mapping[str, Any]) -> dict[str, Any]:
    """A plain file; without a mode it keeps the one it has, as the role does it."""
    return {"owner": "root", "group": "root", **entry, "mode": entry.get("mode") or have.get("mode") or "0644"}


def _status(entry: Mapping[str, Any], observed: Mapping[str, Any]) -> dict[str, str]:
    """What is wanted of a folder: that it is there and, unless a person brought it, its owner and mode."""
    theirs = entry.get("keep") and kept(entry["path"], observed)
    return {} if theirs else {key: entry[key] for key in ("owner", "group", "mode")}


def _split(package: str) -> tuple[str, str]:
    """Name and wanted version ("" for any) of ``name`` or ``name=version``."""
    name, _, version = package.partition("=")
    return name, version


def lock(facts: Facts, variables: Mapping[str, Any]) -> dict[str, Any]:
    have = facts.observed["packages"]
    names = [_split(each)[0] for each in variables["base_packages"]]
    return {"packages": {name: have[name] for name in names if isinstance(have.get(name), str)}}


def remove(_wish: Mapping[str, Any], _models: bool) -> dict[str, Any]:
    return {"base_user": USER}
