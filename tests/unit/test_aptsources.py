"""apt's sources, keys and pins: what is read, rendered, disabled and put back, and what the plan wants of them."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bigiron.errors import BigironError
from bigiron.onhost import aptsources, openpgp
from bigiron.onhost.aptsources import AptSources
from bigiron.parts import base, planner
from bigiron.parts.difference import diff
from bigiron.plan.apt import Apt, Pin, Repository
from fixtures.hostfacts import as_planned, fact, virgin
from fixtures.hostroot import look, plant

FINGERPRINT = "C699C21FF6BC83D06B9665A88DADF6E7BB7F4355"
KEY = """-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEaxDYcBYJKwYBBAHaRw8BAQdAcZ4suN8gmMX4ohrSHsnruza+KRnLyLsZkZND
kQtSegq0IlRlc3QgcmVwb3NpdG9yeSA8cmVwb0BleGFtcGxlLm9yZz6IkAQTFggA
OBYhBMaZwh/2vIPQa5ZlqI2t9ue7f0NVBQJrENhwAhsDBQsJCAcCBhUKCQgLAgQW
AgMBAh4BAheAAAoJEI2t9ue7f0NVtgIA/RTZdn3k4Egsrxuy6OqpI6pMn0QHpNtM
D3pU/+0nPO0qAQD9gu2Wc5RwhH94v5pkG8PWb+f6SkI62rJtNSZa6rhzAQ==
=bKgX
-----END PGP PUBLIC KEY BLOCK-----
"""
"""Made with gpg for these tests; its secret half was thrown away."""
MINE = {"name": "gpu", "uri": "https://example.org/apt", "suites": ["./"], "fingerprints": [FINGERPRINT], "key": KEY}
VENDOR = "etc/apt/sources.list.d/vendor.list"


def test_a_key_is_known_by_its_fingerprint_armored_or_not() -> None:
    raw = openpgp.dearmored(KEY.encode())
    assert openpgp.fingerprints(KEY.encode()) == openpgp.fingerprints(raw) == [FINGERPRINT]
    assert openpgp.fingerprints(openpgp.armored(raw).encode()) == [FINGERPRINT]
    assert openpgp.fingerprints(KEY.replace("\n\n", "\nVersion: x\n\n", 1).replace("\n", "\r\n").encode()) == [FINGERPRINT]


@pytest.mark.parametrize("data", [b"", b"<html>not found</html>", KEY.encode()[:200], openpgp.dearmored(KEY.encode())[:40]])
def test_what_is_no_key_is_none(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^(holds|is|ends|has) "):
        openpgp.fingerprints(data)


def test_a_second_key_in_the_file_is_not_trusted_unseen() -> None:
    raw = bytearray(openpgp.dearmored(KEY.encode()))
    other = bytes([*raw[:40], raw[40] ^ 1, *raw[41:]])  # another public key: another fingerprint
    assert aptsources.wrong_key(MINE, KEY.encode()) == ""
    assert "not C699" in aptsources.wrong_key(MINE, bytes(raw) + other)


def test_both_forms_of_sources_are_read() -> None:
    lines = (
        "# deb http://off x y\ndeb [arch=amd64 signed-by=/k.gpg] https://example.org/apt/ stable main\n deb-src http://a ./\n"
    )
    found = aptsources.parse("a.list", lines)
    assert [(one.uri, one.suite, one.signed_by, one.place) for one in found] == [
        ("https://example.org/apt/", "stable", "/k.gpg", "a.list:2"),
        ("http://a/", "", "", "a.list:3"),
    ]
    stanzas = (
        "Types: deb\nURIs: http://a\n http://b/\nSuites: x y\nComponents: main\n\n# one\nEnabled: no\nTypes: deb\nURIs: http://c\nSuites: z\n\n"
        "URIs: http://d\nSuites: z\nSigned-By:\n -----BEGIN PGP\n .\n abc\n"
    )
    found = aptsources.parse("a.sources", stanzas)
    assert [(one.uri, one.suite) for one in found[:4]] == [
        ("http://a/", "x"),
        ("http://a/", "y"),
        ("http://b/", "x"),
        ("http://b/", "y"),
    ]
    assert [(one.uri, one.signed_by, one.lines) for one in found[4:]] == [("http://d/", "a key of its own", (12, 17))]


def test_rendered_files() -> None:
    assert aptsources.render_sources({**MINE, "suites": ["stable"], "components": ["main"], "architectures": ["amd64"]}) == (
        "# Written by bigiron: do not edit.\nTypes: deb\nURIs: https://example.org/apt\nSuites: stable\nComponents: main\n"
        "Architectures: amd64\nSigned-By: /etc/apt/keyrings/bigiron-gpu.asc\n"
    )
    assert "Package: drv-57* drv\nPin: version 570.*\nPin-Priority: 1001\n" in aptsources.render_pin(
        {"name": "x", "packages": ["drv-57*", "drv"], "pin": "version 570.*", "priority": 1001}
    )
    assert '    "^libstdc[+][+]6$";\n' in aptsources.render_held(["libstdc++6"])


class Programs:
    """apt that reads every repository (or none) and knows no pin."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        self.asked.append(argv)
        return subprocess.CompletedProcess(argv, self.code, "", "E: it does not work")


