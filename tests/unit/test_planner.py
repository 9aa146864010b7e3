import jinja2
import pytest
import yaml
from tests.fixtures.hostfacts import DISK, HASWELL, QUANT, REVISION, UNIT, as_planned, fact, installed, machine

from bigiron import parts
from bigiron.errors import Refused, UsageError
from bigiron.machine.description import Gpu, Memory, OperatingSystem
from bigiron.parts import llama_server, planner
from bigiron.parts.difference import diff
from bigiron.parts.planner import plan_hosts
from bigiron.paths import PROJECT
from bigiron.plan import wishes
from bigiron.plan.choose import Wish
from bigiron.plan.places import MADE_FOLDERS
from bigiron.plan.releases import CachedRelease
from bigiron.units import GIB


def refusals(one):
    return plan_hosts([one], [])["a"].planned.refusals


def packed(plan):
    return CachedRelease(plan.release.fingerprint, plan.release.identity.to_json(), "/cache/x.tar.gz", "c" * 64)


def test_one_host_per_platform_builds():
    plans = plan_hosts([fact("a"), fact("b"), fact("c", box=machine(HASWELL))], [])
    assert [plans[name].release.build_from for name in "abc"] == ["here", "a", "here"]
    assert plans["a"].release.fingerprint == plans["b"].release.fingerprint != plans["c"].release.fingerprint
    assert "g++" in plans["a"].variables["base_packages"]
    assert "g++" not in plans["b"].variables["base_packages"]


def test_a_release_for_avx512_is_never_planned_on_a_cpu_without_it():
    built = plan_hosts([fact("a")], [])["a"]
    old = fact("b", box=machine(HASWELL))
    plan = plan_hosts([old], [packed(built)])["b"]
    assert plan.release.build_from == "here"
    assert plan.release.fingerprint != built.release.fingerprint


def test_a_packed_release_is_used_whatever_compiler_made_it():
    built = plan_hosts([fact("a", observed={})], [])["a"]
    plan = plan_hosts([fact("b", observed={"compilers": {"g++": {"candidate": "g++ 14.2.0"}}})], [packed(built)])["b"]
    assert (plan.release.build_from, plan.release.fingerprint) == ("archive", built.release.fingerprint)


def test_a_host_that_runs_its_release_stays_in_sync_when_its_compiler_is_upgraded():
    before = plan_hosts([fact("a")], [])["a"]
    after = plan_hosts([fact("a", observed={**installed(before), "compilers": {"g++": {"version": "g++ 12.3.0"}}})], [])["a"]
    assert (after.release.build_from, after.release.fingerprint) == ("installed", before.release.fingerprint)


def test_another_source_is_another_release():
    before = plan_hosts([fact("a")], [])["a"]
    after = plan_hosts([fact("a", observed=installed(before), llama_cpp_source_sha256="e" * 64)], [packed(before)])["a"]
    assert after.release.build_from == "here"


def test_a_host_that_has_the_release_shares_it():
    before = plan_hosts([fact("a")], [])["a"]
    plans = plan_hosts([fact("b"), fact("a", observed=installed(before))], [])
    assert (plans["a"].release.build_from, plans["b"].release.build_from) == ("installed", "a")


def test_a_damaged_release_is_not_shared():
    before = plan_hosts([fact("a")], [])["a"]
    broken = installed(before)
    broken["releases"][before.release.fingerprint]["ok"] = False
    assert plan_hosts([fact("a", observed=broken)], [])["a"].release.build_from == "here"


def test_without_a_compiler_there_is_no_fingerprint_yet():
    assert plan_hosts([fact("a", observed={"compilers": {"g++": {"error": "broken"}}})], [])["a"].release.fingerprint == ""


@pytest.mark.parametrize(
    ("box", "words"),
    [
        (machine(init="sysvinit"), "not systemd"),
        (machine(os=OperatingSystem("fedora", "42", "Fedora Linux 42", "")), "Fedora"),
    ],
)
def test_a_machine_that_cannot_serve_is_refused(box, words):
    with pytest.raises(Refused, match=words):
        planner.suited("a", box)
    assert words in plan_hosts([fact("a", box=box)], [])["a"].what


def test_ubuntu_derivatives_are_debian_like():
    planner.suited("a", machine(os=OperatingSystem("pop", "22.04", "Pop!_OS 22.04", "jammy", "ubuntu debian")))


def test_a_taken_port_is_named():
    one = fact("a", observed={"ports": {"8080": {"pid": 7, "program": "nginx", "unit": "nginx.service", "address": "0.0.0.0"}}})
    (refusal,) = refusals(one)
    assert "nginx (pid 7, nginx.service)" in refusal.what


