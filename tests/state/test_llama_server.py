"""The service: what systemd made of the unit, the process as the kernel sees it, what a client gets, and where the key is not.

Sources: systemd.exec(5), systemd.service(5), proc(5), and measurements on systemd 252.
"""

import difflib
import re

import pytest

from bigiron.judge import unit_settings
from bigiron.judge.checks import cannot_tell, check
from bigiron.units import gib

from . import test_llama_cpp, test_model
from .test_base import assert_is, assert_mode, assert_owner

MAX_EXPOSURE = 2.5
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "MemoryDenyWriteExecute": "yes",
    "RestrictSUIDSGID": "yes",
    "CapabilityBoundingSet": "",
    "UMask": "0077",
}
"""Effective for every server, whatever the template says: one that lost a line must not pass by agreeing with itself."""
LIMITS = {
    "LimitMEMLOCK": "Max locked memory",
    "LimitNOFILE": "Max open files",
    "LimitCORE": "Max core file size",
    "LimitNPROC": "Max processes",
}
SECRET = re.compile(r"API_KEY|TOKEN|SECRET|PASSW", re.IGNORECASE)
SECRET_LINE = re.compile(r"((?:KEY|TOKEN|SECRET|PASSW\w*)[= ]).*", re.IGNORECASE)
STRAY = re.compile(r"^(LLAMA_|GGML_|HF_|LD_|CUDA_VISIBLE)")
KEYED_PATHS = ("/props", "/v1/models", "/slots", "/metrics", "/completion")
KEY_PLACES = {"arguments": "argument lists", "environments": "environments", "files": "files other users can read"}
MOST_FILES = 5000


def unit_name(plan):
    return f"llama-server-{plan['llama_server_service']}.service"


def unit_path(plan):
    return f"/etc/systemd/system/{unit_name(plan)}"


def key_file(plan):
    return f"{plan['llama_server_config_dir']}/credentials/{plan['llama_server_service']}.key"


def keyed(plan):
    """Does the plan give the server an API key?"""
    return any(word.partition("=")[0] == "--api-key-file" for word in plan["llama_server_argv"])


def unit_file(plan):
    return {unit_path(plan): unit_path(plan)}


def key_files(plan):
    return {key_file(plan): key_file(plan)} if keyed(plan) else {}


def locks_memory(plan):
    return any("mlock" in word for word in plan["llama_server_argv"])


def first_shard(plan):
    return f"{test_model.folder(plan)}/{plan['model_entry']}"


def planned_unit(plan):
    return unit_settings.parse(plan["llama_server_unit_text"])


def settings(plan):
    """``{key: (key, planned values)}`` of everything in the unit that systemd can be asked about."""
    planned = dict.fromkeys(unit_settings.ALWAYS, ())
    for section in ("Unit", "Service", "Install"):
        planned.update(planned_unit(plan).get(section, {}))
    return {key: (key, list(planned[key])) for key in sorted(planned) if key not in unit_settings.ELSEWHERE}


def hardened(plan):
    """The one thing that a driver may loosen: one that compiles at run time writes code and runs it."""
    loose = {"MemoryDenyWriteExecute": "no"} if (plan.get("llama_server_gpu") or {}).get("writable_code") else {}
    return {key: (key, [value] if value else []) for key, value in {**HARDENED, **loose}.items()}


def limits(plan):
    return {
        key: (key, planned[-1]) for key, planned in planned_unit(plan).get("Service", {}).items() if key in LIMITS and planned
    }


def look(plan):
    """What the collector is to look at on the host."""
    config, address = plan["llama_server_config_dir"], plan["llama_server_host"]
    reach = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}.get(address, address)
    service = {
        "unit": unit_name(plan),
        "place": [reach, int(plan["llama_server_port"])],
        "key_file": key_file(plan),
        "env_names": sorted(plan.get("llama_server_environment", {})),
        "config_dir": config,
        "scan": [config, "/etc/systemd/system", "/run/bigiron", "/tmp", "/var/tmp", "/root/.ansible"],
    }
    if plan.completion:
        service["completion"] = {"prompt": "The three primary colours are", "n_predict": 16, "timeout_s": 300}
    return {"paths": [unit_path(plan), key_file(plan)], "texts": [unit_path(plan)], "service": service}


