"""macOS: rendered and compared with the systemd unit only; no Mac was there to run it."""

from __future__ import annotations

import plistlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.hostfacts import KEY_PATH, fact, machine

from bigiron.errors import Refused
from bigiron.machine.description import OperatingSystem
from bigiron.onhost import probe
from bigiron.onhost.system import Tree
from bigiron.parts import planner
from bigiron.plan import build_options, macos
from bigiron.plan.build_options import Toolchain
from bigiron.render import render


def variables(**changes: Any) -> dict[str, Any]:
    plan = planner.plan_hosts([fact()], [])["a"]
    assert isinstance(plan, planner.HostPlan)
    return {**plan.variables, **changes}


def test_launchd_runs_what_systemd_runs() -> None:
    given = variables(llama_server_environment={"LANG": "C.UTF-8", "A": 'b "c" <d> & $e %f'}, llama_server_lock_memory=True)
    unit, service = render("llama-server.service", given), plistlib.loads(macos.plist(given))
    argv = service["ProgramArguments"]
    assert argv[:4] == ["/usr/bin/env", "-i", 'A=b "c" <d> & $e %f', "LANG=C.UTF-8"]
    at = given["llama_server_argv"].index("--api-key-file") + 1
    assert argv[4:] == [*given["llama_server_argv"][:at], KEY_PATH, *given["llama_server_argv"][at + 1 :]]
    assert not any("/run/credentials" in word for word in argv)
    assert f"User={service['UserName']}" in unit.splitlines()
    assert f"LimitNOFILE={service['SoftResourceLimits']['NumberOfFiles']}" in unit.splitlines()
    assert ("LimitMEMLOCK=infinity" in unit.splitlines()) == ("MemoryLock" in service["HardResourceLimits"])
    assert f"UMask={service['Umask']:04o}" in unit.splitlines()
    assert f"TimeoutStopSec={service['ExitTimeOut']}s" in unit.splitlines()
    assert ("Restart=on-failure" in unit.splitlines()) == (service["KeepAlive"] == {"SuccessfulExit": False})
    assert service["ThrottleInterval"] >= 10
    assert "MemoryLock" not in plistlib.loads(macos.plist({**given, "llama_server_lock_memory": False}))["HardResourceLimits"]


def test_a_loaded_service_is_taken_out_first_and_looked_at_afterwards() -> None:
    given = variables()
    words = [step[1] for step in macos.load(given, loaded=True)]
    assert words == ["bootout", "bootstrap", "print"]
    fresh = macos.load(given, loaded=False)
    assert fresh[0] == ["launchctl", "bootstrap", "system", "/Library/LaunchDaemons/bigiron.llama-server-main.plist"]
    assert not any("sysctl" in word for step in fresh for word in step)  # wired memory is left as macOS has it


@pytest.mark.parametrize(
    ("selected", "git", "way_out"),
    [
        ((0, "/Library/Developer/CommandLineTools\n"), (0, "git version 2.39.5\n"), None),
        ((2, "xcode-select: error: unable to get active developer directory\n"), (1, ""), "xcode-select --install"),
        ((0, "/Applications/Xcode.app\n"), (69, "You have not agreed to the Xcode license.\n"), "sudo xcodebuild -license accept"),
        ((0, "/Applications/Xcode.app\n"), (1, "the Xcode/iOS license requires admin\n"), "sudo xcodebuild -license accept"),
    ],
)  # fmt: skip
def test_command_line_tools(selected: tuple[int, str], git: tuple[int, str], way_out: str | None) -> None:
    found = macos.tools_problem(selected, git)
    assert (found.hint if found else None) == way_out


def test_homebrew_never_runs_as_root() -> None:
    assert macos.brew(["install", "cmake"], "ada", 501) == ["sudo", "-H", "-n", "-u", "ada", "--", "brew", "install", "cmake"]
    for user, uid in (("root", 501), ("ada", 0)):
        with pytest.raises(Refused, match="root"):
            macos.brew(["list"], user, uid)


def test_metal_is_compiled_in_with_its_shaders() -> None:
    source = build_options.Source("http://mirror/x.tar.gz", "0" * 64, "x", 11434, "b11434")
    options, _ = build_options.options("arm64", [], source, web_ui=False, extra={}, toolchains=[Toolchain("metal", "1")])
    assert (options["GGML_METAL"], options["GGML_METAL_EMBED_LIBRARY"]) == ("ON", "ON")


def test_the_observer_names_a_mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert probe.operating_system(Tree(str(tmp_path)))["id"] == "macos"


@pytest.mark.parametrize("wish", ["auto", "metal"])
def test_a_mac_is_refused_before_anything_is_asked(wish: str) -> None:
    mac = replace(machine(os=OperatingSystem("macos", "15.3", "macOS 15.3", "")), init="launchd", arch="arm64")
    found = planner.plan_hosts([fact(box=mac, llama_cpp_backend=wish)], [])["a"]
    assert isinstance(found, Refused)
    assert "macOS" in found.what
    assert "does not provision" in found.what


def test_metal_on_linux_is_told_what_it_is() -> None:
    plan = planner.plan_hosts([fact(llama_cpp_backend="metal")], [])["a"]
    assert isinstance(plan, planner.HostPlan)
    (refusal,) = plan.planned.refusals
    assert "metal" in refusal.what
