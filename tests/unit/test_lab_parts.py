"""What the lab asks of the machine, how a host is booted, and that its pins agree with the committed inventory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from bigiron import paths
from bigiron.errors import BigironError, Refused, Unreachable, UsageError
from bigiron.lab import base, cgroups, lab, nspawn, seed, state, tools

GROUP_VARS = paths.PROJECT / "inventory/lab/group_vars/lab"


def test_the_inventory_pins_what_the_mirror_serves() -> None:
    model: dict[str, Any] = yaml.safe_load((GROUP_VARS / "model.yml").read_text())
    source: dict[str, Any] = yaml.safe_load((GROUP_VARS / "llama_cpp.yml").read_text())
    assert (model["model_repo"], model["model_revision"], model["model_quant"]) == (seed.REPO, seed.REVISION, seed.QUANT)
    assert source["llama_cpp_source_sha256"] == seed.SOURCE.sha256
    assert source["llama_cpp_source_url"].endswith(f"/sources/{seed.SOURCE.file}")
    assert source["llama_cpp_ccache_dir"] == nspawn.CCACHE_IN_HOST


def test_another_system_is_refused_with_what_to_do_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(Refused, match="Darwin") as caught:
        lab.up(1, print)
    assert "--inventory" in str(caught.value.hint)


def test_no_root_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(state, "LAB", tmp_path / "lab")
    with pytest.raises(Refused, match="root"):
        lab.up(1, print)
    assert not (tmp_path / "lab").exists()


def test_no_apt_and_something_missing_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(tools, "find", lambda program: None if program in {"nginx", "apt-get"} else f"/usr/bin/{program}")
    assert "nginx-light" in str(tools.unmet())
    monkeypatch.setattr(tools, "find", lambda program: None if program == "nginx" else f"/usr/bin/{program}")
    assert tools.unmet() is None


@pytest.mark.parametrize("name", ["web01", "lab1", "lab100"])
def test_a_host_the_lab_cannot_make_is_wrong_usage(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        lab.up(0, print, names=["lab01", name])


def test_a_shell_on_a_host_that_is_not_up_says_how_to_bring_it_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(state, "LAB", tmp_path)
    with pytest.raises(Unreachable, match="down") as caught:
        lab.ssh_argv("lab03")
    assert "lab.up --host lab03" in str(caught.value.hint)


def test_down_of_a_lab_that_was_never_up_does_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(state, "LAB", tmp_path / "lab")
    monkeypatch.setattr(state, "HOSTS", tmp_path / "lab/hosts")
    monkeypatch.setattr(state, "INVENTORY_STATE", tmp_path / "90-state.yml")
    monkeypatch.setattr(state, "BRIDGE", "bi-none00")
    said: list[str] = []
    result = lab.down(said.append)
    assert (said, result.hosts, result.bridge, result.mirror_state) == ([], [], None, "absent")
    assert json.loads(json.dumps(result.to_json()))["hosts"] == []
    assert not (tmp_path / "lab").exists()


def test_up_hosts_cost_no_second_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("up was called")

    me = state.process(1)
    hosts = {"lab01": state.Host("10.1.2.11", me)}
    monkeypatch.setattr(state, "load", lambda: state.State("x", "10.1.2.0/24", "10.1.2.1", hosts, me, "http://10.1.2.1"))
    monkeypatch.setattr(state, "INVENTORY_STATE", tmp_path / "90-state.yml")
    monkeypatch.setattr(lab, "up", fail)
    (tmp_path / "90-state.yml").touch()
    lab.ensure_for(["lab01"], print)
    with pytest.raises(AssertionError, match="up was called"):
        lab.ensure_for(["lab01", "lab02"], print)
    (tmp_path / "90-state.yml").unlink()
    with pytest.raises(AssertionError, match="up was called"):
        lab.ensure_for(["lab01"], print)


def test_the_generated_inventory_keeps_host_key_checking_on() -> None:
    current = state.State("x", "10.1.2.0/24", "10.1.2.1", {"lab01": state.Host("10.1.2.11")}, None, "http://10.1.2.1:8780")
    group = lab.inventory(current)["lab"]
    assert group["hosts"] == {"lab01": {"ansible_host": "10.1.2.11"}}
    assert group["vars"]["lab_mirror"] == "http://10.1.2.1:8780"
    assert "StrictHostKeyChecking=yes" in group["vars"]["ansible_ssh_common_args"]
    assert str(state.KNOWN_HOSTS) in group["vars"]["ansible_ssh_common_args"]


def test_a_host_is_booted_on_the_bridge_and_unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigiron.lab.cgroups.needed", lambda: True)
    command = nspawn.argv("lab01")
    assert {"--boot", "--register=no", "--keep-unit", "--link-journal=no", f"--network-bridge={state.BRIDGE}"} <= set(command)
    assert any(word.endswith(f":{nspawn.CCACHE_IN_HOST}") for word in command)
    monkeypatch.setattr("bigiron.lab.cgroups.needed", lambda: False)
    assert "--keep-unit" not in nspawn.argv("lab01")


def test_a_group_that_goes_while_we_look_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [tmp_path])
    host = tmp_path / cgroups.PARENT / "lab01"
    for name in ("going.scope", "staying.scope"):
        (host / name).mkdir(parents=True)
    (host / "staying.scope" / "cgroup.procs").write_text(f"{os.getpid()}\n")
    scandir = os.scandir

    def late(folder: Any) -> Any:
        if Path(folder).name == "going.scope":
            Path(folder).rmdir()
        return scandir(folder)

    monkeypatch.setattr("os.scandir", late)
    assert [one.pid for one in cgroups.survivors("lab01")] == [os.getpid()]
    assert not (host / "going.scope").exists()


def test_a_recipe_names_its_inputs() -> None:
    one = base.Recipe("bookworm", "", "")
    assert one.digest == base.Recipe("bookworm", "", "").digest
    assert len({one.digest, base.Recipe("trixie", "", "").digest, base.Recipe("bookworm", "x", "").digest}) == 3


def test_sources_are_given_to_mmdebstrap_only_when_there_are_some(tmp_path: Path) -> None:
    assert base.argv(base.Recipe("bookworm", "", ""), tmp_path / "root", tmp_path)[-2:] == ["bookworm", str(tmp_path / "root")]
    assert base.argv(base.Recipe("bookworm", "x", ""), tmp_path / "root", tmp_path)[-1] == str(tmp_path / "lab.sources")


def test_a_cached_download_is_used_and_a_damaged_one_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    package = seed.Package("x", "1", "x-1.tar.gz", "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
    cached = paths.cache_dir("sources") / package.file
    cached.write_text("hello")
    calls: list[list[str]] = []

    class Done:
        returncode, stdout, stderr = 1, "", "noise\nERROR: No matching distribution found for x==1\n"

    monkeypatch.setattr("subprocess.run", lambda command, **_: calls.append(command) or Done())
    assert seed.download([package], print, what="x", binary=False) == [cached]
    assert calls == []
    cached.write_text("hellx")
    said: list[str] = []
    with pytest.raises(BigironError, match="No matching distribution") as caught:
        seed.download([package], said.append, what="the thing", binary=False)
    assert said == ["downloading the thing"]
    assert package.file in str(caught.value.hint)
    assert calls[0][calls[0].index("--no-binary") + 1] == "x", "':all:' would compile pip's build tools too"
    assert list(paths.cache_dir("sources").glob("tmp-*")) == []