def log(plan):
    return f"on {plan.host}: journalctl -u {unit_name(plan)} -n 50 --no-pager"


def restart(plan):
    return f"on {plan.host}: systemctl restart {unit_name(plan)}; if it stays: ./inv provision --host {plan.host}"


def renew(plan):
    renewed = f"remove {key_file(plan)} on {plan.host} (or set another llama_server_api_key)"
    return f"{renewed}, then ./inv provision --host {plan.host}"


@pytest.fixture(scope="module")
def unit(found):
    """``systemctl show``."""
    return found["show"]


@pytest.fixture(scope="module")
def process(found):
    """What /proc says about the server's process."""
    return found["process"]


@pytest.fixture(scope="module")
def own_sockets(found, process):
    """``(address, port)`` of every TCP socket on which the server's own process listens."""
    mine = set(process["sockets"])
    return sorted((each["address"], each["port"]) for each in found["listen"]["sockets"] if each["inode"] in mine)


@pytest.fixture(scope="module")
def overridden(plan, found):
    """``overridden(key)``: ``(words, remedy)`` that name the drop-in whose ``key=`` wins over the unit's; empty without one."""

    def by(key):
        files = found.get("drop_ins") or {}
        files = [path for path, names in files.items() if any(name.endswith(f".{key}") for name in names)]
        if not files:
            return "", ""
        return f", set by {files[-1]}", (
            f"to keep it, move the setting into the inventory; then, or to drop it, on {plan.host}: rm {' '.join(files)} && "
            f"systemctl daemon-reload && systemctl restart {unit_name(plan)}; last ./inv provision --host {plan.host}"
        )

    return by


# The files


@check("unit-file.type", path=unit_file)
def test_unit_file_is_one(path, found, note):
    assert_is("file", path, found, note)


@check("unit-file.owner", path=unit_file)
def test_unit_file_belongs_to_root(path, found, note):
    assert_owner(path, "root:root", found, note)


@check("unit-file.mode", path=unit_file)
def test_unit_file_has_its_mode(path, found, note):
    assert_mode(path, "0644", found, note)


@check("key.type", path=key_files)
def test_key_file_is_one(path, found, note):
    assert_is("file", path, found, note)


@check("key.owner", path=key_files)
def test_key_file_belongs_to_root(path, found, note):
    assert_owner(path, "root:root", found, note)


@check("key.mode", path=key_files)
def test_key_file_is_for_root_alone(path, found, note):
    assert_mode(path, "0600", found, note)


# The unit, as systemd has it


@check("unit.loaded")
def test_unit_is_loaded(unit, note):
    note(f"LoadState is {unit['LoadState']}")
    assert unit["LoadState"] == "loaded"


@check("unit.text", "./inv provision --host {host} (your own settings belong in the inventory or a drop-in)")
def test_unit_file_has_the_planned_text(plan, found, note):
    path, planned = unit_path(plan), plan["llama_server_unit_text"]
    assert not found.absent("texts", path), f"{path} does not exist"
    there = found["texts"][path]
    lines = difflib.unified_diff(planned.splitlines(), there.splitlines(), lineterm="", n=0)
    changed = [line for line in lines if line[:1] in "+-" and not line.startswith(("+++", "---"))]
    hidden = "; ".join(SECRET_LINE.sub(r"\1(hidden)", line) for line in changed[:4])
    assert there == planned, f"it was edited: {hidden}" if changed else "it differs in line ends only"
    note("the file on disk is the planned text")


@check("unit.path", lambda plan: f"on {plan.host}: systemctl cat {unit_name(plan)}; then ./inv provision --host {plan.host}")
def test_systemd_reads_the_unit_from_there(plan, unit, note):
    """A unit of the same name in /run/systemd, or a mask, would win over ours."""
    path = unit.get("FragmentPath") or "nowhere"
    note(f"systemd reads it from {path}")
    assert path == unit_path(plan)


@check("unit.enabled")
def test_unit_starts_at_boot(unit, note):
    state = unit.get("UnitFileState") or "no such file"
    note(f"UnitFileState is {state}")
    assert state == "enabled"


