"""A firewall that drops by default gets two plain rules for the bridge, once, and loses them again."""

from __future__ import annotations

from typing import Any

import pytest

from bigiron.lab import firewall, state


def chain(name: str, hook: str, policy: str, family: str = "ip") -> dict[str, Any]:
    return {"chain": {"family": family, "table": "filter", "name": name, "hook": hook, "policy": policy, "handle": 1}}


def rule(name: str, handle: int, comment: str) -> dict[str, Any]:
    return {"rule": {"family": "ip", "table": "filter", "chain": name, "handle": handle, "comment": comment}}


def test_only_chains_that_drop_traffic_of_the_bridge_get_rules() -> None:
    ruleset = [
        {"metainfo": {"version": "1.0.6"}},
        chain("FORWARD", "forward", "drop"),
        chain("INPUT", "input", "drop"),
        chain("OUTPUT", "output", "drop"),
        chain("easy", "forward", "accept"),
        chain("six", "forward", "drop", family="ip6"),
        {"chain": {"family": "ip", "table": "filter", "name": "DOCKER-USER", "handle": 2}},
    ]
    assert firewall.commands_to_open(ruleset) == [
        f'insert rule ip filter FORWARD iifname "{state.BRIDGE}" accept comment "{firewall.MARK}"',
        f'insert rule ip filter FORWARD oifname "{state.BRIDGE}" accept comment "{firewall.MARK}"',
        f'insert rule ip filter INPUT iifname "{state.BRIDGE}" accept comment "{firewall.MARK}"',
    ]


def test_a_chain_that_has_our_rules_gets_no_second_set() -> None:
    assert firewall.commands_to_open([chain("FORWARD", "forward", "drop"), rule("FORWARD", 7, firewall.MARK)]) == []


def test_only_our_own_rules_are_removed() -> None:
    ruleset = [rule("FORWARD", 7, firewall.MARK), rule("FORWARD", 8, "somebody"), rule("FORWARD", 9, "bigiron-other0")]
    assert firewall.commands_to_close(ruleset) == ["delete rule ip filter FORWARD handle 7"]


def test_nothing_to_do_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(firewall, "_ruleset", list)
    monkeypatch.setattr("bigiron.lab.tools.run", lambda *a, **k: calls.append(a))
    firewall.open_bridge()
    firewall.close_bridge()
    assert calls == []