def test_a_connection_that_is_not_root_is_refused_before_the_first_task():
    one = fact("a", observed={"uid": 1000})
    (refusal,) = refusals(one)
    assert "ansible_become" in refusal.hint


def test_our_own_server_does_not_take_the_port():
    one = fact("a", observed={"ports": {"8080": {"pid": 7, "program": "llama-server", "unit": "llama-server-main.service"}}})
    assert refusals(one) == []


def with_free(free, **observed):
    disks = {path: {**DISK, "free_bytes": free} for path in ("/opt/bigiron", "/var/cache/bigiron", "/srv/models", "/usr")}
    return fact("a", observed={"disks": disks, **observed})


def test_source_build_and_model_on_one_filesystem_are_summed():
    one = with_free(12 * GIB)  # the model alone would fit
    (refusal,) = refusals(one)
    assert "model 10.0 GiB + source and build 2.0 GiB" in refusal.what
    assert "12.0 GiB free" in refusal.what


def test_what_is_there_already_needs_no_space():
    models = {REVISION: {"files": {QUANT.files[0].path: {"size": 100}}, "partial": {QUANT.files[1].path: 9 * GIB}}}
    one = with_free(6 * GIB, models=models)
    assert refusals(one) == []


def test_a_model_that_does_not_fit_is_refused_with_what_would():
    one = fact("a", box=machine(memory=Memory(2 * GIB, GIB, None, ())), llama_server_context=1_000_000)
    refused = refusals(one)
    assert any("does not fit" in each.what and each.where == "a" for each in refused)


def test_a_wish_that_cannot_be_planned_stops_no_other_host():
    plans = plan_hosts([fact("a", llama_server_cache_type_k="q8_0", llama_server_cache_type_v="nonsense"), fact("b")], [])
    assert isinstance(plans["a"], UsageError | Refused)
    assert plans["a"].where.startswith("a")
    assert plans["b"].release.build_from == "here"


def test_a_gpu_that_nobody_knows_does_not_matter_to_a_cpu_host():
    gpu = Gpu("0000:01:00.0", "1234", "5678", "unknown", None, None, "030000")
    assert plan_hosts([fact("a", box=machine(gpus=(gpu,)))], [])["a"].release.build_from == "here"


def test_argv_is_what_the_intent_says():
    argv = plan_hosts(
        [fact("a", llama_server_parallel=4, llama_server_context=8192, llama_server_extra_args=["--no-repack"])], []
    )["a"].variables["llama_server_argv"]
    words = dict(zip(argv[1::2], argv[2::2], strict=False))
    assert words["--ctx-size"] == "32768"  # llama-server divides it among the slots
    assert words["--threads"] == "32"
    assert argv[-1] == "--no-repack"
    assert not any("api-key" in word and "file" not in word for word in argv[:-1] if word.startswith("--"))


def test_one_list_says_what_makes_a_service_stale():
    one = fact("a")
    paths = [f"/etc/systemd/system/{UNIT}", "/etc/bigiron/credentials/main.key", "/opt/bigiron/current"]
    paths.append(f"/srv/models/{REVISION}/.bigiron.json")
    assert parts.watch(one.wish)["service"][UNIT]["depends_on"] == paths
    assert plan_hosts([one], [])["a"].variables["llama_server_depends_on"] == paths


def test_the_roles_own_list_of_what_makes_a_service_stale_is_contained_in_the_parts():
    defaults = yaml.safe_load((PROJECT / "roles/llama_server/defaults/main.yml").read_text())
    paths = [jinja2.Template(each).render(defaults) for each in defaults["llama_server_depends_on"]]
    assert len(paths) == 3
    assert set(paths) < set(llama_server.depends_on(fact("a").wish))


def test_a_drop_in_that_decides_what_runs_is_refused_and_any_other_is_told():
    right = as_planned(plan_hosts([fact("a")], [])["a"])
    right["services"][UNIT]["overrides"] = [["/d/a.conf", "LimitMEMLOCK"], ["/d/b.conf", "ExecStart"]]
    planned = plan_hosts([fact("a", observed=right)], [])["a"].planned
    (refusal,) = planned.refusals
    assert "/d/b.conf overrides ExecStart=" in refusal.what
    assert "rm /d/b.conf" in refusal.hint
    assert planned.findings == ["/d/a.conf overrides LimitMEMLOCK= of llama-server-main.service; yours, and left alone"]