@check("unit.active", log)
def test_unit_is_running(unit):
    assert (unit["ActiveState"], unit["SubState"]) == ("active", "running"), unit_settings.why_down(unit)


@check("unit.stable", log)
def test_unit_does_not_restart(unit, found, note):
    later = found["show_later"]
    same = all(unit.get(name) == later.get(name) for name in ("NRestarts", "MainPID", "ExecMainStartTimestampMonotonic"))
    note(f"{later.get('NRestarts')} restarts" + ("" if same else ", and it restarted while being looked at"))
    assert same


@check("unit.reloaded", "on {host}: systemctl daemon-reload, then ./inv provision --host {host}")
def test_systemd_has_read_the_files_as_they_are(unit):
    assert unit["NeedDaemonReload"] == "no", "the unit changed on disk since systemd read it"


@check("unit.type")
def test_unit_type_does_not_wait_for_a_notification(unit, note):
    """llama-server never calls sd_notify: with Type=notify systemd kills it at the timeout."""
    note(f"Type is {unit['Type']}")
    assert not unit["Type"].startswith("notify")


@check("unit.patient")
def test_start_timeout_is_longer_than_loading(plan, unit, note):
    """With Type=exec or simple, and nothing after it, the timeout covers the start of the program only."""
    if unit["Type"] in ("exec", "simple") and not unit.get("ExecStartPost"):
        note(f"Type={unit['Type']}: the start timeout does not cover loading the model")
        return
    needed = int(plan["llama_server_start_timeout_s"])
    note(f"the start timeout is {unit['TimeoutStartUSec']}, loading may take {needed} s")
    span = unit_settings.microseconds(unit["TimeoutStartUSec"])
    assert span is None or span >= needed * 10**6


@check("unit.effective", setting=settings)
def test_systemd_applies_the_planned_setting(setting, unit, overridden, note):
    assert_effective(*setting, unit, overridden, note)


@check("unit.hardened", setting=hardened)
def test_unit_is_hardened(setting, unit, overridden, note):
    assert_effective(*setting, unit, overridden, note)


def assert_effective(key, planned, unit, overridden, note):
    """What ``systemctl show`` prints for ``key`` means what is planned; else name the drop-in that says otherwise."""
    name = unit_settings.property_name(key)
    if unit["LoadState"] != "loaded":
        cannot_tell(f"the unit is {unit['LoadState']}")
    if name not in unit and key not in unit_settings.ALWAYS:
        cannot_tell(f"this systemd does not report {name}")
    shown = unit.get(name, "")
    try:
        same = unit_settings.agrees(key, planned, shown)
    except ValueError as problem:
        cannot_tell(f"{name}: {problem}")
    there, wanted = unit_settings.compared(key, planned, shown)
    by, remedy = ("", "") if same else overridden(key)
    note(f"{name} is {there}{by}" + ("" if same else f"; planned {wanted}"), remedy)
    assert same


@check("unit.hardened:SystemCallFilter")
def test_system_calls_are_filtered(plan, unit, overridden, note):
    if "SystemCallFilter" not in unit:
        cannot_tell("this systemd does not report SystemCallFilter")
    weak = unit_settings.filtered(
        planned_unit(plan).get("Service", {}).get("SystemCallFilter", []), unit.get("SystemCallFilter")
    )
    by, remedy = overridden("SystemCallFilter") if weak else ("", "")
    note(f"{weak}{by}" if weak else f"{len(unit['SystemCallFilter'].split())} system calls are named", remedy)
    assert not weak


@check("unit.exposure", lambda plan: f"on {plan.host}: systemd-analyze security {unit_name(plan)}")
def test_exposure_is_low(found, note):
    said = found["security"]["out"]
    match = re.search(r"exposure level for \S+: ([\d.]+)", said)
    if not match:
        cannot_tell(f"systemd-analyze security: {' '.join(said.split())[:200] or 'no output'}")
    note(f"exposure {match.group(1)}, at most {MAX_EXPOSURE}")
    assert float(match.group(1)) <= MAX_EXPOSURE


