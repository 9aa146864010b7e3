"""Vulkan: the driver that the plan names is there, and the service loads no other."""

import fnmatch

from bigiron.judge.checks import check

FOLDERS = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d")


def wanted(plan):
    return plan.get("vulkan_drivers") or []


def look(plan):
    """What the collector is to look at on the host."""
    return {"commands": {"vulkan": ["find", *FOLDERS, "-name", "*.json"]}} if wanted(plan) else {}


@check("vulkan.driver", "on {host}: ls /usr/share/vulkan/icd.d", when=wanted)
def test_the_planned_drivers_are_there(plan, found, note):
    there = [path.rsplit("/", 1)[-1] for path in found["commands"]["vulkan"]["out"].splitlines()]
    note(f"manifests: {', '.join(sorted(there)) or 'none'}")
    missing = [glob for glob in wanted(plan) if not fnmatch.filter(there, glob)]
    assert not missing, f"no manifest matches {', '.join(missing)}"


@check("vulkan.only", when=wanted)
def test_the_service_loads_no_other(plan):
    assert plan["llama_server_environment"].get("VK_LOADER_DRIVERS_SELECT") == ",".join(wanted(plan))
