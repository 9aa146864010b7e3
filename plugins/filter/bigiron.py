"""Filters that let a role use the package."""

from __future__ import annotations

from ansible_collections.bigiron.host.plugins.module_utils.bigiron.parts.render import render
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.plan.capabilities import unsupported


class FilterModule:
    """``'llama-server.service' | bigiron.host.render(variables)`` is the text of that template, as the diff expects it.

    ``argv | bigiron.host.unsupported(help_text)`` lists what the build with that ``--help`` would not accept.
    """

    def filters(self):
        return {"render": render, "unsupported": unsupported}
