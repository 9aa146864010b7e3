"""Lets the lab's bridge through a firewall that drops by default (Docker, ufw), and takes that back.

In nftables every base chain has a say, so accepting in our own table does not overrule another's ``policy drop``. Only the two
plainest rules are added: iptables-nft, which Docker and ufw use, must still be able to read its chains.
"""

from __future__ import annotations

import json
from typing import Any

from bigiron.lab import state, tools

MARK = f"bigiron-{state.KEY}"
HOOKS = {"input": ("iifname",), "forward": ("iifname", "oifname")}


def dropping_chains(ruleset: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The base chains of ``nft -j list ruleset`` that drop IPv4 packets to or through this machine unless a rule accepts."""
    chains = [item["chain"] for item in ruleset if "chain" in item]
    return [
        chain
        for chain in chains
        if chain.get("policy") == "drop" and chain.get("hook") in HOOKS and chain["family"] in {"ip", "inet"}
    ]


def our_rules(ruleset: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rules in other tables that this lab added."""
    return [item["rule"] for item in ruleset if "rule" in item and item["rule"].get("comment") == MARK]


def commands_to_open(ruleset: list[dict[str, Any]]) -> list[str]:
    """The nft commands that let the bridge through every dropping chain that has no rule of ours yet."""
    done = {_place(rule, rule["chain"]) for rule in our_rules(ruleset)}
    return [
        f'insert rule {_place(chain, chain["name"])} {match} "{state.BRIDGE}" accept comment "{MARK}"'
        for chain in dropping_chains(ruleset)
        if _place(chain, chain["name"]) not in done
        for match in HOOKS[chain["hook"]]
    ]


def commands_to_close(ruleset: list[dict[str, Any]]) -> list[str]:
    """The nft commands that remove our rules, each by its handle."""
    return [f"delete rule {_place(rule, rule['chain'])} handle {rule['handle']}" for rule in our_rules(ruleset)]


def open_bridge() -> None:
    """Let the bridge through; nothing on a machine whose firewall lets it anyway."""
    _run(commands_to_open(_ruleset()))


def close_bridge() -> None:
    """Remove every rule that :func:`open_bridge` added."""
    _run(commands_to_close(_ruleset()))


def _place(item: dict[str, Any], chain: str) -> str:
    return f"{item['family']} {item['table']} {chain}"


def _ruleset() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(tools.run(["nft", "-j", "-a", "list", "ruleset"]).stdout or "{}").get(
        "nftables", []
    )
    return found


def _run(commands: list[str]) -> None:
    if commands:
        tools.run(["nft", "-f", "-"], text="\n".join(commands) + "\n")