def test_a_duplicate_is_commented_out_with_a_copy_and_comes_back(tmp_path: Path) -> None:
    text = "deb http://other x main\ndeb https://example.org/apt ./\n"
    plant(tmp_path, {VENDOR: text})
    sources = AptSources(str(tmp_path), Programs())
    assert sources.ensure([MINE], [], [], check=True)["disabled"] == ["/etc/apt/sources.list.d/vendor.list:2"]
    assert (tmp_path / VENDOR).read_text() == text
    assert sources.ensure([MINE], [], [])["changed"]
    assert (tmp_path / VENDOR).read_text() == "deb http://other x main\n#bigiron# deb https://example.org/apt ./\n"
    assert (tmp_path / "var/lib/bigiron/apt/vendor.list").read_text() == text
    assert not sources.ensure([MINE], [], [])["changed"]
    assert sources.remove()["enabled"] == ["/etc/apt/sources.list.d/vendor.list"]
    assert (tmp_path / VENDOR).read_text() == text
    assert sources.ours() == []
    assert not sources.remove()["changed"]


def test_a_stanza_that_lists_others_too_is_not_touched(tmp_path: Path) -> None:
    plant(
        tmp_path, {"etc/apt/sources.list.d/v.sources": "Types: deb\nURIs: https://example.org/apt http://other\nSuites: ./\n"}
    )
    with pytest.raises(BigironError, match="together with http://other/"):
        AptSources(str(tmp_path), Programs()).ensure([MINE], [], [])
    assert sorted(path.name for path in (tmp_path / "etc/apt").rglob("*.*") if path.is_file()) == ["v.sources"]


def test_a_repository_that_cannot_be_read_leaves_everything_as_it_was(tmp_path: Path) -> None:
    plant(tmp_path, {VENDOR: "deb https://example.org/apt ./\n"})
    with pytest.raises(BigironError, match="repository gpu cannot be read: E: it does not work"):
        AptSources(str(tmp_path), Programs(100)).ensure([MINE], [], [])
    assert (tmp_path / VENDOR).read_text() == "deb https://example.org/apt ./\n"
    assert AptSources(str(tmp_path)).ours() == []


def test_what_is_not_wanted_any_more_goes(tmp_path: Path) -> None:
    sources = AptSources(str(tmp_path), Programs())
    sources.ensure([MINE], [], ["drv"])
    answer = sources.ensure([], [], ["drv"])
    assert answer["removed"] == ["/etc/apt/sources.list.d/bigiron-gpu.sources", "/etc/apt/keyrings/bigiron-gpu.asc"]
    assert sources.ours() == [aptsources.HELD]


APT = Apt(
    (Repository("gpu", "https://example.org/apt", ("./",), (FINGERPRINT,), key=KEY),),
    (Pin("gpu", ("drv*",), "version 570.*"),),
    ("drv",),
)


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> list[Apt]:
    """A part that wants `APT`, and a package that is held."""
    wanted = [APT]
    part = SimpleNamespace(
        __name__="bigiron.parts.gpu",
        STAGE="host",
        plan=lambda _facts, _so_far: base.Planned(),
        packages=lambda _facts: ("drv=570.1",),
        apt=lambda _facts: wanted[0],
    )
    monkeypatch.setattr(planner, "PARTS", (part, *planner.PARTS))
    return wanted


def seen(root: Path) -> dict[str, Any]:
    return dict(look(root, apt=["gpu"])["apt"])


def differences(apt: dict[str, Any], **packages: Any) -> list[str]:
    plan = planner.plan_hosts([fact(observed={"apt": apt})], [])["a"]
    assert isinstance(plan, planner.HostPlan)
    have = {**as_planned(plan), "apt": apt}
    have["packages"].update(packages)
    return [f"{each.resource}: {each.problem}" for each in diff(plan.planned.resources, have) if each.part == "base"]


def test_the_plan_wants_what_the_role_writes(tmp_path: Path, asking: list[Apt]) -> None:
    plan = planner.plan_hosts([fact(observed={"apt": seen(tmp_path)})], [])["a"]
    assert isinstance(plan, planner.HostPlan)
    given = plan.variables
    assert len(differences(seen(tmp_path), drv="570.1", **{"*held": ["drv"]})) == 4
    sources = AptSources(str(tmp_path), Programs())
    sources.matches = lambda _pin: None  # type: ignore[method-assign]
    sources.ensure(given["base_repositories"], given["base_pins"], given["base_held_packages"])
    assert differences(seen(tmp_path), drv="570.1", **{"*held": ["drv"]}) == []
    assert differences(seen(tmp_path), drv="570.1") == ["package:drv: is not held: an upgrade may change it"]
    plant(tmp_path, {VENDOR: "deb https://example.org/apt/ ./\n"})
    (twice,) = differences(seen(tmp_path), drv="570.1", **{"*held": ["drv"]})
    assert "vendor.list:1 lists the same repository, signed by any key" in twice


def test_a_key_that_is_another_one_is_a_difference_on_the_host_and_a_refusal_in_the_plan(
    tmp_path: Path, asking: list[Apt]
) -> None:
    AptSources(str(tmp_path), Programs()).ensure([MINE], [], [])
    other = dataclasses.replace(APT.repositories[0], key="", key_url="https://example.org/key", fingerprints=("A" * 40,))
    asking[0] = Apt((other,))
    assert any(f"holds the key {FINGERPRINT}, not AAAA" in each for each in differences(seen(tmp_path), drv="570.1"))
    asking[0] = Apt((dataclasses.replace(other, key=KEY),))
    plan = planner.plan_hosts([fact(observed={"apt": {}})], [])["a"]
    assert isinstance(plan, planner.HostPlan)
    assert any(FINGERPRINT in each.what for each in plan.planned.refusals)


def test_a_host_whose_parts_ask_for_nothing_has_none_of_it() -> None:
    plan = planner.plan_hosts([fact()], [])["a"]
    assert isinstance(plan, planner.HostPlan)
    assert not {"base_repositories", "base_pins", "base_held_packages", "base_user_groups"} & plan.variables.keys()
    assert "apt" not in virgin()