@check("unit.lint", lambda plan: f"on {plan.host}: systemd-analyze verify {unit_name(plan)}")
def test_systemd_has_no_complaint(plan, found):
    """Its exit code is 0 for keys in the wrong section and unknown escapes; only what it prints counts."""
    code, said = found["lint"]["rc"], found["lint"]["out"]
    lines = [line.strip() for line in said.splitlines() if unit_name(plan) in line]
    if not lines and code != 0:
        cannot_tell(f"systemd-analyze verify failed: {' '.join(said.split())[:200]}")
    assert not lines, "; ".join(lines[:3])


# The process, as the kernel has it: /proc/PID, never the unit's text


@check("process.running", log)
def test_process_runs(found, note):
    assert not found.absent("process"), found.get("process")["error"]
    note(f"process {found['process']['pid']}")


@check("process.program", restart)
def test_process_runs_the_planned_release(plan, process, overridden, note):
    program, planned = process["exe"], f"{test_llama_cpp.folder(plan)}/bin/llama-server"
    if program == planned:
        note(f"it runs {program}")
        return
    by, remedy = overridden("ExecStart")
    removed = program.endswith(" (deleted)")
    note(
        f"it runs a file that was removed since: {program[:-10]}" if removed else f"it runs {program}{by}; planned {planned}",
        remedy,
    )
    assert program == planned


@check("process.user", restart)
def test_process_runs_as_the_service_user(found, process, overridden, note):
    assert_ids("user", process["status"]["Uid"], found["user"]["uid"], overridden("User"), note)


@check("process.group", restart)
def test_process_runs_in_the_service_group(found, process, overridden, note):
    assert_ids("group", process["status"]["Gid"], found["user"]["gid"], overridden("Group"), note)


def assert_ids(what, ids, planned, override, note):
    by, remedy = override if set(ids.split()) != {str(planned)} else ("", "")
    note(f"its {what} ids are {', '.join(sorted(set(ids.split())))}{by}, planned {planned}", remedy)
    assert set(ids.split()) == {str(planned)}


@check("process.arguments", restart)
def test_process_has_the_planned_arguments(plan, process, overridden, note):
    have, want = process["cmdline"], list(plan["llama_server_argv"])
    if have == want:
        note(f"its {len(want)} arguments are the planned ones")
        return
    by, remedy = overridden("ExecStart")
    first = next((at for at, (one, other) in enumerate(zip(have, want, strict=False)) if one != other), None)
    said = f"it has {len(have)} arguments, planned {len(want)}" if first is None else ""
    note((said or f"argument {first} is {have[first]!r}, planned {want[first]!r}") + by, remedy)
    assert have == want


@check("process.environment", restart)
def test_process_has_exactly_the_planned_environment(plan, process, overridden, note):
    """``env -i`` leaves nothing of the manager's."""
    planned, environ = dict(plan.get("llama_server_environment", {})), process["environ"]
    names = set(environ["names"])
    problems = {
        "unplanned": sorted(names - set(planned)),
        "missing": sorted(set(planned) - names),
        "other values:": sorted(name for name, value in environ["planned"].items() if value != planned[name]),
    }
    wrong = "; ".join(f"{word} {', '.join(found)}" for word, found in problems.items() if found)
    by, remedy = overridden("ExecStart") if wrong else ("", "")
    note(f"{wrong}{by}" if wrong else f"exactly the {len(planned)} planned variables", remedy)
    assert not wrong


@check("process.strays", restart)
def test_no_variable_changes_the_server(plan, process):
    planned = plan.get("llama_server_environment", {})
    strays = [
        name for name in process["environ"]["names"] if name not in planned and (STRAY.match(name) or SECRET.search(name))
    ]
    assert not strays, f"variables that change the server or hold a secret: {', '.join(strays)}"


@check("process.limit", restart, setting=limits)
def test_limit_is_in_force(setting, process, note):
    """A container's own hard limit may cap it: that is no fault of the unit."""
    name, planned = LIMITS[setting[0]], setting[1]
    limit, wanted = unit_settings.limit(process["limits"][name][1]), unit_settings.size(planned.rpartition(":")[2])
    ceiling = unit_settings.limit(process["caps"][name][1])
    capped = limit != wanted and ceiling is not None and (wanted is None or ceiling < wanted) and limit == ceiling
    note(f"{name}: {limit}, planned {planned}" + (": the container's own limit caps it" if capped else ""))
    assert limit == wanted or capped


