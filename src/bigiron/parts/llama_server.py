"""The service: one llama-server with the planned arguments, hardened, enabled, and restarted when what it was started from changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigiron.errors import Refused
from bigiron.onhost import dropins
from bigiron.parts import base, llama_cpp, model
from bigiron.parts.part import SERVICE, Facts, Planned, Reason, Resource, Watched, file_resource
from bigiron.plan.arguments import advise
from bigiron.plan.build_options import Access
from bigiron.plan.capabilities import unsupported
from bigiron.plan.choose import AUTO, Wish
from bigiron.plan.places import check_address
from bigiron.render import render

STAGE = SERVICE
CONFIG_DIR = "/etc/bigiron"
KEY = "llama_server_api_key"
SECRETS = (KEY,)
"""The variable with the API key; without it the host makes its own."""
ENVIRONMENT = {"HOME": "/nonexistent", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}
COMMAND = dropins.DECISIVE
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


def unit(wish: Mapping[str, Any]) -> str:
    """The name of the unit."""
    return f"llama-server-{wish['llama_server_service']}.service"


def unit_path(wish: Mapping[str, Any]) -> str:
    return f"/etc/systemd/system/{unit(wish)}"


def key_path(wish: Mapping[str, Any]) -> str:
    return f"{CONFIG_DIR}/credentials/{wish['llama_server_service']}.key"


def rollback_path(wish: Mapping[str, Any]) -> str:
    """Where the host keeps the way back to the previous release and unit (`bigiron.onhost.rollback`)."""
    return f"{CONFIG_DIR}/{wish['llama_server_service']}.rollback.json"


def depends_on(wish: Mapping[str, Any]) -> list[str]:
    """The paths that make a process stale when they change after its start: for observer, role and verifier alike."""
    return [unit_path(wish), key_path(wish), llama_cpp.CURRENT, model.proof(wish)]


def reached_at(wish: Mapping[str, Any]) -> str:
    """The address on the host itself where the server answers."""
    return _ANY_ADDRESS.get(wish["llama_server_host"], str(wish["llama_server_host"]))


def wanted(wish: Mapping[str, Any]) -> Wish:
    """What the placement of the model has to hold."""
    quant, slots = model.repository(wish).quant, wish["llama_server_parallel"]
    return Wish(
        context=wish["llama_server_context"] * slots,
        slots=slots,
        quant=quant or AUTO,
        type_k=wish["llama_server_cache_type_k"],
        type_v=wish["llama_server_cache_type_v"],
        cache_ram_mib=wish["llama_server_cache_ram_mib"],
        threads=wish["llama_server_threads"],
    )


def directories(_wish: Mapping[str, Any]) -> list[dict[str, str]]:
    modes = {CONFIG_DIR: "0755", f"{CONFIG_DIR}/credentials": "0700"}
    return [{"path": path, "owner": "root", "group": "root", "mode": mode} for path, mode in modes.items()]


def watch(wish: Mapping[str, Any]) -> Watched:
    where = {"host": reached_at(wish), "port": wish["llama_server_port"], "depends_on": depends_on(wish)}
    return {
        "file": [unit_path(wish)],
        "secret": [key_path(wish)],
        "service": {unit(wish): where},
        "port": [wish["llama_server_port"]],
        "rollback": [rollback_path(wish)],
    }


def plan(facts: Facts, so_far: Planned) -> Planned:
    wish, served = facts.wish, facts.served
    argv = _argv(facts, so_far.variables["model_entry"])
    variables = {
        "llama_server_service": wish["llama_server_service"],
        "llama_server_host": wish["llama_server_host"],
        "llama_server_port": wish["llama_server_port"],
        "llama_server_argv": argv,
        "llama_server_environment": {**ENVIRONMENT, **llama_cpp.access(facts).environment, **_caches(facts)},
        "llama_server_user": base.USER,
        "llama_server_prefix": llama_cpp.PREFIX,
        "llama_server_config_dir": CONFIG_DIR,
        "llama_server_model_root": wish["model_root"],
        "llama_server_depends_on": depends_on(wish),
        "llama_server_weight_bytes": facts.files.total_bytes,
        "llama_server_start_timeout_s": served.start_timeout_s,
        "llama_server_memory_max_bytes": 0,
        "llama_server_lock_memory": any("mlock" in word for word in argv),
        "llama_server_gpu": _gpu(facts),
    }
    private = {"owner": "root", "group": "root", "mode": "0600", "variable": KEY}
    runs = {
        "exe": f"{llama_cpp.PREFIX}/releases/{facts.release.fingerprint}/bin/llama-server",
        "argv": argv,
        "port": wish["llama_server_port"],
        "command": COMMAND,
    }
    resources = (
        file_resource("llama_server", unit_path(wish), render("llama-server.service", variables)),
        Resource("secret", key_path(wish), "llama_server", private),
        *_rolled_back(facts),
        Resource("service", unit(wish), "llama_server", runs),
    )
    listens = f"{wish['llama_server_host']}:{wish['llama_server_port']}"
    reason = Reason("listen", listens, "with an API key that only root and the unit can read")
    refusals, findings = _overridden(facts)
    advice = advise(wish["llama_server_extra_args"], served.facts, served.hardware)
    return Planned(
        variables,
        resources,
        [reason],
        [*_refused(facts), *refusals, *_taken(facts), *_not_understood(facts, argv)],
        [*findings, *advice],
    )


def _rolled_back(facts: Facts) -> list[Resource]:
    """That nobody rolled this service back: a difference of its own where somebody did, beside the release and the unit that differ then."""
    path = rollback_path(facts.wish)
    done = facts.observed["rollbacks"].get(path, {}).get("rolled_back")
    return [Resource("rollback", path, "llama_server")] if done else []


def _gpu(facts: Facts) -> dict[str, Any]:
    """What the unit opens for a GPU; nothing where the model runs on the CPU alone."""
    needs = llama_cpp.access(facts)
    if needs == Access():
        return {}
    return {
        "allow": list(needs.allow),
        "nodes": [f"/dev/{node}" for node in needs.devices],
        "groups": list(needs.groups),
        "writable_code": needs.writable_code,
        "after": list(needs.after),
        "cache": _cache(facts.wish) if needs.cache else "",
    }


def _cache(wish: Mapping[str, Any]) -> str:
    """The unit's folder below /var/cache (CacheDirectory=)."""
    return f"llama-server-{wish['llama_server_service']}"


