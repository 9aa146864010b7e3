"""The main job, end to end, on a real (container) host over real SSH. Order matters: the host is provisioned once and then lived with."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml
from tests.conftest import MAIN, SECOND, UNTIL_8080_LISTENS, footprint, inv, on, root_of

from bigiron.paths import PROJECT

pytestmark = [pytest.mark.lab, pytest.mark.timeout(45 * 60)]
UNIT = "llama-server-main.service"
DOWN = "lab05"  # no test brings it up
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
HEALTHY = """python3 -c 'import urllib.request; urllib.request.urlopen("http://127.0.0.1:8080/health")'"""


def only(done):
    assert done.document, done
    (host,) = done.document["hosts"]
    return host


def test_check_passes_on_a_virgin_host_and_changes_nothing(virgin, checked):
    done, after = checked
    assert done.code == 0, done
    for expected in ("llama-server-main.service", "libgomp1", "not fetched", "ExecStart="):
        assert expected in done.out
    assert after == virgin


def test_first_provision_ends_with_a_verified_server(provisioned):
    host = only(provisioned)
    assert host["status"] == "changed"
    assert host["verdict"]["ok"] is True
    assert len(host["verdict"]["checks"]) >= 100
    assert host["measured"]["generation_tps"] > 0.5
    assert host["measured"]["generated_tokens"] > 0


def test_the_lock_names_what_runs(provisioned):
    lock = yaml.safe_load((PROJECT / "inventory/lab/locks" / f"{MAIN}.yml").read_text())
    running = on(MAIN, f"readlink /proc/$(systemctl show -P MainPID {UNIT})/exe").strip()
    assert running == f"/opt/bigiron/releases/{lock['release']['fingerprint']}/bin/llama-server"
    for file in lock["model"]["files"]:
        path = f"/srv/models/{lock['model']['repo']}/{lock['model']['revision']}/{file['path']}"
        assert on(MAIN, f"sha256sum {path}").split()[0] == file["sha256"]


def test_second_provision_changes_nothing(main_host):
    before, started = footprint(MAIN), on(MAIN, f"systemctl show -P ExecMainStartTimestampMonotonic {UNIT}")
    done = inv("provision", "--host", MAIN)
    assert done.code == 0, done
    assert f"{MAIN}: in sync" in done.out
    assert footprint(MAIN) == before
    assert on(MAIN, f"systemctl show -P ExecMainStartTimestampMonotonic {UNIT}") == started


def test_no_operation_costs_one_connection(main_host):
    count = "journalctl -u ssh -o cat | grep -c 'Accepted publickey'"
    before = int(on(MAIN, count))  # this look is itself one more
    assert inv("provision", "--host", MAIN).code == 0
    assert int(on(MAIN, count)) - before == 2


def test_ask_answers(main_host):
    done = inv("ask", "The capital of France is", "--host", MAIN, "--tokens", "8", "--json")
    assert done.code == 0, done
    assert done.document["content"].strip()


def test_key_is_readable_by_nobody_else(main_host):
    key = on(MAIN, "cat /etc/bigiron/credentials/main.key").strip()
    assert len(key) >= 32
    seen = on(
        MAIN,
        "runuser -u nobody -- sh -c 'cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; systemctl show llama-server-main; "
        "systemctl cat llama-server-main; cat /etc/bigiron/* /etc/bigiron/credentials/* 2>/dev/null' | tr '\\0' '\\n'; journalctl -b -o cat",
    )
    assert "--api-key-file" in seen  # the look did see the command line
    assert key not in seen
    assert on(MAIN, "stat -c '%U %a' /etc/bigiron/credentials/main.key").split() == ["root", "600"]


STATUS_OF = """
import sys, urllib.error, urllib.request
for path in sys.argv[1:]:
    try:
        print(urllib.request.urlopen("http://127.0.0.1:8080" + path).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


def test_server_wants_the_key_and_listens_on_loopback_only(main_host):
    assert on(MAIN, "python3 - /v1/models /metrics /health", stdin=STATUS_OF).split() == ["401", "401", "200"]
    listeners = on(MAIN, "ss -Hltn")
    assert re.search(r"127\.0\.0\.1:8080\b", listeners)
    assert not re.search(r"(0\.0\.0\.0|\*|\[::\]):8080\b", listeners)


def test_exposure_is_low(main_host):
    level = re.search(r"Overall exposure level.*: ([\d.]+)", on(MAIN, f"systemd-analyze security --no-pager {UNIT}"))
    assert level
    assert float(level[1]) <= 2.5


def test_hand_edit_is_drift_and_is_repaired(main_host):
    on(MAIN, f"sed -i 's/^Restart=on-failure$/Restart=always/' {UNIT_FILE}")
    drift = inv("drift", "--host", MAIN)
    assert drift.code == 2, drift
    assert "-Restart=always" in drift.out
    assert "+Restart=on-failure" in drift.out
    repair = inv("provision", "--host", MAIN, "--json")
    assert repair.code == 0, repair
    assert only(repair)["roles"] == ["llama_server"]
    assert inv("drift", "--host", MAIN).code == 0


def test_a_stopped_service_is_drift_and_is_repaired(main_host):
    on(MAIN, f"systemctl disable --now {UNIT}")
    drift = inv("drift", "--host", MAIN)
    assert drift.code == 2, drift
    assert "disabled" in drift.out
    assert inv("provision", "--host", MAIN).code == 0
    assert on(MAIN, f"systemctl is-active {UNIT}").strip() == "active"


def test_an_argument_that_the_build_lacks_leaves_the_running_service_alone(main_host, lab_with):
    pid = on(MAIN, f"systemctl show -P MainPID {UNIT}")
    done = inv("provision", "--host", MAIN, "--inventory", lab_with(llama_server_extra_args=["--no-mmap"]))
    assert done.code == 4, done
    assert "this build has no option --no-mmap" in done.err
    assert on(MAIN, f"systemctl show -P MainPID {UNIT}") == pid
    assert inv("drift", "--host", MAIN).code == 0


def test_a_service_that_systemd_gave_up_on_is_started_again(main_host):
    on(
        MAIN,
        f"mkdir -p /etc/systemd/system/{UNIT}.d; printf '[Service]\nExecStartPre=/bin/false\nRestartSec=0\n' > /etc/systemd/system/{UNIT}.d/broken.conf",
    )
    on(MAIN, f"systemctl daemon-reload; systemctl restart {UNIT}", check=False)
    on(MAIN, f"for _ in $(seq 600); do systemctl is-failed -q {UNIT} && exit; sleep 0.1; done; exit 1")
    assert on(MAIN, f"systemctl show -P Result {UNIT}").strip() == "start-limit-hit" or "failed" in on(
        MAIN, f"systemctl is-failed {UNIT}", check=False
    )
    on(MAIN, f"rm -r /etc/systemd/system/{UNIT}.d")
    done = inv("provision", "--host", MAIN)
    assert done.code == 0, done
    assert on(MAIN, f"systemctl is-active {UNIT}").strip() == "active"


def test_a_damaged_shard_is_found_and_fetched_again(main_host):
    lock = yaml.safe_load((PROJECT / "inventory/lab/locks" / f"{MAIN}.yml").read_text())
    shard = lock["model"]["files"][-1]
    path = f"/srv/models/{lock['model']['repo']}/{lock['model']['revision']}/{shard['path']}"
    on(MAIN, f"printf x | dd of={path} bs=1 seek=4096 conv=notrunc status=none")
    deep = inv("verify", "--host", MAIN, "--deep", "--json")
    assert deep.code == 1, deep
    failed = [check for check in deep.document[0]["checks"] if check["ok"] is False]
    assert any(shard["path"].rsplit("/", 1)[-1] in check["id"] + check["detail"] for check in failed)
    assert all(check["remedy"] for check in failed)
    on(MAIN, f"rm {path}")
    assert inv("provision", "--host", MAIN).code == 0
    assert on(MAIN, f"sha256sum {path}").split()[0] == shard["sha256"]


def test_stray_environment_of_the_manager_does_not_reach_the_server(main_host):
    on(MAIN, f"systemctl set-environment LLAMA_API_KEY=stray LLAMA_ARG_CTX_SIZE=64; systemctl restart {UNIT}")
    try:
        assert inv("provision", "--host", MAIN).code == 0
        environment = on(MAIN, f"tr '\\0' '\\n' < /proc/$(systemctl show -P MainPID {UNIT})/environ")
        assert "LANG=C.UTF-8" in environment
        assert "LLAMA_" not in environment
    finally:
        on(MAIN, "systemctl unset-environment LLAMA_API_KEY LLAMA_ARG_CTX_SIZE")


def test_verify_writes_junit(main_host, tmp_path):
    report = tmp_path / "verdict.xml"
    done = inv("verify", "--host", MAIN, "--junit", str(report), "--json")
    assert done.code == 0, done
    assert len(done.document[0]["checks"]) >= 100
    assert report.read_text().count("<testcase") >= 100


def test_an_override_is_named_before_and_after_the_restart(main_host):
    folder = f"{UNIT_FILE}.d"
    line = on(MAIN, f"grep ^ExecStart= {UNIT_FILE}").strip()
    override = f"[Service]\nExecStart=\n{line} --threads 1\n"
    on(MAIN, f"mkdir {folder}; cat > {folder}/override.conf; systemctl daemon-reload", stdin=override)
    try:
        for restart_first, ids in (
            (False, {"unit.effective:ExecStart"}),
            (True, {"unit.effective:ExecStart", "process.arguments"}),
        ):
            if restart_first:
                on(MAIN, f"systemctl restart {UNIT}; for i in $(seq 60); do {HEALTHY} 2>/dev/null && break; sleep 1; done")
            done = inv("verify", "--host", MAIN, "--json")
            assert done.code == 1, done
            failed = {check["id"]: check for check in done.document[0]["checks"] if check["ok"] is False}
            assert set(failed) == ids
            assert all(f"{folder}/override.conf" in check["detail"] for check in failed.values())
        remedy = failed["process.arguments"]["remedy"]
        on(MAIN, remedy.partition(f"on {MAIN}: ")[2].partition(";")[0])
        assert inv("provision", "--host", MAIN).code == 0
        assert inv("verify", "--host", MAIN).code == 0
    finally:
        on(MAIN, f"rm -rf {folder}; systemctl daemon-reload")


def test_pytest_alone_plans_and_judges(main_host):
    argv = [sys.executable, "-m", "pytest", "tests/state", f"--hosts=ansible://{MAIN}", "--ansible-inventory=inventory/lab"]
    done = subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(rf"{MAIN}: ok \(1\d\d checks\)", done.stdout)


def test_a_persons_own_test_is_in_the_verdict(main_host, lab_with, tmp_path):
    (tmp_path / "test_mine.py").write_text(
        "def test_root(host):\n    assert host.check_output('id -un; hostname') == 'root\\n" + MAIN + "'\n"
        "def test_no_such_service(host):\n    assert host.service('nosuch').is_running, 'it is not there'\n"
    )
    done = inv("verify", "--host", MAIN, "--inventory", lab_with(bigiron_site_tests=str(tmp_path)), "--json")
    assert done.code == 1, done
    own = {check["id"]: check for check in done.document[0]["checks"] if check["id"].startswith("site.")}
    assert {name: check["ok"] for name, check in own.items()} == {
        "site.test_mine::test_root": True,
        "site.test_mine::test_no_such_service": False,
    }
    assert own["site.test_mine::test_no_such_service"]["detail"] == "it is not there"


def test_wrong_source_checksum_loses_nothing(main_host, lab_with):
    before = on(MAIN, "readlink /opt/bigiron/current; ls /opt/bigiron/releases")
    done = inv("provision", "--host", MAIN, "--inventory", lab_with(llama_cpp_source_sha256="0" * 64))
    assert done.code == 1, done
    assert "0" * 64 in done.err
    assert on(MAIN, "readlink /opt/bigiron/current; ls /opt/bigiron/releases") == before
    assert inv("provision", "--host", MAIN).code == 0


def test_a_context_that_does_not_fit_is_refused_with_what_would(main_host, lab_with):
    done = inv("provision", "--host", MAIN, "--inventory", lab_with(llama_server_context=500_000_000))
    assert done.code == 4, done
    assert "does not fit" in done.err
    assert inv("drift", "--host", MAIN).code == 0


def test_the_best_quant_is_chosen_from_true_headers(main_host, lab_with):
    done = inv("plan", "--host", MAIN, "--inventory", lab_with(model_quant="auto"), "--json")
    assert done.code == 0, done
    assert done.document[MAIN]["model"]["model"]["parameters"] == 268_098_176
    assert done.document[MAIN]["variables"]["model_quant"] == "Q4_K_M"
    assert done.document[MAIN]["in_sync"] is True


def test_a_plan_without_a_host_reads_headers_from_the_hub(main_host):
    from bigiron.lab import lab

    lock = yaml.safe_load((PROJECT / "inventory/lab/locks" / f"{MAIN}.yml").read_text())["model"]
    environment = {**os.environ, "HF_ENDPOINT": lab.status().mirror_url}
    done = inv("plan", "--machine", "lab", "--model", f"{lock['repo']}@{lock['revision']}", "--json", env=environment)
    assert done.code == 0, done
    assert done.document["model"]["parameters"] == 268_098_176


def test_a_taken_port_is_refused_by_name(lab_up):
    on(SECOND, "systemd-run --unit=squatter python3 -m http.server 8080 --bind 127.0.0.1")
    on(SECOND, UNTIL_8080_LISTENS)
    before = footprint(SECOND)
    try:
        done = inv("provision", "--host", SECOND)
        assert done.code == 4, done
        assert "8080" in done.err
        assert "python3" in done.err
        assert "squatter.service" in done.err
        assert footprint(SECOND) == before
    finally:
        on(SECOND, "systemctl stop squatter")


def test_a_disk_too_small_is_refused_before_the_first_byte(main_host):
    on(SECOND, "mkdir -p /srv/models && mount -t tmpfs -o size=64M tmpfs /srv/models")
    try:
        done = inv("provision", "--host", SECOND)
        assert done.code == 4, done
        assert "/srv/models" in done.err
        assert "free" in done.err
        assert on(SECOND, "ls -A /srv/models") == ""
    finally:
        on(SECOND, "umount /srv/models && rmdir /srv/models")


def test_interrupted_provision_is_carried_on_and_a_second_host_compiles_nothing(main_host):
    with subprocess.Popen(
        # a test run that was started in the background ignores SIGINT, and so would this
        ["env", "--default-signal=INT", PROJECT / "inv", "provision", "--host", SECOND],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stderr:
            if "base" in line and "(changed)" in line:  # it is in the middle of changing the host
                break
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=120)
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    done = inv("provision", "--host", SECOND, "--json")
    assert done.code == 0, done
    assert only(done)["verdict"]["ok"] is True
    assert on(SECOND, "command -v g++ cmake ninja || echo none").strip() == "none"
    second = inv("provision", "--host", f"{MAIN},{SECOND}", "--json")
    assert [host["status"] for host in second.document["hosts"]] == ["in sync", "in sync"]


def test_unreachable_host_is_exit_3_and_the_other_one_is_done(main_host):
    on(SECOND, "systemctl stop ssh.socket ssh 2>/dev/null; true", check=False)
    try:
        done = inv("provision", "--host", f"{MAIN},{SECOND}", "--json")
        assert done.code == 3, done
        assert {host["host"]: host["status"] for host in done.document["hosts"]} == {MAIN: "in sync", SECOND: "unreachable"}
    finally:
        restart(SECOND)


def test_a_lab_host_that_is_down_is_an_error_of_its_own_and_is_not_booted(main_host):
    done = inv("drift", "--host", f"{MAIN},{DOWN}", "--json")
    assert done.code == 3, done
    assert done.document[MAIN]["in_sync"] is True
    assert done.document[DOWN]["hint"] == f"./inv lab.up --host {DOWN}"
    assert not root_of(DOWN).exists()


def restart(host):
    from bigiron.lab import lab, nspawn, state

    leader = state.load().hosts[host].leader
    nspawn.stop(host, leader)
    lab.up(0, lambda _: None, names=[host])


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LANG": "xx_YY.UTF-8"}, {"LC_ALL": "POSIX"}, {}])
def test_any_locale_works(main_host, locale):
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **locale}
    done = inv("plan", "--host", MAIN, env=environment)
    assert done.code == 0, done
    assert "Traceback" not in done.err


