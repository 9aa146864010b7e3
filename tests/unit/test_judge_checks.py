"""The judge's checks on facts recorded from a lab host: all true as recorded, each of them false once its thing is broken."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bigiron import judge
from bigiron.errors import BigironError
from bigiron.fleet.connection import Connection
from bigiron.judge import suite, unit_settings
from bigiron.judge.verdict import Check
from bigiron.paths import PROJECT

RECORDED = json.loads((PROJECT / "tests" / "fixtures" / "judge" / "lab-host.json").read_text(encoding="utf-8"))
UNIT = "/etc/systemd/system/llama-server-main.service"
KEY = "/etc/bigiron/credentials/main.key"
SHARD = "Q4/tiny-00002-of-00003.gguf"
Facts = dict[str, Any]
Break = Callable[[Facts, Facts], object]


class Somewhere:
    connection = Connection(kind="local", name="here", host="localhost", become=False)


def run(hosts: dict[str, tuple[Facts, Facts]], *, deep: bool = True) -> dict[str, dict[str, Check]]:
    """The checks by host and id, of hosts with these (facts, expect)."""
    to_judge = [judge.HostToJudge(name, Somewhere(), expect) for name, (_, expect) in hosts.items()]
    verdicts = judge.run(to_judge, deep=deep, collect=lambda host, request: hosts[host.name][0])
    found = {verdict.host: {check.id: check for check in verdict.checks} for verdict in verdicts}
    assert [len(checks) for checks in found.values()] == [len(verdict.checks) for verdict in verdicts]
    return found


def judged(facts: Facts, expect: Facts, *, deep: bool = True) -> dict[str, Check]:
    return run({"lab04": (facts, expect)}, deep=deep)["lab04"]


@pytest.fixture
def facts() -> Facts:
    return copy.deepcopy(RECORDED["facts"])


@pytest.fixture
def expect() -> Facts:
    return copy.deepcopy(RECORDED["expect"])


def put(*path: Any) -> Break:
    """A break that sets the fact at ``path[:-1]`` to ``path[-1]``."""

    def change(facts: Facts, expect: Facts) -> None:
        place = facts
        for key in path[:-2]:
            place = place[key]
        place[path[-2]] = path[-1]

    return change


def planned(key: str, value: Any) -> Break:
    return lambda facts, expect: expect.__setitem__(key, value)


def gone(*path: str) -> Break:
    return put(*path, {"error": "it is missing", "missing": True})


def first_file(facts: Facts) -> Facts:
    return dict(facts["release"]["manifest"]["files"]["bin/llama-server"])


BREAKS: dict[str, list[Break]] = {
    "user.exists": [put("user", {"missing": True})],
    "user.system": [put("user", "uid", 1000), put("user", "uid", 0)],
    "user.shell": [put("user", "shell", "/bin/bash")],
    "user.group": [put("user", "group", "users")],
    "user.unprivileged": [put("user", "groups", ["docker"])],
    "user.locked": [put("user", "locked", False)],
    "directory.type:/opt/bigiron": [gone("paths", "/opt/bigiron"), put("paths", "/opt/bigiron", "type", "link")],
    "directory.owner:/opt/bigiron": [put("paths", "/opt/bigiron", "owner", "llama")],
    "directory.mode:/opt/bigiron": [put("paths", "/opt/bigiron", "mode", "0777")],
    "file.type:/etc/motd": [gone("paths", "/etc/motd")],
    "file.owner:/etc/motd": [put("paths", "/etc/motd", "group", "llama")],
    "file.mode:/etc/motd": [put("paths", "/etc/motd", "mode", "0600")],
    "file.content:/etc/motd": [put("digests", "/etc/motd", "0" * 64), gone("digests", "/etc/motd")],
    f"unit-file.type:{UNIT}": [gone("paths", UNIT)],
    f"unit-file.owner:{UNIT}": [put("paths", UNIT, "owner", "llama")],
    f"unit-file.mode:{UNIT}": [put("paths", UNIT, "mode", "0666")],
    f"key.type:{KEY}": [gone("paths", KEY), put("paths", KEY, "type", "link")],
    f"key.owner:{KEY}": [put("paths", KEY, "owner", "llama")],
    f"key.mode:{KEY}": [put("paths", KEY, "mode", "0640")],
    "release.current": [
        put("release", "current", {"type": "directory"}),
        put("release", "current", "target", "releases/other"),
        gone("release", "current"),
    ],
    "release.manifest": [gone("release", "manifest"), put("release", "manifest", "files", {})],
    "release.fingerprint": [
        put("release", "manifest", "identity", "compiler", "g++ 13"),
        planned("llama_cpp_fingerprint", "0" * 16),
    ],
    "release.identity": [put("release", "manifest", "identity", "libc", "glibc 2.41")],
    "release.files": [
        put("release", "files", "bin/llama-server", "size", 1),
        put("release", "files", "bin/llama-server", "sha256", "0" * 64),
        put("release", "files", "bin/llama-server", "type", "link"),
        lambda facts, expect: facts["release"]["files"].pop("bin/llama-server"),
    ],
    "release.strangers": [put("release", "files", "lib/evil.so", {"type": "file", "owner": "root", "mode": "0644"})],
    "release.safe": [
        put("release", "files", "bin/llama-server", "mode", "0775"),
        put("release", "parents", "/opt", "mode", "1777"),
        put("release", "files", "bin", "owner", "llama"),
    ],
    "release.version": [
        put("release", "version", {"rc": -4, "out": ""}),
        put("release", "version", {"rc": 127, "out": "error while loading shared libraries: libllama.so: cannot open"}),
        put("release", "version", "out", "version: 114340 (x)"),
        gone("release", "version"),
    ],
    "release.service-user": [put("release", "version", "rc", 126)],
    "release.libraries": [put("release", "ldd", {"rc": 0, "out": "libggml.so => not found\nlibc.so.6 => /lib/libc.so.6"})],
    f"shard.present:{SHARD}": [gone("model", "files", SHARD), put("model", "files", SHARD, "type", "link")],
    f"shard.size:{SHARD}": [put("model", "files", SHARD, "size", 199999)],
    f"shard.recorded:{SHARD}": [
        put("model", "record", "files", SHARD, "sha256", "0" * 64),
        lambda facts, expect: facts["model"]["record"]["files"].pop(SHARD),
        gone("model", "record"),
    ],
    f"shard.unchanged:{SHARD}": [put("model", "files", SHARD, "mtime_ns", 1), put("model", "files", SHARD, "inode", 1)],
    f"shard.readable:{SHARD}": [put("model", "files", SHARD, "mode", "0600")],
    f"shard.sha256:{SHARD}": [put("model", "files", SHARD, "sha256", "0" * 64)],
    "model.leftovers": [put("model", "leftovers", ["Q4/x.gguf.part"])],
    "model.entry": [put("process", "cmdline", ["llama-server", "--model", "/other.gguf"])],
    "unit.loaded": [put("show", "LoadState", "not-found")],
    "unit.text": [put("texts", UNIT, "[Service]\nExecStart=/bin/true\n"), gone("texts", UNIT)],
    "unit.path": [
        put("show", "FragmentPath", "/run/systemd/system/llama-server-main.service"),
        put("show", "FragmentPath", ""),
    ],
    "unit.enabled": [put("show", "UnitFileState", "disabled"), put("show", "UnitFileState", "")],
    "unit.active": [put("show", "ActiveState", "failed"), put("show", "SubState", "auto-restart")],
    "unit.stable": [put("show_later", "NRestarts", "7"), put("show_later", "MainPID", "99999")],
    "unit.reloaded": [put("show", "NeedDaemonReload", "yes")],
    "unit.type": [put("show", "Type", "notify")],
    "unit.patient": [
        lambda facts, expect: facts["show"].update(ExecStartPost="{ path=/bin/wait }", TimeoutStartUSec="1min 30s"),
    ],
    "unit.effective:StartLimitIntervalSec": [put("show", "StartLimitIntervalUSec", "10s")],
    "unit.effective:StartLimitBurst": [put("show", "StartLimitBurst", "6")],
    "unit.effective:RestrictAddressFamilies": [put("show", "RestrictAddressFamilies", "AF_INET AF_INET6 AF_NETLINK")],
    "unit.effective:LimitNOFILE": [put("show", "LimitNOFILE", "1024")],
    "unit.effective:WantedBy": [put("show", "WantedBy", "")],
    "unit.hardened:NoNewPrivileges": [put("show", "NoNewPrivileges", "no")],
    "unit.hardened:UMask": [put("show", "UMask", "0022")],
    "unit.hardened:CapabilityBoundingSet": [put("show", "CapabilityBoundingSet", "cap_net_raw")],
    "unit.hardened:SystemCallFilter": [
        put("show", "SystemCallFilter", ""),
        put("show", "SystemCallFilter", "read write chroot"),
    ],
    "unit.exposure": [put("security", "out", "→ Overall exposure level for x.service: 2.6 OK")],
    "unit.lint": [put("lint", {"rc": 0, "out": f"{UNIT}:7: Unknown key 'Foo' in section [Service], ignoring."})],
    "process.running": [gone("process")],
    "process.program": [
        put("process", "exe", "/usr/bin/llama-server"),
        lambda facts, expect: facts["process"].update(exe=facts["process"]["exe"] + " (deleted)"),
    ],
    "process.user": [put("process", "status", "Uid", "999\t0\t999\t999")],
    "process.group": [put("process", "status", "Gid", "0\t0\t0\t0")],
    "process.arguments": [
        put("process", "cmdline", 1, "--mode"),
        lambda facts, expect: facts["process"]["cmdline"].append("--verbose"),
    ],
    "process.environment": [
        put("process", "environ", "names", ["HOME", "LANG", "PATH", "LLAMA_ARG_PORT"]),
        put("process", "environ", "planned", "PATH", "/evil"),
        put("process", "environ", "names", ["HOME"]),
    ],
    "process.strays": [put("process", "environ", "names", ["HOME", "HF_TOKEN"])],
    "process.limit:LimitNOFILE": [put("process", "limits", "Max open files", ["1024", "1024"])],
    "process.no-new-privileges": [put("process", "status", "NoNewPrivs", "0")],
    "process.capabilities:CapEff": [put("process", "status", "CapEff", "0000000000000400")],
    "process.seccomp": [put("process", "status", "Seccomp", "0")],
    "process.oom-score": [put("process", "oom_score_adj", 0)],
    "listener.address": [
        lambda facts, expect: [entry.update(address="0.0.0.0") for entry in facts["listen"]["sockets"]],
        put("listen", "sockets", []),
    ],
    "listener.alone": [
        lambda facts, expect: facts["listen"]["sockets"].append(
            {"address": "127.0.0.1", "port": 9, "inode": facts["process"]["sockets"][0]}
        )
    ],
    "listener.guarded": [
        lambda facts, expect: (
            [entry.update(address="0.0.0.0") for entry in facts["listen"]["sockets"]],
            expect.update(llama_server_argv=["llama-server"]),
        )
    ],
    "http.health": [
        put("serving", "health", "status", 503),
        put("serving", "health", {"error": "no answer from 127.0.0.1:8080: refused", "silent": True}),
    ],
    "http.own-process": [put("listen", "owners", {"1": "nginx"}), put("listen", "owners", {})],
    "key.refused:/props": [put("serving", "open", "/props", 200)],
    "key.refused:/completion": [put("serving", "open", "/completion", 200)],
    "key.wrong": [put("serving", "wrong_key", 200)],
    "key.admitted:/props": [put("serving", "props", "status", 401)],
    "key.admitted:/v1/models": [put("serving", "models", "status", 503)],
    "http.model": [put("serving", "props", "model_path", "/srv/models/other.gguf")],
    "http.alias": [put("serving", "models", "ids", ["gpt-4"])],
    "completion": [
        put("completion", {"status": 500}),
        put("completion", "tokens", 0),
        put("completion", {"error": "no answer from 127.0.0.1:8080: timed out", "silent": True}),
    ],
    "secret.no-argument": [
        lambda facts, expect: facts["process"]["cmdline"].extend(["--api-key", "(a secret)"]),
        lambda facts, expect: facts["process"]["cmdline"].append("--api-key=(a secret)"),
    ],
    "secret.length": [put("secrets", {"length": 5, "error": "the key has only 5 characters"})],
    "secret.arguments": [put("secrets", "arguments", ["77 (curl)"])],
    "secret.environments": [put("secrets", "environments", ["77 (bash)"])],
    "secret.files": [put("secrets", "files", ["/tmp/left"])],
    "secret.journal": [put("secrets", "journal", True)],
    "secret.show": [put("secrets", "show", True)],
}


def test_as_recorded_every_check_is_true(facts: Facts, expect: Facts) -> None:
    found = judged(facts, expect)
    assert [check for check in found.values() if check.ok is not True] == []
    assert len(judged(facts, expect, deep=False)) >= 100


ALL_BREAKS = [(name, one) for name, breaks in BREAKS.items() for one in breaks]


def only(wanted: dict[str, str]) -> Callable[..., list[Any]]:
    """`suite.cases`, but of each host only the one check that is wanted."""
    cases = suite.cases
    return lambda spec, plan: [case for case in cases(spec, plan) if case.id == wanted[plan.host]]


@pytest.fixture(scope="module")
def broken() -> dict[str, dict[str, Check]]:
    """Each break is a host of one and the same run, which makes the check that must see it."""
    hosts = {}
    for number, (_, change) in enumerate(ALL_BREAKS):
        facts, expect = copy.deepcopy((RECORDED["facts"], RECORDED["expect"]))
        change(facts, expect)
        hosts[f"host{number}"] = (facts, expect)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "cases", only({f"host{number}": name for number, (name, _) in enumerate(ALL_BREAKS)}))
        return run(hosts)


@pytest.mark.parametrize("number", range(len(ALL_BREAKS)), ids=[f"{name}-{n}" for n, (name, _) in enumerate(ALL_BREAKS)])
def test_a_broken_thing_is_false(broken: dict[str, dict[str, Check]], number: int) -> None:
    [check] = broken[f"host{number}"].values()
    assert check.id == ALL_BREAKS[number][0]
    assert check.ok is False, check.detail
    assert check.detail
    assert check.remedy


def test_every_kind_of_check_is_seen_to_fail(facts: Facts, expect: Facts) -> None:
    broken = {name.partition(":")[0] for name in BREAKS}
    never_false = {"host.root", "host.systemd"}  # true or open: whoever looked without root or systemd could not tell
    assert {name.partition(":")[0] for name in judged(facts, expect)} == broken | never_false


def test_every_planned_service_property_can_fail(facts: Facts, expect: Facts) -> None:
    planned = unit_settings.parse(expect["llama_server_unit_text"])["Service"]
    compared = [key for key in planned if key not in unit_settings.ELSEWHERE]
    for key in compared:
        name = unit_settings.property_name(key)
        facts["show"][name] = {"yes": "no", "no": "yes"}.get(facts["show"][name], "7")
    found = judged(facts, expect)
    assert {found[f"unit.effective:{key}"].ok for key in compared} == {False}
    assert not any(f"unit.effective:{key}" in found for key in unit_settings.ELSEWHERE)


def test_nothing_passes_without_facts(expect: Facts) -> None:
    assert [check.id for check in judged({}, expect).values() if check.ok is not None] == []


@pytest.mark.parametrize(
    "reason", ["systemd is not PID 1 here, it is bash", "systemctl runs in a chroot and ignores the command: x"]
)
def test_without_systemd_it_cannot_tell(facts: Facts, expect: Facts, reason: str) -> None:
    for name in ("show", "show_later", "process", "lint", "security"):
        facts[name] = {"error": reason}
    found = {
        name: check for name, check in judged(facts, expect).items() if name.startswith(("unit.", "process.", "host.systemd"))
    }
    assert {check.ok for name, check in found.items() if name != "unit.text"} == {None}
    assert all(reason in check.detail for name, check in found.items() if name != "unit.text")


def test_without_root_it_says_so(facts: Facts, expect: Facts) -> None:
    need = {"error": "needs root to read it"}
    facts["host"]["euid"] = 1000
    facts["user"]["locked"] = need
    facts["paths"][KEY] = need
    facts["secrets"] = need
    facts["process"].update(exe=need, environ=need, sockets=need)
    facts["serving"].update(props=need, models=need)
    found = judged(facts, expect)
    for name in (
        "host.root", "user.locked", f"key.mode:{KEY}", "release.service-user", "process.program", "process.environment",
        "listener.address", "secret.environments", "secret.files", "key.admitted:/props", "http.own-process",
    ):  # fmt: skip
        assert found[name].ok is None, name
        assert "needs root" in found[name].detail
    assert not [check for check in found.values() if check.ok is False]


def test_mlock_too_little_memory_and_too_low_a_limit_differ(facts: Facts, expect: Facts) -> None:
    expect["llama_server_argv"] += ["--load-mode", "mlock"]
    facts["process"]["limits"]["Max locked memory"] = ["8388608", "8388608"]
    expect["llama_server_weight_bytes"] = 10**9
    low = judged(facts, expect)["process.mlock"]
    assert low.ok is False
    assert "may lock 8388608 bytes" in low.detail
    expect["llama_server_weight_bytes"] = facts["model"]["memory_total"] + 1
    facts["process"]["limits"]["Max locked memory"] = ["unlimited", "unlimited"]
    poor = judged(facts, expect)["process.mlock"]
    assert poor.ok is False
    assert "impossible" in poor.detail
    expect["llama_server_weight_bytes"] = 10**6
    assert judged(facts, expect)["process.mlock"].ok is True


def test_a_containers_own_ceiling_is_not_the_units_fault(facts: Facts, expect: Facts) -> None:
    expect["llama_server_unit_text"] = expect["llama_server_unit_text"].replace("UMask=", "LimitMEMLOCK=infinity\nUMask=")
    facts["process"]["limits"]["Max locked memory"] = ["8388608", "8388608"]
    facts["process"]["caps"]["Max locked memory"] = ["8388608", "8388608"]
    assert judged(facts, expect)["process.limit:LimitMEMLOCK"].ok is True
    facts["process"]["caps"]["Max locked memory"] = ["unlimited", "unlimited"]
    assert judged(facts, expect)["process.limit:LimitMEMLOCK"].ok is False


@pytest.mark.parametrize(
    ("result", "status", "words"),
    [
        ("exit-code", "217", "its user does not exist"),
        ("exit-code", "216", "one of its groups does not exist"),
        ("exit-code", "203", "cannot be executed"),
        ("exit-code", "243", "credentials could not be set up"),
        ("resources", "0", "a resource is missing"),
        ("signal", "4", "CPU features"),
        ("oom-kill", "9", "killed it for memory"),
        ("start-limit-hit", "1", "gave up"),
        ("timeout", "15", "in time"),
    ],
)
def test_systemds_results_in_plain_words(facts: Facts, expect: Facts, result: str, status: str, words: str) -> None:
    facts["show"].update(ActiveState="failed", SubState="failed", Result=result, ExecMainStatus=status)
    assert words in judged(facts, expect)["unit.active"].detail


def test_an_illegal_instruction_is_called_by_its_cause(facts: Facts, expect: Facts) -> None:
    facts["release"]["version"] = {"rc": -4, "out": ""}
    assert "CPU features" in judged(facts, expect)["release.version"].detail


def test_a_taken_port_names_its_owner(facts: Facts, expect: Facts) -> None:
    facts["process"]["sockets"] = []
    facts["listen"]["owners"] = {"4711": "nginx"}
    assert "port 8080 belongs to nginx (4711)" in judged(facts, expect)["listener.address"].detail


def test_a_hand_edit_is_shown_but_a_secret_in_it_is_not(facts: Facts, expect: Facts) -> None:
    facts["texts"][UNIT] += "Environment=HF_TOKEN=hf_abcdef\n"
    found = judged(facts, expect)["unit.text"]
    assert "+Environment=HF_TOKEN=" in found.detail
    assert "hf_abcdef" not in found.detail


@pytest.mark.parametrize(
    ("gpu", "library", "devices", "words"),
    [
        ({"cards": [], "nodes": {}}, False, "", "no device"),
        ({"cards": [{"pci": "01:00.0", "vendor": "0x10de", "driver": None}], "nodes": {}}, True, "", "no driver"),
        (
            {"cards": [{"pci": "1", "vendor": "0x10de", "driver": "nvidia"}], "nodes": {"/dev/nvidia0": True}},
            False,
            "",
            "no backend",
        ),
        (
            {"cards": [{"pci": "1", "vendor": "0x10de", "driver": "nvidia"}], "nodes": {"/dev/nvidia0": False}},
            True,
            "",
            "not visible",
        ),
    ],
)
def test_four_ways_to_end_up_on_the_cpu(
    facts: Facts, expect: Facts, gpu: Facts, library: bool, devices: str, words: str
) -> None:
    expect["llama_cpp_identity"]["options"]["GGML_CUDA"] = "ON"
    facts["release"].update(gpu=gpu, devices={"rc": 0, "out": "Available devices:\n" + devices})
    if library:
        facts["release"]["files"]["lib/libggml-cuda.so"] = {"type": "file", "owner": "root", "mode": "0644"}
    found = judged(facts, expect)["release.gpu:cuda"]
    assert found.ok is False
    assert found.detail.startswith(words)
    facts["release"]["devices"]["out"] += "  CUDA0: NVIDIA H200"
    assert judged(facts, expect)["release.gpu:cuda"].ok is (words in ("no backend", "not visible"))


@pytest.mark.parametrize(
    ("options", "backends"),
    [
        ({"GGML_CUDA": "ON"}, {"cuda"}),
        ({"GGML_HIP": "ON", "GGML_VULKAN": "ON"}, {"rocm", "vulkan"}),
        ({"GGML_CUDA": "OFF", "GGML_NATIVE": "ON"}, set()),
    ],
)
def test_the_planned_build_options_decide_whether_gpus_are_looked_at(
    facts: Facts, expect: Facts, options: dict[str, str], backends: set[str]
) -> None:
    expect["llama_cpp_identity"]["options"].update(options)
    asked = []

    def collect(_host: judge.HostToJudge, request: Callable[[], Facts]) -> Facts:
        asked.append(request())
        return facts

    [verdict] = judge.run([judge.HostToJudge("lab04", Somewhere(), expect)], collect=collect)
    assert asked[0]["release"]["gpu"] is bool(backends)
    assert {check.id for check in verdict.checks if check.id.startswith("release.gpu")} == {
        f"release.gpu:{b}" for b in backends
    }


def test_a_driver_that_computes_on_the_cpu_has_no_card_and_no_node_and_may_write_code(facts: Facts, expect: Facts) -> None:
    expect["llama_cpp_identity"]["options"]["GGML_VULKAN"] = "ON"
    expect.update(llama_cpp_gpu={"device": "Vulkan", "nodes": []}, llama_server_gpu={"writable_code": True})
    facts["release"].update(gpu={"cards": [], "nodes": {}}, devices={"rc": 0, "out": "  Vulkan0: llvmpipe\n"})
    facts["release"]["files"]["lib/libggml-vulkan.so"] = {"type": "file", "owner": "root", "mode": "0644"}
    assert judged(facts, expect)["release.gpu:vulkan"].ok
    assert judged(facts, expect)["unit.hardened:MemoryDenyWriteExecute"].detail.endswith("planned no")
    facts["release"]["devices"]["out"] = ""
    assert judged(facts, expect)["release.gpu:vulkan"].ok is False


def test_a_gpu_that_the_plan_does_without_is_not_looked_for(facts: Facts, expect: Facts) -> None:
    expect["llama_cpp_identity"]["options"]["GGML_CUDA"] = "ON"
    expect.update(llama_cpp_gpu={}, llama_server_gpu={})
    assert not [name for name in judged(facts, expect) if name.startswith("release.gpu")]
    expect.update(llama_cpp_gpu={"device": "CUDA"})
    assert "release.gpu:cuda" in judged(facts, expect)


DROP_IN = "/etc/systemd/system/llama-server-main.service.d/override.conf"


def overriding(facts: Facts, key: str, value: str) -> None:
    facts["drop_ins"] = {"/run/systemd/system/x.conf": [f"Service.{key}"], DROP_IN: [f"Service.{key}"]}
    facts["show"][unit_settings.property_name(key)] = value


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("Environment", "LLAMA_ARG_CTX_SIZE=64", "Environment is LLAMA_ARG_CTX_SIZE=64"),
        ("EnvironmentFile", "/etc/mine (ignore_errors=no)", "EnvironmentFiles is /etc/mine"),
        ("User", "nobody", "User is nobody"),
        ("LimitNOFILE", "1024", "LimitNOFILE is 1024"),
    ],
)
def test_a_drop_in_that_wins_is_named_with_what_to_do(facts: Facts, expect: Facts, key: str, value: str, words: str) -> None:
    overriding(facts, key, value)
    check = judged(facts, expect)[f"unit.effective:{key}"]
    assert check.ok is False
    assert check.detail.startswith(f"{words}")
    assert f", set by {DROP_IN}; planned " in check.detail
    assert "into the inventory" in check.remedy
    assert f"rm /run/systemd/system/x.conf {DROP_IN} && systemctl daemon-reload && systemctl restart" in check.remedy


def test_another_command_is_seen_before_and_after_the_restart(facts: Facts, expect: Facts) -> None:
    shown = facts["show"]["ExecStart"]
    overriding(facts, "ExecStart", shown.replace(" --no-ui ;", " --no-ui --threads 1 ;"))
    before = judged(facts, expect)
    assert (
        before["unit.effective:ExecStart"].detail == f"ExecStart is ... --threads 1, set by {DROP_IN}; planned ... nothing more"
    )
    assert before["process.arguments"].ok is True
    facts["process"]["cmdline"] += ["--threads", "1"]
    after = judged(facts, expect)["process.arguments"]
    assert after.ok is False
    assert DROP_IN in after.detail
    assert f"rm /run/systemd/system/x.conf {DROP_IN}" in after.remedy


def test_a_drop_in_that_the_plan_does_not_mind_is_left_alone(facts: Facts, expect: Facts) -> None:
    facts["drop_ins"] = {DROP_IN: ["Service.Nice"]}
    assert all(check.ok for check in judged(facts, expect).values())


def test_a_check_must_be_about_a_host(monkeypatch: pytest.MonkeyPatch, facts: Facts, expect: Facts, tmp_path: Path) -> None:
    (tmp_path / "test_part.py").write_text(
        "from bigiron.judge.checks import check\n\n@check('part.nothing')\ndef test_nothing():\n    pass\n"
    )
    monkeypatch.setattr(judge, "SUITE", tmp_path)
    with pytest.raises(BigironError, match=r"part\.nothing asks for none of plan, found and host"):
        judged(facts, expect)


def test_a_new_part_adds_one_file(monkeypatch: pytest.MonkeyPatch, facts: Facts, expect: Facts, tmp_path: Path) -> None:
    """What it looks at, a check for each of several things, a remedy: nothing outside its own file."""
    (tmp_path / "test_swap.py").write_text(
        "from bigiron.judge.checks import check\n\n"
        "def look(plan):\n    return {'commands': {'swaps': ['cat', '/proc/swaps']}}\n\n"
        "@check('swap.off', 'on {host}: swapoff -a', device=('/dev/a', '/dev/b'))\n"
        "def test_device_is_no_swap(device, found):\n"
        "    assert device not in found['commands']['swaps']['out'], f'{device} is swap'\n"
    )
    monkeypatch.setattr(judge, "SUITE", tmp_path)
    facts["commands"] = {"swaps": {"rc": 0, "out": "/dev/a"}}
    found = judged(facts, expect)
    assert {(check.id, check.ok) for check in found.values()} == {("swap.off:/dev/a", False), ("swap.off:/dev/b", True)}
    assert found["swap.off:/dev/a"].detail == "/dev/a is swap"


def test_what_a_driver_needs_of_apt_and_of_groups_is_checked(facts: Facts, expect: Facts) -> None:
    assert not {"user.groups:render", "package.held:drv", "repository.read:gpu"} & judged(facts, expect).keys()
    expect |= {
        "base_user_groups": ["render"],
        "base_held_packages": ["drv"],
        "base_repositories": [{"name": "gpu", "uri": "https://example.org/apt/"}],
    }
    facts["user"]["groups"] = ["render"]
    facts["commands"] = {"held packages": {"rc": 0, "out": "drv\n"}}
    facts["commands"]["repositories"] = {"rc": 0, "out": " 500 https://example.org/apt ./ Packages\n"}
    sound = judged(facts, expect)
    mine = ("user.groups:render", "package.held:drv", "repository.read:gpu")
    assert [sound[name].ok for name in mine] == [True] * 3
    facts["user"]["groups"] = ["video"]
    facts["commands"]["held packages"]["out"] = "drv-other\n"
    facts["commands"]["repositories"] = {"rc": 100, "out": "E: Conflicting values set for option Signed-By\n"}
    broken = judged(facts, expect)
    assert [broken[name].ok for name in mine] == [False] * 3
    assert "Conflicting values" in broken["repository.read:gpu"].detail


def with_cuda(facts: Facts, expect: Facts) -> None:
    """A host with one GPU, the toolkit from wheels and two settings, all as planned."""
    root = "/opt/bigiron/toolkits/cuda-13.5.37"
    expect.update(
        cuda_toolkit_path=root, cuda_wheels=[{"name": "nvidia-cuda-nvcc"}], cuda_gpus=1, cuda_settings={"persistence": True, "power_watts": 300}
    )  # fmt: skip
    facts.setdefault("commands", {}).update(
        nvcc={"rc": 0, "out": "Cuda compilation tools, release 13.5, V13.5.37\n"},
        cublas={"rc": 0, "out": "\tlibcublasLt.so.13 => not found\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x0)\n"},
        gpus={"rc": 0, "out": "Enabled, 300.00\n"},
    )
    facts.setdefault("texts", {})["/proc/driver/nvidia/version"] = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n"
    )
    facts.setdefault("units", {})["bigiron-gpu.service"] = {"ActiveState": "active", "UnitFileState": "enabled"}


@pytest.mark.parametrize(
    ("wrong", "break_it"),
    [
        ("", lambda _facts, _expect: None),
        ("cuda.compiler", put("commands", "nvcc", {"rc": 0, "out": "release 11.8, V11.8.89\n"})),
        ("cuda.libraries", put("commands", "cublas", {"rc": 0, "out": "\tlibstdc++.so.6 => not found\n\tlibc.so.6 => x\n"})),
        ("cuda.driver", put("texts", "/proc/driver/nvidia/version", {"error": "no such file", "missing": True})),
        ("cuda.nodes", put("units", "bigiron-gpu.service", {"ActiveState": "failed", "UnitFileState": "enabled"})),
        ("cuda.settings", put("commands", "gpus", {"rc": 0, "out": "Enabled, 450.00\n"})),
        ("cuda.settings", put("commands", "gpus", {"rc": 0, "out": ""})),
    ],
)
def test_cuda_is_judged_by_compiler_driver_nodes_and_settings(facts: Facts, expect: Facts, wrong: str, break_it: Break) -> None:
    with_cuda(facts, expect)
    break_it(facts, expect)
    checks = {name: check.ok for name, check in judged(facts, expect).items() if name.startswith("cuda.")}
    assert set(checks) == {f"cuda.{name}" for name in ("compiler", "libraries", "driver", "nodes", "settings")}
    assert [name for name, ok in checks.items() if not ok] == ([wrong] if wrong else [])


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, set()),
        ({"rocm_kfd": {"rc": 0, "out": "gfx_target_version 0\ngfx_target_version 110001\n"}}, {"rocm.cards"}),
        ({"rocm_code": {"rc": 0, "out": "amdgcn-amd-amdhsa--gfx1030\n"}}, {"rocm.code"}),
        ({"rocm_code": {"rc": 2, "out": "grep: libggml-hip.so: No such file or directory\n"}}, {"rocm.code"}),
        ({"rocm_modules": {"rc": 0, "out": "config-6.8.0-9\nvmlinuz-6.8.0-9\nvmlinuz-6.14.0-29-generic\n"}}, {"rocm.kernel"}),
    ],
)
def test_rocm_is_judged_by_what_the_driver_the_library_and_the_kernel_say(
    facts: Facts, expect: Facts, change: Facts, broken: set[str]
) -> None:
    said = {
        "rocm_kfd": {"rc": 0, "out": "gfx_target_version 0\ngfx_target_version 90010\ngfx_target_version 110000\n"},
        "rocm_code": {"rc": 0, "out": "amdgcn-amd-amdhsa--gfx1100\namdgcn-amd-amdhsa--gfx90a\n"},
        "rocm_modules": {"rc": 0, "out": "vmlinuz-6.8.0-9-generic\nvmlinuz-6.8.0-60-generic\n"},
    }
    facts["commands"] = {**said, **change}
    facts["host"]["kernel"] = "6.8.0-9-generic"
    expect.update(rocm_root="/opt/rocm-7.2.4", rocm_cards=["gfx1100", "gfx90a"], rocm_kernels=["6.8", "6.17"])
    expect["llama_cpp_identity"]["options"]["GPU_TARGETS"] = "gfx1100;gfx90a"
    found = {name: check for name, check in judged(facts, expect).items() if name.startswith("rocm.")}
    assert found.keys() == {"rocm.cards", "rocm.code", "rocm.kernel"}
    assert {name for name, check in found.items() if check.ok is False} == broken
