"""Planned unit settings against what systemctl show prints (spellings seen on systemd 252)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigiron.judge import unit_settings


def test_parsing_follows_systemd_syntax() -> None:
    text = "# c\n[Service]\nA=1\n; c\nA=2\nB=x \\\n y\nA=\nA=3\n[Install]\nWantedBy=multi-user.target\n"
    assert unit_settings.parse(text) == {"Service": {"A": ["3"], "B": ["x  y"]}, "Install": {"WantedBy": ["multi-user.target"]}}


@pytest.mark.parametrize(
    ("text", "value"),
    [("90", 90 * 10**6), ("1min 30s", 90 * 10**6), ("10min", 600 * 10**6), ("infinity", None), ("2h 5ms", 7200 * 10**6 + 5000)],
)
def test_time_spans(text: str, value: int | None) -> None:
    assert unit_settings.microseconds(text) == value


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "10%"])
def test_no_time_span(text: str) -> None:
    with pytest.raises(ValueError, match="no time span"):
        unit_settings.microseconds(text)


@given(st.integers(0, 2**50))
def test_seconds_round_trip(number: int) -> None:
    assert unit_settings.microseconds(f"{number}us") == number


@pytest.mark.parametrize(("text", "value"), [("64G", 64 << 30), ("65536", 65536), ("infinity", None), (str(2**64 - 1), None)])
def test_sizes(text: str, value: int | None) -> None:
    assert unit_settings.size(text) == value


@pytest.mark.parametrize(
    ("key", "planned", "shown", "same"),
    [
        ("TimeoutStartSec", ["90s"], "1min 30s", True),
        ("TimeoutStartSec", ["90s"], "90ms", False),
        ("TimeoutStartSec", ["infinity"], "infinity", True),
        ("NoNewPrivileges", ["true"], "yes", True),
        ("NoNewPrivileges", ["yes"], "no", False),
        ("LimitMEMLOCK", ["infinity"], "infinity", True),
        ("LimitMEMLOCK", ["infinity"], "8388608", False),
        ("LimitNOFILE", ["1024:65536"], "65536", True),
        ("MemoryMax", ["2G"], "2147483648", True),
        ("RestrictAddressFamilies", ["AF_INET AF_INET6"], "AF_INET6 AF_INET", True),
        ("RestrictAddressFamilies", ["AF_INET"], "AF_INET AF_UNIX", False),
        ("CapabilityBoundingSet", [], "", True),
        ("CapabilityBoundingSet", ["CAP_SYS_NICE"], "cap_sys_nice", True),
        ("CapabilityBoundingSet", [], "cap_sys_nice", False),
        ("SystemCallErrorNumber", ["EPERM"], "1", True),
        ("SystemCallErrorNumber", ["EPERM"], "13", False),
        ("KillSignal", ["SIGINT"], "2", True),
        ("UMask", ["0077"], "0077", True),
        ("UMask", ["077"], "0022", False),
        ("After", ["network-online.target"], "basic.target network-online.target", True),
        ("After", ["network-online.target"], "basic.target", False),
        ("DeviceAllow", [], "char-rtc r", True),
        ("DeviceAllow", ["/dev/nvidia0 rw"], "char-rtc r\n/dev/nvidia0 rw", True),
        ("DeviceAllow", [], "/dev/nvidia0 rw", False),
    ],
)
def test_agreement(key: str, planned: list[str], shown: str, same: bool) -> None:
    assert unit_settings.agrees(key, planned, shown) is same


def test_a_percentage_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="no size"):
        unit_settings.agrees("MemoryMax", ["90%"], "1234")


@pytest.mark.parametrize(
    ("planned", "shown", "words"),
    [
        (["@system-service", "~@privileged"], "read write", ""),
        (["@system-service", "~@privileged"], "read write chroot", "chroot is allowed"),
        (["@system-service"], "", "no system call is filtered"),
        (["~@mount"], "~mount umount2", ""),
        (["~@mount"], "~swapon", "mount is allowed"),
        (["~@mount"], "~mount:EPERM", ""),
    ],
)
def test_system_call_filters(planned: list[str], shown: str, words: str) -> None:
    found = unit_settings.filtered(planned, shown)
    assert found.startswith(words) if words else found == ""


@pytest.mark.parametrize(
    ("planned", "shown"),
    [
        ("/usr/bin/env -i A=b /bin/x", "/usr/bin/env -i A=b /bin/x"),
        ('/bin/x "two words" "a\\"b" "100%%" "$$HOME"', '/bin/x two words a"b 100% $$HOME'),
    ],
)
def test_a_command_as_systemctl_prints_it(planned: str, shown: str) -> None:
    printed = f"{{ path=/bin/x ; argv[]={shown} ; ignore_errors=no ; start_time=[n/a] ; pid=0 }}"
    assert unit_settings.agrees("ExecStart", [planned], printed)
    assert not unit_settings.agrees("ExecStart", [planned], printed.replace("/bin/x", "/bin/y"))
    assert not unit_settings.agrees("ExecStart", [planned], "")