def test_closed_stdin_and_a_reader_that_leaves(main_host):
    done = subprocess.run(
        f"{PROJECT}/inv plan --host {MAIN} <&- | head -1", shell=True, capture_output=True, text=True, check=False
    )
    assert done.stdout
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_argv_reaches_a_program_byte_for_byte(lab_up, tmp_path):
    from tests.unit.test_render import NASTY

    from bigiron.render import systemd_command

    argv = ["/usr/bin/python3", "-c", "import json,sys; json.dump(sys.argv[1:], open('/run/argv.json','w'))", *NASTY]
    unit = f"[Service]\nType=oneshot\nExecStart={systemd_command(argv)}\n"
    on(SECOND, "cat > /run/systemd/system/argv.service; systemctl daemon-reload; systemctl start argv", stdin=unit)
    assert json.loads(on(SECOND, "cat /run/argv.json; rm /run/argv.json /run/systemd/system/argv.service")) == NASTY


def test_teardown_leaves_a_virgin_host(virgin, main_host):
    kept = inv("teardown", "--host", MAIN)
    assert kept.code == 0, kept
    assert on(MAIN, "find /srv/models -name '*.gguf' | wc -l").strip() != "0"
    gone = inv("teardown", "--host", MAIN, "--models")
    assert gone.code == 0, gone
    assert footprint(MAIN) == virgin
    drift = inv("drift", "--host", MAIN, "--json")
    assert drift.code == 2
    assert drift.document[MAIN]["roles"] == ["base", "llama_cpp", "model", "llama_server"]
    again = inv("teardown", "--host", MAIN, "--models")
    assert again.code == 0
    assert "nothing to remove" in again.out


@pytest.fixture
def lab_with(tmp_path):
    """An inventory beside the lab's own that overrides some variables."""

    def make(**variables):
        folder = tmp_path / f"override-{time.monotonic_ns()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        (folder / "hosts.yml").write_text(yaml.safe_dump({"lab": {"hosts": {MAIN: variables}}}))
        return f"inventory/lab,{folder}"

    return make
