"""Filters that let roles and playbooks use the package."""

from __future__ import annotations

import graphlib

from ansible.errors import AnsibleFilterError
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.plan.capabilities import unsupported
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.render import render


def one_order(lists):
    """All members of ``lists``, in an order that keeps the order of each of them."""
    sorter = graphlib.TopologicalSorter()
    for members in lists:
        for place, member in enumerate(members):
            sorter.add(member, *members[max(place - 1, 0) : place])
    try:
        return list(sorter.static_order())
    except graphlib.CycleError as error:
        raise AnsibleFilterError(
            f"hosts of one run have opposite orders in bigiron_parts: {', '.join(error.args[1])}"
        ) from error


class FilterModule:
    """``'llama-server.service' | bigiron.host.render(variables)`` is the text of that template, as the diff expects it.

    ``argv | bigiron.host.unsupported(help_text)`` lists what the build with that ``--help`` would not accept;
    ``lists | bigiron.host.one_order`` see `one_order`.
    """

    def filters(self):
        return {"render": render, "unsupported": unsupported, "one_order": one_order}
