import dataclasses

import pytest
from tests.fixtures.model_shapes import small
from tests.unit.test_plan_build import HASWELL, ZEN4
from tests.unit.test_wishes import GOOD

from bigiron.errors import Refused, UsageError
from bigiron.hub.quants import QuantFiles, RepoFile
from bigiron.machine.description import Cpu, Gpu, Machine, Memory, OperatingSystem
from bigiron.plan import host as planning
from bigiron.plan import intent, wishes
from bigiron.plan.host import CachedRelease, HostFacts, plan_hosts
from bigiron.plan.refusals import refusals
from bigiron.units import GIB

MODEL = QuantFiles(
    "Q4_K_M",
    "Q4_K_M",
    (RepoFile("Q4/m-00001-of-00002.gguf", 100, "a" * 64), RepoFile("Q4/m-00002-of-00002.gguf", 10 * GIB, "b" * 64)),
)
DISK = {"mount": "/", "device": "8:1", "free_bytes": 100 * GIB, "total_bytes": 200 * GIB}


def machine(**changes):
    base = Machine(
        hostname="h", os=OperatingSystem("debian", "12", "Debian 12", "bookworm"), kernel="6.1", arch="x86_64", virtualization="none",
        init="systemd", python="3.11", libc="glibc 2.36",
        cpu=Cpu("EPYC", "AMD", 1, 32, 64, tuple(ZEN4), ()), memory=Memory(256 * GIB, 200 * GIB, None, ()), gpus=(), nvme=(), nics=(),
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def fact(name="a", observed=None, box=None, **variables):
    wish = intent.read(name, {**GOOD, **variables})
    disks = dict.fromkeys(("/opt/bigiron", "/var/cache/bigiron", "/srv/models", "/usr"), DISK)
    seen = {
        "compiler": "g++ 12.2.0",
        "packages": {},
        "paths": {},
        "releases": {},
        "models": {},
        "ports": {},
        "disks": disks,
        **(observed or {}),
    }
    facts = small("dense")
    return HostFacts(name, wish, box or machine(), seen, {MODEL.quant: MODEL}, {MODEL.quant: facts})


def installed(plan):
    """The observed state of a host on which ``plan``'s release runs."""
    mark = plan.fingerprint
    return {
        "paths": {"/opt/bigiron/current": {"type": "link", "target": f"releases/{mark}"}},
        "releases": {mark: {"ok": True, "problems": [], "manifest": {"identity": plan.variables["llama_cpp_identity"]}}},
    }


def packed(plan):
    return CachedRelease(plan.fingerprint, plan.variables["llama_cpp_identity"], "/cache/x.tar.gz", "c" * 64)


def test_one_host_per_platform_builds():
    plans = plan_hosts(
        [fact("a"), fact("b"), fact("c", box=machine(cpu=dataclasses.replace(machine().cpu, flags=tuple(HASWELL))))], []
    )
    assert [plans[name].build_from for name in "abc"] == ["here", "a", "here"]
    assert plans["a"].fingerprint == plans["b"].fingerprint != plans["c"].fingerprint
    assert "g++" in plans["a"].variables["base_packages"]
    assert "g++" not in plans["b"].variables["base_packages"]


def test_what_the_plan_gives_and_what_a_person_sets_are_told_apart():
    given = plan_hosts([fact("a")], [])["a"].variables
    public = wishes.schema()
    passed_on = {name for name in given if name in public and not public[name].computed}
    assert given.keys() <= public.keys()
    assert passed_on == {
        "base_files", "model_quant", "model_repo", "model_revision", "model_root", "llama_server_service", "llama_server_host", "llama_server_port",
    }  # fmt: skip


def test_an_argument_that_the_known_build_lacks_is_told_before_anything_is_touched():
    listed = "\n".join(
        f"{flag}  text"
        for flag in (
            "--model F", "--alias S", "--host H", "--port N", "--api-key-file F", "--metrics", "--offline", "--no-ui", "--ctx-size N", "--parallel N",
            "--threads N", "--threads-batch N", "--batch-size N", "--ubatch-size N", "--flash-attn S", "--cache-type-k T", "--cache-type-v T", "--numa T",
            "--load-mode M", "--no-repack", "--cache-ram N", "--fit S", "--kv-unified", "--no-warmup", "--jinja",
        )
    )  # fmt: skip
    sound = plan_hosts([fact("a")], [])["a"]
    cached = [dataclasses.replace(packed(sound), help=listed)]
    assert plan_hosts([fact("a")], cached)["a"].arguments_proved
    error = plan_hosts([fact("a", llama_server_extra_args=["--frobnicate"])], cached)["a"]
    assert isinstance(error, UsageError)
    assert "--frobnicate" in error.what


@pytest.mark.parametrize(("there", "mode"), [({}, "0644"), ({"/etc/x": {"mode": "0600"}}, "0600")])
def test_a_plain_file_without_a_mode_keeps_the_one_it_has(there, mode):
    plan = plan_hosts([fact("a", {"paths": there}, base_files=[{"path": "/etc/x", "content": ""}])], [])["a"]
    assert plan.variables["base_files"][0]["mode"] == mode


def test_an_address_that_the_host_lacks_and_a_folder_the_service_cannot_read_are_refused():
    closed = {"paths": {"/srv/models": {"type": "directory", "owner": "root", "group": "root", "mode": "0700"}}}
    one = fact("a", closed, llama_server_host="192.0.2.8")
    found = [refusal.what for refusal in refusals(one, plan_hosts([one], [])["a"])]
    assert "192.0.2.8" in found[0]
    assert "/srv/models" in found[1]


def test_a_release_for_avx512_is_never_planned_on_a_cpu_without_it():
    built = plan_hosts([fact("a")], [])["a"]
    old = fact("b", box=machine(cpu=dataclasses.replace(machine().cpu, flags=tuple(HASWELL))))
    plan = plan_hosts([old], [packed(built)])["b"]
    assert plan.build_from == "here"
    assert plan.fingerprint != built.fingerprint


def test_a_packed_release_is_used_whatever_compiler_made_it():
    built = plan_hosts([fact("a", observed={"compiler": "g++ 12.2.0"})], [])["a"]
    plan = plan_hosts([fact("b", observed={"compiler": None, "compiler_candidate": "g++ 14.2.0"})], [packed(built)])["b"]
    assert (plan.build_from, plan.fingerprint) == ("archive", built.fingerprint)


def test_a_host_that_runs_its_release_stays_in_sync_when_its_compiler_is_upgraded():
    before = plan_hosts([fact("a")], [])["a"]
    after = plan_hosts([fact("a", observed={**installed(before), "compiler": "g++ 12.3.0"})], [])["a"]
    assert (after.build_from, after.fingerprint) == ("installed", before.fingerprint)


def test_another_source_is_another_release():
    before = plan_hosts([fact("a")], [])["a"]
    after = plan_hosts([fact("a", observed=installed(before), llama_cpp_source_sha256="e" * 64)], [packed(before)])["a"]
    assert after.build_from == "here"


def test_a_host_that_has_the_release_shares_it():
    before = plan_hosts([fact("a")], [])["a"]
    plans = plan_hosts([fact("b"), fact("a", observed=installed(before))], [])
    assert (plans["a"].build_from, plans["b"].build_from) == ("installed", "a")


def test_a_damaged_release_is_not_shared():
    before = plan_hosts([fact("a")], [])["a"]
    broken = installed(before)
    broken["releases"][before.fingerprint]["ok"] = False
    assert plan_hosts([fact("a", observed=broken)], [])["a"].build_from == "here"


def test_without_a_compiler_there_is_no_fingerprint_yet():
    assert plan_hosts([fact("a", observed={"compiler": None})], [])["a"].fingerprint == ""


@pytest.mark.parametrize(
    ("box", "words"),
    [
        (machine(init="sysvinit"), "not systemd"),
        (machine(os=OperatingSystem("fedora", "42", "Fedora Linux 42", "")), "Fedora"),
    ],
)
def test_a_machine_that_cannot_serve_is_refused(box, words):
    with pytest.raises(Refused, match=words):
        plan_hosts([fact("a", box=box)], [])


def test_ubuntu_derivatives_are_debian_like():
    planning.check_machine("a", machine(os=OperatingSystem("pop", "22.04", "Pop!_OS 22.04", "jammy", "ubuntu debian")))


def test_a_taken_port_is_named():
    one = fact("a", observed={"ports": {"8080": {"pid": 7, "program": "nginx", "unit": "nginx.service", "address": "0.0.0.0"}}})
    (refusal,) = refusals(one, plan_hosts([one], [])["a"])
    assert "nginx (pid 7, nginx.service)" in refusal.what


def test_a_connection_that_is_not_root_is_refused_before_the_first_task():
    one = fact("a", observed={"uid": 1000})
    (refusal,) = refusals(one, plan_hosts([one], [])["a"])
    assert "ansible_become" in refusal.hint


def test_our_own_server_does_not_take_the_port():
    one = fact("a", observed={"ports": {"8080": {"pid": 7, "program": "llama-server", "unit": "llama-server-main.service"}}})
    assert refusals(one, plan_hosts([one], [])["a"]) == []


def with_free(free, **observed):
    disks = {path: {**DISK, "free_bytes": free} for path in ("/opt/bigiron", "/var/cache/bigiron", "/srv/models", "/usr")}
    return fact("a", observed={"disks": disks, **observed})


def test_source_build_and_model_on_one_filesystem_are_summed():
    one = with_free(12 * GIB)  # the model alone would fit
    (refusal,) = refusals(one, plan_hosts([one], [])["a"])
    assert "model 10.0 GiB + source and build 2.0 GiB" in refusal.what
    assert "12.0 GiB free" in refusal.what


def test_what_is_there_already_needs_no_space():
    key = f"{GOOD['model_repo']}/{GOOD['model_revision']}"
    models = {key: {"files": {MODEL.files[0].path: {"size": 100}}, "partial": {MODEL.files[1].path: 9 * GIB}}}
    one = with_free(6 * GIB, models=models)
    assert refusals(one, plan_hosts([one], [])["a"]) == []


def test_a_model_that_does_not_fit_is_refused_with_what_would():
    one = fact("a", box=machine(memory=Memory(2 * GIB, GIB, None, ())), llama_server_context=1_000_000)
    refused = refusals(one, plan_hosts([one], [])["a"])
    assert any("does not fit" in each.what and each.where == "a" for each in refused)


def test_a_wish_that_cannot_be_planned_stops_no_other_host():
    plans = plan_hosts([fact("a", llama_server_cache_type_k="q8_0", llama_server_cache_type_v="nonsense"), fact("b")], [])
    assert isinstance(plans["a"], UsageError | Refused)
    assert plans["a"].where.startswith("a")
    assert plans["b"].build_from == "here"


def test_a_gpu_that_nobody_knows_does_not_matter_to_a_cpu_host():
    gpu = Gpu("0000:01:00.0", "1234", "5678", "unknown", None, None, "030000")
    assert plan_hosts([fact("a", box=machine(gpus=(gpu,)))], [])["a"].build_from == "here"


def test_argv_is_what_the_intent_says():
    argv = plan_hosts(
        [fact("a", llama_server_parallel=4, llama_server_context=8192, llama_server_extra_args=["--no-repack"])], []
    )["a"].variables["llama_server_argv"]
    words = dict(zip(argv[1::2], argv[2::2], strict=False))
    assert words["--ctx-size"] == "32768"  # llama-server divides it among the slots
    assert words["--threads"] == "32"
    assert argv[-1] == "--no-repack"
    assert not any("api-key" in word and "file" not in word for word in argv[:-1] if word.startswith("--"))
