"""Host patterns mean what they mean to Ansible, and typos are errors."""

from __future__ import annotations

import pytest

from bigiron.errors import UsageError
from bigiron.fleet.patterns import select

HOSTS = ["n1", "n2", "n3", "c1", "c2"]
GROUPS = {"gpu": ["n1", "n2", "n3"], "cpu": ["c1", "c2"], "rack1": ["n1", "c1"], "empty": []}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("all", HOSTS),
        ("*", HOSTS),
        ("n1", ["n1"]),
        ("n2,n1", ["n2", "n1"]),
        ("n2:n1", ["n2", "n1"]),
        ("n*", ["n1", "n2", "n3"]),
        ("gpu,&rack1", ["n1"]),
        ("gpu:&rack1", ["n1"]),
        ("&rack1", ["n1", "c1"]),
        ("!gpu", ["c1", "c2"]),
        ("all,!rack1", ["n2", "n3", "c2"]),
        ("!n1,gpu", ["n2", "n3"]),
        ("gpu[0]", ["n1"]),
        ("gpu[-1]", ["n3"]),
        ("gpu[0:1]", ["n1", "n2"]),
        ("gpu[1:]", ["n2", "n3"]),
        ("~[nc]1", ["n1", "c1"]),
        ("rack?", ["n1", "c1"]),
        ("empty", []),
    ],
)
def test_patterns(pattern: str, expected: list[str]) -> None:
    assert select(pattern, HOSTS, GROUPS, where="inv") == expected


@pytest.mark.parametrize("pattern", ["n9", "n1,n9", "all,!n9", "gpu,&rack9", "z*", "~z.*", "", ",", "gpu[7]", "~[", "n[12]"])
def test_a_part_that_matches_nothing_is_an_error(pattern: str) -> None:
    with pytest.raises(UsageError):
        select(pattern, HOSTS, GROUPS, where="inv")


def test_patterns_agree_with_ansible() -> None:
    from ansible.inventory.data import InventoryData
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader

    manager = InventoryManager(loader=DataLoader(), sources="localhost,", parse=False)
    manager._inventory = InventoryData()
    for group, members in GROUPS.items():
        manager._inventory.add_group(group)
        for host in members:
            manager._inventory.add_host(host, group)
    manager._inventory.reconcile_inventory()
    for pattern in (
        "n1",
        "n2,n1",
        "n*",
        "gpu,&rack1",
        "gpu:&rack1",
        "!gpu",
        "all,!rack1",
        "!n1,gpu",
        "gpu[0]",
        "gpu[-1]",
        "gpu[0:1]",
        "gpu[1:]",
        "~[nc]1",
    ):
        theirs = {host.name for host in manager.get_hosts(pattern)}
        assert set(select(pattern, HOSTS, GROUPS, where="inv")) == theirs, pattern
