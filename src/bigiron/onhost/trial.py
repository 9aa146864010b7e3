"""A new release proves itself beside the running service before ``current`` moves: the same model, a spare port, a small context.

Its first tokens are compared with those of the release that runs. Standard library only: this file runs on hosts.
"""

from __future__ import annotations

import contextlib
import re
import socket
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from ..errors import BigironError
from ..units import GIB, gib
from . import processes, release, serving
from .release import Layout
from .system import Tree, fields, start

PROMPT = "The history of the steam engine begins with"
TOKENS = 32
CONTEXT = 512
LOAD_TIMEOUT_S = 900.0
ANSWER_TIMEOUT_S = 120.0
ROOM_BYTES = GIB
"""Besides the weights: cache of `CONTEXT` tokens, compute buffers and the program."""
LIFETIME_S = 1800
"""After which systemd ends a trial whose run was killed."""
# ours, or of the service alone; the rest decides how the model is computed and is taken over
LEFT_OUT = frozenset(
    {
        "--host", "--port", "--alias", "-a", "--api-key-file", "--metrics", "--slots", "--props", "--ctx-size", "-c",
        "--parallel", "-np", "--cache-ram", "-cram", "--slot-save-path", "--log-file", "--mlock", "--timeout", "-to",
        "--path", "--api-prefix", "--ssl-key-file", "--ssl-cert-file",
    }
)  # fmt: skip


class Running(NamedTuple):
    """A service of ours that runs another release."""

    unit: str
    argv: List[str]

    def option(self, name: str, default: str = "") -> str:
        return next((value for word, value in list(zip(self.argv, self.argv[1:]))[::-1] if word == name), default)


def beside(
    layout: Layout, fingerprint: str, user: str, on_gpu: bool, report: Callable[..., None], tree: Optional[Tree] = None
) -> Optional[Dict[str, str]]:
    """Prove the release ``fingerprint`` beside a service that runs another one; None when none does.

    Returns ``{"unit", "outcome", "told"}``, the outcome being ``same`` or ``differs`` (both answered), ``alone`` (the running one did not answer) or
    ``skipped``. Raises BigironError when the new one dies or gives no answer.
    """
    tree = tree or Tree()
    service = running(layout, fingerprint, tree)
    if service is None:
        return None
    why = obstacle(service, on_gpu, tree)
    if why:
        return {
            "unit": service.unit,
            "outcome": "skipped",
            "told": f"the new release was not tried beside {service.unit}: {why}",
        }
    report("trying the new release beside the running service", 0, 1)
    return _tried(service, layout.release(fingerprint), user)


def running(layout: Layout, fingerprint: str, tree: Tree) -> Optional[Running]:
    """The first service, by name, whose process runs a release of ours that is not ``fingerprint``."""
    base = str(layout.releases.resolve()) + "/"
    found = {}
    for name in tree.names("/proc"):
        program = tree.link(f"/proc/{name}/exe") if name.isdigit() else None
        if not program or not program.startswith(base) or program[len(base) :].startswith(f"{fingerprint}/"):
            continue
        unit = processes.unit_of(tree, int(name)) or ""
        if re.fullmatch(r"llama-server-[\w.-]+\.service", unit):
            found[unit] = Running(unit, tree.text(f"/proc/{name}/cmdline").split("\0"))
    return found[min(found)] if found else None


def obstacle(service: Running, on_gpu: bool, tree: Tree) -> str:
    """Why it cannot be tried here and now; "" when it can."""
    if on_gpu:
        return "the service holds the GPU's memory"
    model = Path(tree.path(service.option("--model") or service.option("-m") or "/none"))
    if not model.is_file():
        return "it names no model file"
    needs = sum(path.stat().st_size for path in shards(model)) + ROOM_BYTES
    free = int((fields(tree.text("/proc/meminfo")).get("MemAvailable", "0").split() or ["0"])[0]) * 1024
    return f"it needs up to {gib(needs)} of memory and {gib(free)} are available" if free < needs else ""


def shards(model: Path) -> List[Path]:
    """All files of a split model, given the first."""
    split = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", model.name)
    return sorted(model.parent.glob(f"{split.group(1)}-?????-of-{split.group(2)}.gguf")) if split else [model]


def arguments(service: Running, program: Path, port: int, key_file: str, help_text: str) -> List[str]:
    """The running command for another port and a small context, without what the new build does not know."""
    kept: List[str] = []
    words = service.argv[1:]
    while words:
        name = words.pop(0)
        value = [words.pop(0)] if words and not (words[0].startswith("-") and not re.match(r"-\d", words[0])) else []
        if name not in LEFT_OUT and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", help_text):
            kept += [name, *value]
    key = ["--api-key-file", key_file] if key_file else []
    return [
        str(program),
        *kept,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--ctx-size",
        str(CONTEXT),
        "--parallel",
        "1",
        *key,
    ]


