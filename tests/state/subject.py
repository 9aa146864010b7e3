"""One host in front of the judge: what the plan expects of it, and what the eyes saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from bigiron.report.verdict import Check

from . import unitfile


class CannotTell(Exception):
    """A fact is not to be had (needs root, no systemd, a tool is missing): the check stays open, never passes."""


Test = Callable[..., tuple[bool, str]]
"""A pure function of a subject (and the thing it is about): is it so, and the detail a person reads."""


@dataclass(frozen=True)
class Subject:
    """``facts`` is the collector's document, ``expect`` the plan's role variables of this host (docs/architecture.md)."""

    name: str
    expect: Mapping[str, Any]
    facts: Mapping[str, Any] = field(repr=False)
    deep: bool = False
    completion: bool = True

    def fact(self, *keys: str) -> Any:
        """The fact at ``keys``. Raises CannotTell when it, or something on the way to it, is absent or could not be read."""
        value: Any = self.facts
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
            if value is None:
                raise CannotTell(f"no fact {'.'.join(keys)} was collected")
            if isinstance(value, Mapping) and "error" in value:
                raise CannotTell(str(value["error"]))
        return value

    def missing(self, *keys: str) -> bool:
        """Did the collector see that the thing at ``keys`` does not exist (as opposed to: could not look)?"""
        value: Any = self.facts
        for key in keys:
            value = value.get(key, {}) if isinstance(value, Mapping) else {}
            if isinstance(value, Mapping) and value.get("missing"):
                return True
        return False

    def check(self, id: str, remedy: str, test: Test, *about: Any, required: bool = True) -> Check:  # noqa: A002
        """Make one check: ``test(self, *about)``; CannotTell leaves it open."""
        try:
            ok, detail = test(self, *about)
        except CannotTell as reason:
            return Check(id, None, f"cannot tell: {reason}", remedy, required)
        return Check(id, ok, detail, remedy, required)

    @property
    def unit(self) -> str:
        return f"llama-server-{self.expect['llama_server_service']}.service"

    @property
    def unit_path(self) -> str:
        return f"/etc/systemd/system/{self.unit}"

    @property
    def key_file(self) -> str:
        return f"{self.expect['llama_server_config_dir']}/credentials/{self.expect['llama_server_service']}.key"

    @property
    def release(self) -> str:
        return f"{self.expect['llama_cpp_prefix']}/releases/{self.expect['llama_cpp_fingerprint']}"

    @property
    def model_dir(self) -> str:
        return f"{self.expect['model_root']}/{self.expect['model_repo']}/{self.expect['model_revision']}"

    @property
    def argv(self) -> list[str]:
        return list(self.expect["llama_server_argv"])

    @property
    def keyed(self) -> bool:
        """Does the plan give the server an API key?"""
        return "--api-key-file" in self.argv or any(word.startswith("--api-key-file=") for word in self.argv)

    @property
    def address(self) -> tuple[str, int]:
        return str(self.expect["llama_server_host"]), int(self.expect["llama_server_port"])

    @cached_property
    def planned_unit(self) -> dict[str, dict[str, list[str]]]:
        return unitfile.parse(self.expect["llama_server_unit_text"])

    @property
    def provision(self) -> str:
        return f"./inv provision --host {self.name}"

    @property
    def log(self) -> str:
        return f"on {self.name}: journalctl -u {self.unit} -n 50 --no-pager"

    def request(self) -> dict[str, Any]:
        """What the collector is asked to look at; no secret is in it."""
        expect = self.expect
        host, port = self.address
        files = [entry["path"] for entry in expect.get("base_files", [])]
        reach = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}.get(host, host)
        return {
            "user": expect["llama_server_user"],
            "prefix": expect["llama_cpp_prefix"],
            "config_dir": expect["llama_server_config_dir"],
            "fingerprint": expect["llama_cpp_fingerprint"],
            "backend": expect.get("llama_cpp_backend", "cpu"),
            "unit": self.unit,
            "paths": sorted({*(entry["path"] for entry in expect["base_directories"]), *files, self.unit_path, self.key_file}),
            "texts": [self.unit_path],
            "digests": files,
            "model_dir": self.model_dir,
            "model_files": [entry["path"] for entry in expect["model_files"]],
            "env_names": sorted(expect.get("llama_server_environment", {})),
            "key_file": self.key_file,
            "scan": [
                expect["llama_server_config_dir"],
                "/etc/systemd/system",
                "/run/bigiron",
                "/tmp",
                "/var/tmp",
                "/root/.ansible",
            ],
            "place": [reach, port],
            "port": port,
            "deep": self.deep,
        }

    def completion_request(self) -> dict[str, Any]:
        request = self.request()
        return {
            "completion": {
                "place": request["place"],
                "key_file": self.key_file,
                "prompt": "The three primary colours are",
                "n_predict": 16,
                "timeout_s": 300,
            }
        }