def _caches(facts: Facts) -> dict[str, str]:
    return dict.fromkeys(llama_cpp.access(facts).cache, f"/var/cache/{_cache(facts.wish)}")


def _argv(facts: Facts, entry: str) -> list[str]:
    wish = facts.wish
    return [
        f"{llama_cpp.CURRENT}/bin/llama-server",
        "--model", f"{model.folder(wish)}/{entry}",
        "--alias", f"{wish['model_repo'].split('/')[-1]}:{facts.served.quant}",
        "--host", wish["llama_server_host"],
        "--port", str(wish["llama_server_port"]),
        *facts.served.arguments,
        "--api-key-file", f"/run/credentials/{unit(wish)}/api-key",
        "--metrics",
        "--offline",
        *([] if wish["llama_cpp_web_ui"] else ["--no-ui"]),
        *wish["llama_server_extra_args"],
    ]  # fmt: skip


def _refused(facts: Facts) -> list[Refused]:
    refusal = check_address(facts.wish["llama_server_host"], facts.machine)
    return [refusal] if refusal else []


def _taken(facts: Facts) -> list[Refused]:
    port = facts.wish["llama_server_port"]
    holder = facts.observed["ports"].get(str(port))
    if not holder or holder.get("unit") == unit(facts.wish):
        return []
    by = holder.get("program") or "another program"
    what = f"port {port} is taken by {by} (pid {holder.get('pid') or '?'}, {holder.get('unit') or 'no unit'})"
    return [Refused(what, hint=f"stop {by}, or set llama_server_port to a free port")]


def _not_understood(facts: Facts, argv: list[str]) -> list[Refused]:
    """Arguments that the build would not take as meant, as soon as there is a build to ask."""
    text = llama_cpp.help_text(facts)
    problems = unsupported(argv, text) if text else []
    hint = "correct llama_server_extra_args; the running service was left alone"
    return [Refused("; ".join(problems), hint=hint)] if problems else []


def _overridden(facts: Facts) -> tuple[list[Refused], list[str]]:
    """What a person's drop-ins change: refused where it decides what runs (no run could bring that in sync), else told."""
    name = unit(facts.wish)
    refusals, findings = [], []
    for what, hint in dropins.told(name, facts.observed["services"].get(name, {}).get("overrides", ())):
        if hint:
            refusals.append(Refused(what, hint=hint))
        else:
            findings.append(f"{what}; yours, and left alone")
    return refusals, findings


def completion(wish: Mapping[str, Any], prompt: str, tokens: int, timeout_s: float) -> dict[str, Any]:
    """What `bigiron.onhost.serving.main` needs to ask the host's own server; the key stays on the host."""
    return {
        "unit": unit(wish),
        "host": reached_at(wish),
        "port": wish["llama_server_port"],
        "key_file": key_path(wish),
        "prompt": prompt,
        "n_predict": tokens,
        "timeout_s": timeout_s,
    }


def lock(_facts: Facts, variables: Mapping[str, Any]) -> dict[str, Any]:
    return {"service": {"name": variables["llama_server_service"], "argv": variables["llama_server_argv"]}}


def status(wish: Mapping[str, Any], observed: Mapping[str, Any]) -> dict[str, str | None]:
    have = observed["services"].get(unit(wish), {})
    exe = str(have.get("exe") or "")
    release = exe.rsplit("/releases/", maxsplit=1)[-1].split("/", maxsplit=1)[0] if "/releases/" in exe else "-"
    ready = " (ready)" if have.get("health") == 200 and have.get("listening") else ""  # another program may answer there
    return {
        "service": f"{have.get('ActiveState', 'absent')}{ready}",
        "release": release,
        "listens": f"{wish['llama_server_host']}:{wish['llama_server_port']}",
        "held_by": _holder(observed["ports"].get(str(wish["llama_server_port"])), unit(wish)),
    }


def _holder(port: Mapping[str, Any] | None, unit: str) -> str | None:
    """Who else than ``unit`` listens on an observed port: ``"nginx, pid 7"``; None when nobody does."""
    others = [each for each in (port, *(port or {}).get("also", [])) if each and each.get("unit") != unit]
    return (
        "; ".join(f"{each['program']}, pid {each['pid']}" if each.get("pid") else str(each.get("error")) for each in others)
        or None
    )


def remove(_wish: Mapping[str, Any], _models: bool) -> dict[str, Any]:
    return {"llama_server_config_dir": CONFIG_DIR}
