"""The clock: the planned service is enabled and runs, and the kernel has the time from it."""

from bigiron.judge.checks import cannot_tell, check


def managed(plan):
    return plan.get("time_sync_service", "none") != "none"


def look(plan):
    """What the collector is to look at on the host."""
    if not managed(plan):
        return {}
    return {
        "units": [f"{plan['time_sync_service']}.service"],
        "commands": {"clock": ["timedatectl", "show", "--property=NTPSynchronized", "--value"]},
    }


@check("time.enabled", when=managed)
def test_service_is_enabled(plan, found, note):
    state = found["units"][f"{plan['time_sync_service']}.service"]["UnitFileState"]
    note(f"UnitFileState is {state}")
    assert state == "enabled"


@check("time.active", "on {host}: systemctl status systemd-timesyncd chrony", when=managed)
def test_service_runs(plan, found, note):
    state = found["units"][f"{plan['time_sync_service']}.service"]["ActiveState"]
    note(f"ActiveState is {state}")
    assert state == "active"


@check("time.synchronised", "on {host}: timedatectl timesync-status, or chronyc sources", required=False, when=managed)
def test_clock_is_synchronised(found, note):
    said = found["commands"]["clock"]["out"].strip()
    note(f"NTPSynchronized is {said}")
    if said != "yes":
        cannot_tell("the kernel does not call its clock synchronised (yet): a lab without a way to a time server stays so")
