"""Drop-ins of a systemd unit: which of them changes which planned setting."""

from __future__ import annotations

import re
from typing import Dict, List, Tuple


def overrides(unit_text: str, drop_ins: Dict[str, str]) -> List[Tuple[str, str]]:
    """Stub."""
    return [
        (path, key)
        for path, text in drop_ins.items()
        for key in re.findall(r"^(\w+)=", text, re.MULTILINE)
        if f"{key}=" in unit_text
    ]
