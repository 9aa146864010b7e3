"""Which drop-in changes which planned setting: the rules of systemd.unit(5), without a systemd."""

from __future__ import annotations

import pytest

from bigiron.onhost.dropins import DECISIVE, overrides, told
from bigiron.parts import llama_server

UNIT = """# Written by bigiron
[Unit]
After=network-online.target
RequiresMountsFor=/srv/models /opt/bigiron
StartLimitBurst=5

[Service]
Type=exec
User=llama
ExecStart=/usr/bin/env -i A=b /bin/llama-server --port 8080
LoadCredential=api-key:/etc/bigiron/credentials/main.key
Environment=A=1
PrivateTmp=yes
RestrictAddressFamilies=AF_INET AF_INET6
CapabilityBoundingSet=
SystemCallFilter=@system-service
SystemCallFilter=~@privileged

[Install]
WantedBy=multi-user.target
"""


def found(*texts: str) -> list[tuple[str, str]]:
    return overrides(UNIT, {f"/{number}.conf": text for number, text in enumerate(texts, 1)})


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", []),
        ("[Service]\n", []),
        ("[Service]\nExecStart=\nExecStart=/x\n", ["ExecStart"]),
        ("[Service]\nExecStart=/second\n", ["ExecStart"]),
        ("[Service]\nExecStart=\n", ["ExecStart"]),
        (
            "[Service]\nExecStart=\nExecStart=/usr/bin/env -i A=b \\\n  # a comment between\n  /bin/llama-server --port 8080\n",
            [],
        ),
        ("[Service]\nExecStartPre=/bin/echo hello\n", ["ExecStartPre"]),
        ("[Service]\nRootDirectory=/chroot\n", ["RootDirectory"]),
        ("[Service]\nRootDirectory=\n", []),
        ("[Service]\n  User = root\n", ["User"]),
        ("[Service]\nUser=llama\nPrivateTmp=true\nType=exec", []),
        ("[Service]\nUser=\n", ["User"]),
        ("[Service]\nPrivateTmp=no\nUser=x\n", ["PrivateTmp", "User"]),
        ("# [Service]\n; User=root\n[Service]\n#User=root\n", []),
        ("[Unit]\nUser=root\n", []),
        ("User=root\n", []),
        ("[Service]\nNice=5\nCPUAffinity=0-3\n", []),
        ("[Unit]\nAfter=postgresql.service\nWants=x.service\nRequiresMountsFor=/data\n", []),
        ("[Unit]\nAfter=\nAfter=postgresql.service\n", ["After"]),
        ("[Unit]\nAfter=\nAfter=x.service network-online.target\n", []),
        ("[Install]\nWantedBy=\n", ["WantedBy"]),
        ("[Service]\nEnvironment=B=2\n", []),
        ("[Service]\nEnvironment=A=2\n", ["Environment"]),
        ("[Service]\nLoadCredential=other:/x\n", []),
        ("[Service]\nLoadCredential=api-key:/x\n", ["LoadCredential"]),
        ("[Service]\nLoadCredential=\n", ["LoadCredential"]),
        ("[Service]\nCapabilityBoundingSet=CAP_SYS_NICE\n", ["CapabilityBoundingSet"]),
        ("[Service]\nSystemCallFilter=@privileged\n", ["SystemCallFilter"]),
        ("[Service]\nRestrictAddressFamilies=AF_UNIX\n", ["RestrictAddressFamilies"]),
        ("[Unit]\nStartLimitBurst=50\n", ["StartLimitBurst"]),
        ("[Service]\nUser=root \\", ["User"]),
        ("[Service]\r\nUser=root\r\n", ["User"]),
    ],
)
def test_one_drop_in(text, settings):
    assert found(text) == [("/1.conf", setting) for setting in settings]


def test_later_file_wins_and_is_the_one_that_is_named():
    assert found("[Service]\nUser=a\n", "[Service]\nUser=b\n") == [("/2.conf", "User")]
    assert found("[Service]\nExecStart=\n", "[Service]\nExecStart=/y\n") == [("/2.conf", "ExecStart")]


def test_a_later_file_can_take_it_back():
    assert found("[Service]\nUser=root\n", "[Service]\nUser=llama\n") == []
    assert found("[Unit]\nAfter=\n", "[Unit]\nAfter=network-online.target\n") == []


def test_who_only_adds_afterwards_is_not_blamed():
    assert found("[Unit]\nAfter=\n", "[Unit]\nAfter=x.service\n") == [("/1.conf", "After")]
    assert found("[Service]\nLoadCredential=api-key:/x\n", "[Service]\nLoadCredential=b:/y\n") == [
        ("/1.conf", "LoadCredential")
    ]


def test_how_to_keep_or_remove_is_said_for_what_decides_what_runs():
    taste, decisive = told("u.service", [("/a.conf", "Nice"), ("/b.conf", "User"), ("/b.conf", "PrivateTmp")])
    assert taste == ("/a.conf overrides Nice= of u.service", "")
    assert decisive[0] == "/b.conf overrides User=, PrivateTmp= of u.service"
    assert "rm /b.conf && systemctl daemon-reload" in decisive[1]
    assert llama_server.COMMAND is DECISIVE


@pytest.mark.parametrize(("end", "settings"), [("\\", []), ("\\\\", ["User"]), ("\\ ", ["User"])])
def test_only_an_odd_backslash_at_the_very_end_continues_a_line(end: str, settings: list[str]) -> None:
    unit, drop_in = "[Service]\nUser=llama\n", f"[Service]\nDescription=x{end}\nUser=root\n"
    assert [setting for _, setting in overrides(unit, {"/d.conf": drop_in})] == settings