@check("process.mlock", "take mlock out of llama_server_extra_args, or raise the container's memlock limit", when=locks_memory)
def test_the_model_can_be_locked_in_memory(plan, found, process, note):
    """Too little memory and too low a limit are different faults (llama.cpp#888)."""
    weights, total = int(plan["llama_server_weight_bytes"]), found["model"]["memory_total"]
    assert weights <= total, f"locking is impossible: the model has {gib(weights)}, the machine {gib(total)}"
    limit = unit_settings.limit(process["limits"]["Max locked memory"][1])
    note(f"it may lock {'everything' if limit is None else f'{limit} bytes'}, the model has {gib(weights)}")
    assert limit is None or limit >= weights


@check("process.no-new-privileges", restart)
def test_process_gains_no_privileges(process, note):
    note(f"NoNewPrivs is {process['status']['NoNewPrivs']}")
    assert process["status"]["NoNewPrivs"] == "1"


@check("process.capabilities", restart, capability=("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"))
def test_process_has_no_capability(capability, process, note):
    note(f"{capability} is {process['status'][capability]}")
    assert int(process["status"][capability], 16) == 0


@check("process.seccomp", restart)
def test_process_has_a_system_call_filter(process, note):
    note(f"Seccomp mode is {process['status']['Seccomp']} (2: a filter is active)")
    assert process["status"]["Seccomp"] == "2"


@check("process.oom-score", restart)
def test_process_is_killed_first_when_memory_is_short(plan, process, note):
    planned = planned_unit(plan).get("Service", {}).get("OOMScoreAdjust", ["0"])[-1]
    note(f"oom_score_adj is {process['oom_score_adj']}, planned {planned}")
    assert process["oom_score_adj"] == int(planned)


@check("listener.address", lambda plan: f"on {plan.host}: ss -ltnp; then ./inv provision --host {plan.host}")
def test_it_listens_where_planned(plan, found, process, own_sockets, note):
    address, port = str(plan["llama_server_host"]), int(plan["llama_server_port"])
    note(f"its process listens on {address}:{port}")
    others = [f"{name} ({pid})" for pid, name in found["listen"]["owners"].items() if pid != str(process["pid"])]
    elsewhere = ", ".join(f"{at}:{number}" for at, number in own_sockets) or "nowhere"
    taken = f"; port {port} belongs to {', '.join(others)}" if others else ""
    there = {(address, port), ("127.0.0.1" if address == "localhost" else address, port)}
    assert there & set(own_sockets), f"it listens {elsewhere}, planned {address}:{port}{taken}"


@check("listener.alone")
def test_it_listens_nowhere_else(plan, own_sockets):
    extra = [f"{address}:{port}" for address, port in own_sockets if port != int(plan["llama_server_port"])]
    assert not extra, f"it also listens on {', '.join(extra)}"


@check("listener.guarded")
def test_only_loopback_is_open_without_a_key(plan, own_sockets, note):
    if not own_sockets:
        cannot_tell("it listens nowhere")
    loopback = all(address.startswith("127.") or address == "::1" for address, _ in own_sockets)
    note("loopback only" if loopback else f"reachable from the network with{'' if keyed(plan) else 'out'} a key")
    assert loopback or keyed(plan)


# The server, as a client has it


@check("model.entry")
def test_it_was_told_to_load_the_first_shard(plan, process, note):
    note(f"the server was told to load {first_shard(plan)}")
    assert first_shard(plan) in process["cmdline"], f"no argument of the running server is {first_shard(plan)}"


@check("http.health", log)
def test_it_is_healthy(found, note):
    """Only /health counts: other paths may answer while the model is still loading."""
    health = found["serving"].get("health") or {}
    assert not health.get("silent"), health["error"]
    status = found["serving"]["health"]["status"]
    note(f"/health answers {status}" + (" (still loading)" if status == 503 else ""))
    assert status == 200


@check("http.own-process", lambda plan: f"on {plan.host}: ss -ltnp 'sport = :{plan['llama_server_port']}'")
def test_the_units_own_process_answers(plan, found, process, note):
    if found["host"]["euid"] != 0:
        cannot_tell("needs root to see who owns the port")
    owners = found["listen"]["owners"]
    names = ", ".join(f"{name} ({pid})" for pid, name in owners.items()) or "nobody"
    note(f"port {plan['llama_server_port']} is served by {names}")
    assert set(owners) == {str(process["pid"])}


