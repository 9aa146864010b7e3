"""Runs under Ansible's own interpreter settings: fills in ``{{ }}`` and opens vault values, JSON in and out.

A child of its own (``python -m bigiron.fleet.resolver``), because Ansible reads its configuration and locale on import.
Request ``{"listing", "inventory_dir", "playbook_dir", "wanted": null | {host: [names]}, "secrets": bool}``; answer
``{"hosts": {host: {"values": {name: value}, "problems": {name: why}}}}`` or ``{"failed": why}``. ``listing`` is the output of
``ansible-inventory --list``. Without ``secrets`` nothing is decrypted: what needs it comes back as a problem.
"""

from __future__ import annotations

import json
import sys
from typing import Any

VAULT_LOCKED = "needs the vault password"


def main() -> None:
    """Entry point: one request on standard input, one answer on standard output."""
    request = json.load(sys.stdin)
    json.dump(_answer(request), sys.stdout)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from ansible.errors import AnsibleError
    from ansible.parsing.dataloader import DataLoader

    loader = DataLoader()
    if request["secrets"]:
        from ansible import constants
        from ansible.cli import CLI

        files = [constants.DEFAULT_VAULT_PASSWORD_FILE] if constants.DEFAULT_VAULT_PASSWORD_FILE else []
        try:
            loader.set_vault_secrets(
                CLI.setup_vault_secrets(loader, list(constants.DEFAULT_VAULT_IDENTITY_LIST), files, auto_prompt=False)
            )
        except AnsibleError as error:
            return {"failed": _first_line(error)}
    else:
        loader.set_vault_secrets([])
    return {"hosts": _resolve(request, loader)}


def _resolve(request: dict[str, Any], loader: Any) -> dict[str, Any]:
    from ansible.plugins.loader import init_plugin_loader
    from ansible.template import Templar

    init_plugin_loader()
    listing = request["listing"]
    raw = listing["_meta"]["hostvars"]
    groups = {name: sorted(_members(listing, name)) for name in listing if name != "_meta"}
    native = {host: _trusted(values) for host, values in raw.items()}
    answer: dict[str, Any] = {}
    wanted = request["wanted"]
    for host in raw if wanted is None else wanted:
        variables = {
            **native[host],
            "inventory_hostname": host,
            "inventory_hostname_short": host.split(".")[0],
            "groups": groups,
            "group_names": sorted(name for name, members in groups.items() if host in members and name != "all"),
            "hostvars": native,
            "inventory_dir": request["inventory_dir"],
            "playbook_dir": request["playbook_dir"],
        }
        templar = Templar(loader=loader, variables=variables)
        values, problems = {}, {}
        for name in raw[host] if wanted is None else wanted[host]:
            try:
                values[name] = _plain(templar.template(native[host][name]))
            except Exception as error:  # noqa: BLE001 (a filter or lookup plugin may raise anything; it concerns one value)
                problems[name] = _first_line(error)
        answer[host] = {"values": values, "problems": problems}
    return answer


def _members(listing: dict[str, Any], group: str) -> set[str]:
    entry = listing.get(group, {})
    if group == "all":
        return set(listing["_meta"]["hostvars"])
    return set(entry.get("hosts", [])).union(*(_members(listing, child) for child in entry.get("children", [])))


def _trusted(value: Any) -> Any:
    """Plain JSON with Ansible's meaning put back: vault text, ``!unsafe`` text (never a template), and templates."""
    from ansible.parsing.vault import EncryptedString
    from ansible.template import trust_as_template

    if isinstance(value, dict):
        if set(value) == {"__ansible_vault"}:
            return EncryptedString(ciphertext=value["__ansible_vault"])
        if set(value) == {"__ansible_unsafe"}:
            return value["__ansible_unsafe"]
        return {key: _trusted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_trusted(item) for item in value]
    return trust_as_template(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """Python's own JSON types, with lazily opened vault text opened (or failing) here."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    if "no vault secrets found" in text:
        return VAULT_LOCKED
    return " ".join(text.split())[:300] if text else type(error).__name__


if __name__ == "__main__":
    main()