def compared(unit: str, old: str, new: str) -> Dict[str, str]:
    """The verdict over two texts of `TOKENS` tokens each."""
    if old == new:
        told = f"the new release gives the same {TOKENS} tokens as the one that {unit} runs"
        return {"unit": unit, "outcome": "same", "told": told}
    at = next((index for index, (one, other) in enumerate(zip(old, new)) if one != other), min(len(old), len(new)))
    told = (
        f"the new release computes other tokens than the one that {unit} runs: after {old[max(0, at - 40) : at]!r} comes {new[at : at + 40]!r}, "
        f"before {old[at : at + 40]!r} (temperature 0; new kernels round otherwise, a defect looks like this too)"
    )
    return {"unit": unit, "outcome": "differs", "told": told}


def _tried(service: Running, folder: Path, user: str) -> Dict[str, str]:
    unit = f"llama-trial-{folder.name}.service"
    key_path = _credential(service.unit)
    key = serving.read_key(key_path)
    secrets: Tuple[str, ...] = (key,) if key else ()
    port = _spare_port()
    given = f"/run/credentials/{unit}/api-key" if key_path else ""
    argv = arguments(
        service, folder / "bin" / "llama-server", port, given, str(release.read_manifest(folder).get("help") or "")
    )
    _end(unit)
    _systemd_run(unit, user, key_path, argv)
    try:
        try:
            serving.wait_ready(unit, port, "127.0.0.1", LOAD_TIMEOUT_S, secrets=secrets)
        except BigironError as error:
            if serving.show(unit).get("ActiveState") == "active":
                return {
                    "unit": service.unit,
                    "outcome": "skipped",
                    "told": f"the new release was not tried to the end: {error.what}",
                }
            hint = "the running service and current were left alone; llama_cpp_trial: false takes the release without this"
            raise BigironError(f"the new release does not serve: {error.what}", where=str(folder), hint=hint) from None
        new = serving.complete("127.0.0.1", port, key, PROMPT, TOKENS, ANSWER_TIMEOUT_S)
    finally:
        _end(unit)
    try:
        host, old_port = service.option("--host", "127.0.0.1"), int(service.option("--port", "8080"))
        old = serving.complete(host, old_port, key, PROMPT, TOKENS, ANSWER_TIMEOUT_S)
    except BigironError as error:
        told = f"the new release answers; the one that {service.unit} runs could not be compared with it: {error.what}"
        return {"unit": service.unit, "outcome": "alone", "told": told}
    return compared(service.unit, old["content"], new["content"])


def _credential(unit: str) -> str:
    """The key file that systemd hands to the service; "" when it has none.

    `systemctl show` of systemd 252 prints LoadCredential as "[unprintable]".
    """
    answer = start(["systemctl", "cat", "--no-pager", unit])()
    found = re.findall(r"^LoadCredential=(?:api-key:(\S+))?", answer.out, re.MULTILINE)
    return str(found[-1]) if found else ""


def _spare_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _systemd_run(unit: str, user: str, key_path: str, argv: List[str]) -> None:
    """The service's user, nobody's environment, and the first to go when memory runs out."""
    properties = [
        f"User={user}", f"Group={user}", "Type=exec", f"RuntimeMaxSec={LIFETIME_S}", "Nice=10", "OOMScoreAdjust=1000", "LimitCORE=0",
        "NoNewPrivileges=yes", "CapabilityBoundingSet=", "PrivateTmp=yes", "PrivateDevices=yes", "ProtectSystem=strict", "ProtectHome=yes",
        *([f"LoadCredential=api-key:{key_path}"] if key_path else []),
    ]  # fmt: skip
    environment = ["/usr/bin/env", "-i", "HOME=/nonexistent", "LANG=C.UTF-8", "PATH=/usr/bin:/bin"]
    words = [
        "systemd-run",
        "--quiet",
        f"--unit={unit}",
        *(f"--property={each}" for each in properties),
        "--",
        *environment,
        *argv,
    ]
    answer = start(words, 60.0)()
    if answer.rc != 0:
        raise BigironError(f"systemd-run failed: {answer.err or answer.rc}", where=unit)


def _end(unit: str) -> None:
    """Nothing of a trial stays, also of one whose run was killed."""
    with contextlib.suppress(BigironError):
        start(["systemctl", "stop", unit], 90.0)()
        start(["systemctl", "reset-failed", unit])()