@check("key.refused", when=keyed, path=KEYED_PATHS)
def test_without_a_key_it_refuses(path, found, note):
    note(f"{path} without a key answers {found['serving']['open'][path]}, planned 401")
    assert found["serving"]["open"][path] == 401


@check("key.wrong", when=keyed)
def test_with_a_wrong_key_it_refuses(found, note):
    note(f"a wrong key is answered with {found['serving']['wrong_key']}, planned 401")
    assert found["serving"]["wrong_key"] == 401


def stale_key(plan):
    return f"on {plan.host}: systemctl restart {unit_name(plan)} (a new key is read at start only)"


@check("key.admitted", stale_key, page={"/props": ("/props", "props"), "/v1/models": ("/v1/models", "models")})
def test_with_the_key_it_answers(page, found, note):
    path, name = page
    note(f"{path} with the key answers {found['serving'][name]['status']}")
    assert found["serving"][name]["status"] == 200


@check("http.model", stale_key)
def test_it_loaded_the_planned_model(plan, found, note):
    loaded = found["serving"]["props"]["model_path"]
    note(f"the server says it loaded {loaded}, planned {first_shard(plan)}")
    assert loaded == first_shard(plan)


@check("http.alias", stale_key)
def test_it_serves_one_model_under_its_name(plan, found, note):
    names, argv = found["serving"]["models"]["ids"], plan["llama_server_argv"]
    planned = argv[argv.index("--alias") + 1] if "--alias" in argv else None
    note(f"it serves {', '.join(map(str, names))}" + (f", planned {planned}" if planned else ""))
    assert planned in names if planned else len(names) == 1


@check("completion", log, when=lambda plan: plan.completion)
def test_it_completes_a_prompt(found, note):
    answer = found.get("completion") or {}
    assert not answer.get("silent"), answer["error"]
    answer = found["completion"]
    assert answer["status"] == 200, f"a completion is answered with {answer['status']}"
    assert answer.get("tokens"), "a completion returned no token"
    speeds = [f"{answer[name]:.1f} tok/s {name[:-4]}" for name in ("prefill_tps", "generation_tps") if answer.get(name)]
    note(f"{answer['tokens']} tokens in {answer['seconds']:.1f} s" + (f" ({', '.join(speeds)})" if speeds else ""))


# The key: nowhere but in its file


@check("secret.no-argument")
def test_no_secret_is_an_argument(process, overridden, note):
    """Even a key that is not ours."""
    options = [word.partition("=")[0] for word in process["cmdline"]]
    given = [option for option in options if option in ("--api-key", "--hf-token", "-hft")]
    by, remedy = overridden("ExecStart") if given else ("", "")
    note(
        f"the server was given {', '.join(given)} as an argument{by}" if given else "no secret option in its arguments", remedy
    )
    assert not given


@check("secret.length", renew, when=keyed)
def test_key_is_long(found, note):
    length = (found.get("secrets") or {}).get("length") or found["secrets"]["length"]
    note(f"the key has {length} characters, at least 16")
    assert length >= 16


@check("secret.{name}", renew, when=keyed, place=tuple(KEY_PLACES))
def test_key_is_not_lying_about(place, found, note):
    if found["host"]["euid"] != 0 and place == "environments":
        cannot_tell("needs root to read other users' environments")
    leaks, number = found["secrets"][place], found["secrets"]["scanned" if place == "files" else "processes"]
    more = ", the rest was left out" if place == "files" and number >= MOST_FILES else ""
    note(f"not in the {KEY_PLACES[place]} ({number} searched{more})")
    assert not leaks, f"the key is in {', '.join(leaks[:5])}"


@check("secret.journal", renew, when=keyed)
def test_key_is_not_in_the_journal(plan, found):
    assert found["secrets"]["journal"] is False, f"the key is in the journal of {unit_name(plan)}"


@check("secret.show", renew, when=keyed)
def test_key_is_not_in_what_systemctl_prints(found):
    assert found["secrets"]["show"] is False, "the key is in what systemctl show prints to everybody"