def test_a_pinned_package_is_wanted_in_its_version_and_watched_by_its_name():
    one = fact("a", base_extra_packages=["htop=3.2.2-2"])
    assert "htop" in parts.watch(one.wish)["package"]
    plan = plan_hosts([one], [])["a"]
    (wanted,) = [each.want for each in plan.planned.resources if each.id == "package:htop"]
    assert wanted == {"version": "3.2.2-2"}
    assert "htop=3.2.2-2" in plan.variables["base_packages"]


def test_a_fresh_build_is_brought_to_the_controller():
    assert plan_hosts([fact("a")], [])["a"].variables["llama_cpp_fetch_to"].startswith("/cache/")
    unknown = fact("a", observed={"compilers": {}})
    assert plan_hosts([unknown], [])["a"].variables["llama_cpp_fetch_to"] == "/cache/"


def test_the_wish_for_a_service_is_the_wish_for_the_placement():
    """The inventory's context is per slot; llama-server's -c is for all."""
    said = {"context": 8192, "parallel": 2, "cache_ram_mib": 512, "threads": 4, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    one = fact("a", model_quant="AUTO", **{f"llama_server_{name}": value for name, value in said.items()})
    assert llama_server.wanted(one.wish) == Wish(16384, 2, "auto", "q8_0", "q8_0", cache_ram_mib=512, threads=4)


def with_help(plan, text):
    right = as_planned(plan)
    right["releases"][plan.release.fingerprint]["manifest"]["help"] = text
    return right


def test_an_argument_that_the_installed_build_does_not_know_is_refused_before_anything_is_touched():
    text = (PROJECT / "tests/fixtures/help/llama-server-b11434.txt").read_text()
    right = with_help(plan_hosts([fact("a")], [])["a"], text)
    assert plan_hosts([fact("a", observed=right)], [])["a"].planned.refusals == []
    bad = plan_hosts([fact("a", observed=right, llama_server_extra_args=["--frobnicate"])], [])["a"].planned
    (refusal,) = bad.refusals
    assert "--frobnicate" in refusal.what
    assert "llama_server_extra_args" in refusal.hint


def test_a_rule_that_matches_no_tensor_is_told():
    plan = plan_hosts([fact("a", llama_server_extra_args=["-ot", "nothing_like_this=CPU"])], [])["a"]
    assert any("nothing_like_this" in finding for finding in plan.planned.findings)


def test_what_the_plan_hands_over_is_documented_and_what_a_person_sets_is_passed_on():
    one = fact("a")
    given, public = plan_hosts([one], [])["a"].variables, wishes.schema()
    assert given.keys() <= public.keys()
    assert {"model_repo", "llama_server_port"} <= {name for name in given if not public[name].computed}
    assert {"base_packages", "llama_server_argv"} <= {name for name in given if public[name].computed}


@pytest.mark.parametrize(("there", "mode"), [({}, "0644"), ({"/etc/x": {"type": "file", "mode": "0600"}}, "0600")])
def test_a_plain_file_without_a_mode_keeps_the_one_it_has(there, mode):
    plan = plan_hosts([fact("a", {"paths": there}, base_files=[{"path": "/etc/x", "content": ""}])], [])["a"]
    assert plan.variables["base_files"][0]["mode"] == mode


def test_an_address_that_the_host_lacks_and_a_folder_the_service_cannot_read_are_refused():
    closed = {"paths": {"/srv/models": {"type": "directory", "owner": "root", "group": "root", "mode": "0700"}}}
    found = [refusal.what for refusal in refusals(fact("a", closed, llama_server_host="192.0.2.8"))]
    assert "/srv/models" in found[0]
    assert "192.0.2.8" in found[1]


@pytest.mark.parametrize("record", ["", "/srv/models\n"])
def test_a_folder_that_was_there_keeps_its_owner_and_mode_one_that_was_made_does_not(record):
    right = as_planned(plan_hosts([fact("a")], [])["a"])
    right["paths"]["/srv/models"] = {"type": "directory", "owner": "lab", "group": "root", "mode": "0775"}
    right["paths"][MADE_FOLDERS] = {"type": "file", "text": record}
    plan = plan_hosts([fact("a", observed=right)], [])["a"]
    wrong = ["owner is lab, not root", "mode is 0775, not 0755"] if record else []
    assert [each.problem for each in diff(plan.planned.resources, right)] == wrong


def test_a_backend_without_a_toolchain_is_refused_before_anything_is_built():
    (refusal,) = refusals(fact("a", llama_cpp_backend="metal"))
    assert "no toolchain for the backend metal" in refusal.what
    assert refusals(fact("a")) == []
