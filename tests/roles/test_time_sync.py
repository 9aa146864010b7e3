"""Role time_sync: a container is left alone; and chrony for real, told not to touch the clock, which no container may."""

import pytest

pytestmark = pytest.mark.lab

MARKER = "/run/systemd/container"


@pytest.fixture
def like_a_machine(clean_host):
    """The host without the mark of a container, and with a chronyd that only watches (its own option -x)."""
    drop_in = "/etc/systemd/system/chrony.service.d"
    clean_host.sh(
        f"mv {MARKER} {MARKER}.away; mkdir -p {drop_in} /etc/default; printf 'DAEMON_OPTS=\"-x\"\\n' >/etc/default/chrony; "
        f"printf '[Unit]\\nConditionCapability=\\n' >{drop_in}/lab.conf; systemctl daemon-reload"
    )
    yield clean_host
    clean_host.sh(
        f"mv {MARKER}.away {MARKER}; apt-get -qy purge chrony; rm -rf {drop_in} /etc/default/chrony /var/lib/bigiron; systemctl daemon-reload"
    )


def test_a_container_is_left_alone(clean_host):
    before = clean_host.tree()
    for service in ("auto", "chrony"):
        assert clean_host.converge("time_sync", time_sync_service=service).changed == []
    assert clean_host.removes("time_sync").changed == []
    assert clean_host.tree() == before


def test_check_then_chrony_runs_then_nothing_and_auto_keeps_it(like_a_machine):
    predicted = like_a_machine.run("time_sync", check=True, time_sync_service="chrony")
    assert (predicted.code, predicted.changed) == (0, ["Keep | Install the service"]), predicted
    like_a_machine.converge("time_sync", time_sync_service="chrony")
    assert like_a_machine.sh("systemctl is-enabled chrony; systemctl is-active chrony").split() == ["enabled", "active"]
    assert like_a_machine.converge("time_sync").changed == []
    like_a_machine.sh("systemctl disable --now chrony")
    assert like_a_machine.converge("time_sync", time_sync_service="chrony").changed == ["Keep | Enable and start it"]
