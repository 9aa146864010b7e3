"""The lab's network: a free subnet, the same one each time, and name servers that a container can reach."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest

from bigiron.errors import BigironError
from bigiron.lab import network, state


def test_a_folder_keeps_its_subnet_and_two_folders_differ() -> None:
    assert network.choose_subnet("aaaaaa", []) == network.choose_subnet("aaaaaa", [])
    assert network.choose_subnet("aaaaaa", []) != network.choose_subnet("bbbbbb", [])


def test_a_subnet_in_use_is_passed_over() -> None:
    first = network.choose_subnet("aaaaaa", [])
    second = network.choose_subnet("aaaaaa", [first])
    assert second != first
    assert second.subnet_of(ipaddress.IPv4Network("10.0.0.0/8"))
    assert second.prefixlen == 24


def test_every_candidate_is_a_different_subnet() -> None:
    assert len(set(network.candidates("aaaaaa"))) == 65536


def test_no_subnet_left_is_an_error_with_a_next_step() -> None:
    with pytest.raises(BigironError) as caught:
        network.choose_subnet("aaaaaa", [ipaddress.IPv4Network("10.0.0.0/8")])
    assert caught.value.hint


def test_routes_and_name_servers_are_taken_our_bridge_and_the_default_route_are_not() -> None:
    routes = [
        {"dst": "default", "dev": "eth0"},
        {"dst": "10.1.0.0/16", "dev": "eth0"},
        {"dst": "10.9.9.9", "dev": "wg0"},
        {"dst": "10.2.3.0/24", "dev": "bi-000000"},
        {"dst": "10.4.5.0/24", "dev": "bi-111111"},
    ]
    taken = network.taken_subnets(json.dumps(routes), "nameserver 10.255.255.53\nnameserver fe80::1\n", ours="bi-000000")
    assert [str(one) for one in taken] == ["10.1.0.0/16", "10.9.9.9/32", "10.4.5.0/24", "10.255.255.53/32"]


def test_no_routes_at_all() -> None:
    assert network.taken_subnets("", "", ours="bi-000000") == []


def test_the_rules_name_only_this_lab() -> None:
    text = network.ruleset("10.1.2.0/24")
    assert f"table ip {state.TABLE} {{" in text
    assert f'ip saddr 10.1.2.0/24 oifname != "{state.BRIDGE}" masquerade' in text
    assert text.startswith(f"add table ip {state.TABLE}\ndelete table ip {state.TABLE}\n")


def test_names_fit_the_kernels_limits() -> None:
    assert len(state.BRIDGE) <= 15
    assert len("vb-" + state.machine_name("lab99")) <= 15


@pytest.mark.parametrize(
    ("line", "loopback"),
    [
        ("nameserver 127.0.0.53", True),
        ("nameserver ::1", True),
        ("nameserver 192.0.2.1", False),
        ("nameserver fe80::1%eth0", False),
    ],
)
def test_a_local_stub_resolver_is_recognised(line: str, loopback: bool) -> None:
    assert network._loopback(line) is loopback


def test_forwarding_is_put_back_only_by_the_last_lab_that_changed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch, shared = tmp_path / "ip_forward", tmp_path / "shared"
    switch.write_text("0\n")
    shared.mkdir()
    monkeypatch.setattr(network, "FORWARD", switch)
    monkeypatch.setattr(network, "SHARED", shared)
    alive = {"lab-aaaaaa", "lab-bbbbbb"}
    monkeypatch.setattr(network, "_users", lambda: [p.name for p in shared.glob("lab-*") if p.name in alive])
    for key in ("aaaaaa", "bbbbbb"):
        monkeypatch.setattr(state, "KEY", key)
        network._forward_on()
        assert switch.read_text() == "1\n"
    network._forward_off()
    assert switch.read_text() == "1\n", "another lab still forwards"
    monkeypatch.setattr(state, "KEY", "aaaaaa")
    network._forward_off()
    assert switch.read_text() == "0\n"
    assert not shared.exists()


def test_forwarding_that_was_on_before_stays_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch, shared = tmp_path / "ip_forward", tmp_path / "shared"
    switch.write_text("1\n")
    shared.mkdir()
    monkeypatch.setattr(network, "FORWARD", switch)
    monkeypatch.setattr(network, "SHARED", shared)
    network._forward_on()
    network._forward_off()
    assert switch.read_text() == "1\n"
