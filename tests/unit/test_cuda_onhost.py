"""CUDA on a host: what the observer reads of driver, compilers and Secure Boot, and a toolkit unpacked from wheels, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.hostroot import Programs, look, plant

from bigiron.errors import BigironError, Refused
from bigiron.onhost import observe, toolkit
from bigiron.onhost.kinds import nvidia
from bigiron.onhost.kinds import toolkit as kind
from bigiron.onhost.system import Output

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)  Tue Sep 23 UTC 2025\nGCC version:  gcc 12\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version: gcc 12\n"
NVCC = Output(0, "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 11.8, V11.8.89\n", "")
EFI = nvidia.SECURE_BOOT.lstrip("/")
MOK = "var/lib/dkms/mok.pub"


@pytest.mark.parametrize(("text", "loaded", "module"), [(OPEN, "580.95.05", "open"), (CLOSED, "535.183.01", "closed")])
def test_the_loaded_driver_says_version_and_kind(tmp_path: Path, text: str, loaded: str, module: str) -> None:
    plant(tmp_path, {"proc/driver/nvidia/version": text, "usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05": ""})
    found = look(tmp_path, nvidia=[])["nvidia"]
    assert found["driver"] == {"loaded": loaded, "module": module}
    assert found["library"] == "580.95.05"


def test_every_nvcc_is_asked_and_its_headers_read(tmp_path: Path) -> None:
    header = "#define CUDART_VERSION  12040\n"
    plant(
        tmp_path,
        {
            "usr/bin/nvcc": "",
            "usr/include/cuda_runtime_api.h": header,
            "usr/local/cuda-12.9/bin/nvcc": "",
            "usr/bin/g++-12": "",
            "usr/bin/g++": "",
        },
    )
    found = look(tmp_path, Programs(nvcc=NVCC), nvidia=[])["nvidia"]
    assert found["nvcc"] == {
        "/usr/bin/nvcc": {"version": "11.8.89", "headers": "12.4"},
        "/usr/local/cuda-12.9/bin/nvcc": {"version": "11.8.89", "headers": ""},
    }
    assert found["compilers"] == [12]


def test_an_nvcc_that_does_not_start_has_no_version(tmp_path: Path) -> None:
    plant(tmp_path, {"usr/bin/nvcc": ""})
    found = look(tmp_path, Programs(nvcc=Output(126, "", "Permission denied")), nvidia=[])["nvidia"]
    assert found["nvcc"]["/usr/bin/nvcc"]["version"] == ""


@pytest.mark.parametrize(
    ("said", "enrolled"),
    [
        (Output(1, "/var/lib/dkms/mok.pub is already enrolled\n", ""), True),
        (Output(0, "/var/lib/dkms/mok.pub is not enrolled\n", ""), False),
        (Output(127, "", "mokutil: No such file"), None),
    ],
)  # fmt: skip
def test_mokutil_is_asked_about_the_key_when_secure_boot_is_on(tmp_path: Path, said: Output, enrolled: bool | None) -> None:
    plant(tmp_path, {EFI: b"\x06\x00\x00\x00\x01", MOK: b"key"})
    programs = Programs(mokutil=said)
    found = look(tmp_path, programs, nvidia=[])["nvidia"]["secure_boot"]
    assert found == {"on": True, "key": "/var/lib/dkms/mok.pub", "enrolled": enrolled}
    assert programs.calls == [["mokutil", "--test-key", "/var/lib/dkms/mok.pub"]]


@pytest.mark.parametrize("efi", [{}, {EFI: b"\x06\x00\x00\x00\x00"}, {EFI: b""}])
def test_without_secure_boot_nobody_is_asked(tmp_path: Path, efi: dict[str, bytes]) -> None:
    programs = Programs()
    assert look(plant(tmp_path, {**efi, MOK: b"key"}), programs, nvidia=[])["nvidia"]["secure_boot"]["on"] is False
    assert programs.calls == []


def test_who_keeps_nouveau_out(tmp_path: Path) -> None:
    plant(tmp_path, {"lib/modprobe.d/a.conf": "# blacklist nouveau\n", "etc/modprobe.d/b.conf": "blacklist nouveau\n"})
    assert look(tmp_path, nvidia=[])["nvidia"]["blacklist"] == "/etc/modprobe.d/b.conf"


def test_settings_come_from_nvidia_smi_and_only_where_asked(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/driver/nvidia/version": OPEN})
    said = "00000000:01:00.0, Enabled, 450.00, 450.00, [N/A], [N/A]\n00000000:41:00.0, Disabled, 300.00, 450.00, Enabled, Disabled\nrubbish\n"
    programs = Programs(nvidia_smi=Output(0, said, ""))
    assert nvidia.SETTINGS not in look(tmp_path, programs, nvidia=[])["nvidia"]
    found = look(tmp_path, programs, nvidia=[nvidia.SETTINGS])["nvidia"][nvidia.SETTINGS]
    no_ecc = {"ecc.mode.current": None, "ecc.mode.pending": None}
    assert found["0000:01:00.0"] == {"persistence_mode": True, "power.limit": 450.0, "power.max_limit": 450.0, **no_ecc}
    assert list(nvidia.differs("settings", {"persistence_mode": True}, found)) == [
        ("persistence_mode of 0000:41:00.0 is off, not on", "")
    ]
    assert list(nvidia.differs("settings", {"power.limit": 300}, found)) == [
        ("power.limit of 0000:01:00.0 is 450 W, not 300 W", "")
    ]


def test_an_nvidia_smi_that_fails_is_told() -> None:
    said = nvidia.parse_settings(Output(18, "Failed to initialize NVML: Driver/library version mismatch\n", ""))
    ((problem, _),) = nvidia.differs("settings", {"persistence_mode": True}, said)
    assert "Driver/library version mismatch" in problem


def gpu_at(root: Path, vendor: str) -> None:
    base = "sys/bus/pci/devices/0000:01:00.0"
    plant(root, {f"{base}/class": "0x030000\n", f"{base}/vendor": f"0x{vendor}\n", f"{base}/device": "0x2684\n"})


@pytest.mark.parametrize(("vendor", "asked"), [("10de", True), ("1002", False), ("8086", False)])
def test_only_hosts_with_such_a_gpu_pay_for_what_is_watched_for_it(tmp_path: Path, vendor: str, asked: bool) -> None:
    gpu_at(tmp_path, vendor)
    status = "Package: g++-12\nStatus: hold ok installed\nVersion: 12.2.0-14\n\nPackage: htop\nStatus: hold ok installed\nVersion: 3\n"
    plant(tmp_path, {"var/lib/dpkg/status": status})
    request = {"watch": {"package": ["htop"]}, "for_gpus": {"10de": {"nvidia": [], "package": ["g++-12", "htop"]}}, "sent": 0.0}
    observed = observe.main(request, str(tmp_path), Programs(nvidia_smi=Output(127, "", "")))["observed"]
    assert ("nvidia" in observed) is asked
    assert ("g++-12" in observed["packages"]) is asked
    assert observed["packages"]["*held"] == (["htop", "g++-12"] if asked else ["htop"])
    assert request["watch"] == {"package": ["htop"]}


def wheel(folder: Path, name: str, files: dict[str, tuple[str, int]]) -> dict[str, str]:
    """A wheel with ``files`` (content, mode) below nvidia/cu13."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, (content, mode) in files.items():
            entry = zipfile.ZipInfo(inside if inside.startswith("/") or ".." in inside else f"nvidia/cu13/{inside}")
            entry.external_attr = mode << 16
            archive.writestr(entry, content)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", "x")
    return {"name": name, "version": "1.0", "file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def two(folder: Path) -> list[dict[str, str]]:
    return [
        wheel(folder, "nvcc", {"bin/nvcc": ("#!/bin/sh\n", 0o100755), "include/a.h": ("a", 0o100644)}),
        wheel(folder, "cublas", {"lib/libcublas.so.13": ("elf", 0o100644)}),
    ]


def install(root: Path, wheels: list[dict[str, str]], source: Path) -> None:
    toolkit.install(root, wheels, source, "nvidia/cu13", lambda *_: None)


def test_wheels_become_one_tree_with_the_links_that_linkers_want(tmp_path: Path) -> None:
    root, wheels = tmp_path / "toolkits/cuda", two(tmp_path / "w")
    assert toolkit.lacking(root, wheels) == [each["file"] for each in wheels]
    install(root, wheels, tmp_path / "w")
    assert (root / "bin/nvcc").stat().st_mode & 0o777 == 0o755
    assert (root / "include/a.h").stat().st_mode & 0o777 == 0o644
    assert (root / "lib64/libcublas.so").read_text() == "elf"
    assert toolkit.lacking(root, wheels) == []
    assert not (root / "METADATA").exists()
    assert [path.name for path in root.parent.iterdir()] == ["cuda"]
    found = look(tmp_path, toolkit=["/toolkits/cuda"])["toolkits"]["/toolkits/cuda"]
    want = {"wheels": {each["file"]: each["sha256"] for each in wheels}}
    assert list(kind.differs("x", want, found)) == []


def test_a_file_that_is_gone_and_a_wheel_more_are_seen_and_put_right(tmp_path: Path) -> None:
    root, wheels = tmp_path / "toolkits/cuda", two(tmp_path / "w")
    install(root, wheels[:1], tmp_path / "w")
    assert toolkit.lacking(root, wheels) == [wheels[1]["file"]]
    install(root, wheels, tmp_path / "w")
    (root / "bin/nvcc").unlink()
    assert toolkit.lacking(root, wheels)
    found = look(tmp_path, toolkit=["/toolkits/cuda"])["toolkits"]["/toolkits/cuda"]
    ((problem, _),) = kind.differs("x", {"wheels": {}}, found)
    assert "bin/nvcc" in problem
    install(root, wheels, tmp_path / "w")
    assert toolkit.lacking(root, wheels) == []


@pytest.mark.parametrize("spoil", ["changed", "absent", "html", "escape"])
def test_a_wrong_wheel_leaves_what_was_there(tmp_path: Path, spoil: str) -> None:
    root, wheels = tmp_path / "toolkits/cuda", two(tmp_path / "w")
    install(root, wheels[:1], tmp_path / "w")
    path = tmp_path / "w" / wheels[1]["file"]
    if spoil == "absent":
        path.unlink()
    elif spoil == "changed":
        path.write_bytes(path.read_bytes() + b"x")
    elif spoil == "html":
        path.write_bytes(b"<html>not found</html>")
        wheels[1]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    else:
        wheels[1] = wheel(tmp_path / "w", "cublas", {"nvidia/cu13/../../../evil": ("x", 0o100644)})
    before = sorted(str(each) for each in root.rglob("*"))
    with pytest.raises(BigironError) as error:
        install(root, wheels, tmp_path / "w")
    assert wheels[1]["file"] in str(error.value)
    assert sorted(str(each) for each in root.rglob("*")) == before
    assert [each.name for each in root.parent.iterdir()] == ["cuda"]
    assert not (tmp_path / "evil").exists()


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    root, wheels = tmp_path / "toolkits/cuda", two(tmp_path / "w")
    root.mkdir(parents=True)
    with pytest.raises(Refused):
        install(root, wheels, tmp_path / "w")


@pytest.mark.parametrize("text", ["", "<html>", "[]", '{"wheels": 1}'])
def test_what_is_no_record_is_no_toolkit(tmp_path: Path, text: str) -> None:
    plant(tmp_path, {f"opt/cuda/{kind.RECORD}": text})
    assert look(tmp_path, toolkit=["/opt/cuda"])["toolkits"] == {}


def stub_pip(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A python that logs what it was started with, in place of the one that has pip."""
    program, log = folder / "python", folder / "log"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{log}\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return log


def test_pip_is_asked_for_exactly_these_bytes_of_the_hosts_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = two(tmp_path / "made")[:1]
    log = stub_pip(
        tmp_path, monkeypatch, f'while [ "$1" != --dest ]; do shift; done; cp {tmp_path}/made/* "$2"; cp "$4" {tmp_path}/pins'
    )
    assert toolkit.bring([one], tmp_path / "cache") == [one["file"]]
    words = log.read_text().split()
    assert {"--require-hashes", "--no-deps", "--only-binary", "manylinux_2_17_x86_64"} <= set(words)
    assert (tmp_path / "pins").read_text() == f"nvcc==1.0 --hash=sha256:{one['sha256']}\n"
    log.unlink()
    assert toolkit.bring([one], tmp_path / "cache") == []
    assert not log.exists()


def test_a_pip_that_fails_says_what_to_fetch_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = two(tmp_path / "made")[:1]
    stub_pip(tmp_path, monkeypatch, "echo 'ERROR: No matching distribution found for nvcc==1.0' >&2; exit 1")
    with pytest.raises(BigironError) as error:
        toolkit.bring([one], tmp_path / "cache")
    assert "No matching distribution" in error.value.what
    assert one["file"] in str(error.value.hint)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_record_names_every_file(tmp_path: Path) -> None:
    root, wheels = tmp_path / "toolkits/cuda", two(tmp_path / "w")
    install(root, wheels, tmp_path / "w")
    record: dict[str, Any] = json.loads((root / kind.RECORD).read_text())
    assert set(record["files"]) == {"bin/nvcc", "include/a.h", "lib/libcublas.so", "lib/libcublas.so.13", "lib64"}
