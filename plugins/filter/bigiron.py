"""Filters that let a role use the package."""

from __future__ import annotations

from bigiron.parts.render import render
from bigiron.plan.capabilities import unsupported


class FilterModule:
    """``'llama-server.service' | bigiron_render(variables)`` is the text of that template, as the diff expects it.

    ``argv | bigiron_unsupported(help_text)`` lists what the build with that ``--help`` would not accept.
    """

    def filters(self):
        return {"bigiron_render": render, "bigiron_unsupported": unsupported}
