"""Filters that let a role use the package."""

from __future__ import annotations

from bigiron.state.render import render


class FilterModule:
    """``'llama-server.service' | bigiron_render(variables)`` is the text of that template, as the diff expects it."""

    def filters(self):
        return {"bigiron_render": render}
