"""Role cuda: a toolkit of tiny wheels, nouveau kept out with one initramfs, and GPUs set by stub programs that log what they were asked."""

import hashlib
import json
import zipfile

import pytest

pytestmark = pytest.mark.lab

TOOLKIT = "/opt/bigiron/toolkits/cuda-1.0"
LOG = "/run/cuda-test.log"
UNIT = "bigiron-gpu.service"


def wheel(folder, name, files):
    """A wheel with ``files`` below nvidia/cu13 (execute bit for those in bin), as the plan names it."""
    path = folder / f"{name.replace('-', '_')}-1.0-py3-none-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, content in files.items():
            entry = zipfile.ZipInfo(f"nvidia/cu13/{inside}")
            entry.external_attr = (0o100755 if inside.startswith("bin/") else 0o100644) << 16
            archive.writestr(entry, content)
    return {"name": name, "version": "1.0", "file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


@pytest.fixture
def wheels(tmp_path):
    """What the controller keeps, so that pip is not needed."""
    made = [
        wheel(tmp_path, "nvidia-cuda-nvcc", {"bin/nvcc": "#!/bin/sh\necho release 1.0, V1.0.0\n"}),
        wheel(tmp_path, "nvidia-cublas", {"lib/libcublas.so.13": "elf"}),
    ]
    return {"cuda_toolkit_path": TOOLKIT, "cuda_wheels": made, "cuda_wheel_folder": str(tmp_path)}


@pytest.fixture
def stubs(clean_host):
    """update-initramfs and NVIDIA's programs as stubs that log; no driver can be loaded here."""
    names = "update-initramfs nvidia-smi nvidia-modprobe"
    clean_host.sh(
        f"for n in {names}; do [ ! -e /usr/bin/$n ] || continue; "
        f"printf '#!/bin/sh\\necho \"$0 $*\" | sed s,.*/,, >>{LOG}\\n' >/usr/bin/$n; chmod 755 /usr/bin/$n; done; rm -f {LOG}"
    )
    yield clean_host
    clean_host.sh(f"for n in {names}; do ! grep -qs {LOG} /usr/bin/$n || rm /usr/bin/$n; done; rm -f {LOG}")


def test_check_then_a_whole_toolkit_then_nothing_then_gone(clean_host, wheels):
    before = clean_host.tree()
    predicted = clean_host.run("cuda", check=True, **wheels)
    assert (predicted.code, predicted.changed) == (0, ["Toolkit | Unpack it"]), predicted
    assert clean_host.tree() == before
    clean_host.converge("cuda", **wheels)
    assert "V1.0.0" in clean_host.sh(f"{TOOLKIT}/bin/nvcc --version")
    assert clean_host.sh(f"cat {TOOLKIT}/lib64/libcublas.so") == "elf"
    assert clean_host.sh("ls /var/cache/bigiron/wheels 2>/dev/null", check=False) == ""
    clean_host.sh(f"rm {TOOLKIT}/bin/nvcc")
    clean_host.converge("cuda", **wheels)
    clean_host.removes("cuda", cuda_toolkit_path=TOOLKIT)
    assert TOOLKIT not in clean_host.tree()


def test_a_wheel_that_is_not_the_pinned_one_changes_nothing(clean_host, wheels, tmp_path):
    (tmp_path / wheels["cuda_wheels"][1]["file"]).write_bytes(b"<html>")
    play = clean_host.run("cuda", **wheels)
    assert play.code != 0
    assert "nvidia-cublas" in play.failed[0]
    assert TOOLKIT not in clean_host.tree()


def test_nouveau_is_kept_out_with_exactly_one_initramfs(stubs):
    first = stubs.converge("cuda", cuda_blacklist=True)
    assert "Nouveau | Write the blacklist" in first.changed
    assert "blacklist nouveau" in stubs.sh("cat /etc/modprobe.d/bigiron-nouveau.conf")
    assert stubs.sh(f"grep -c update-initramfs {LOG}").strip() == "1"
    assert stubs.run("cuda", entry="remove").code == 0
    assert stubs.run("cuda", entry="remove").changed == []
    assert stubs.sh(f"grep -c update-initramfs {LOG}").strip() == "2"


def test_without_a_driver_the_unit_waits_for_it(stubs):
    stubs.converge("cuda", cuda_gpus=2, cuda_settings={"persistence": True, "power_watts": 300, "ecc": False})
    assert stubs.sh(f"systemctl is-enabled {UNIT}").strip() == "enabled"
    assert "nvidia-smi" not in stubs.sh(f"cat {LOG} 2>/dev/null", check=False)
    lines = [line for line in stubs.sh(f"cat /etc/systemd/system/{UNIT}").splitlines() if line.startswith("ExecStart")]
    assert [line.rpartition("/")[2] for line in lines] == [
        "nvidia-modprobe -c 0", "nvidia-modprobe -c 1", "nvidia-modprobe -u -c 0", "nvidia-smi -pm 1", "nvidia-smi -pl 300", "nvidia-smi -e 0",
    ]  # fmt: skip
    stubs.removes("cuda")
    assert "not-found" in stubs.sh(f"systemctl show -p LoadState {UNIT}")


@pytest.mark.parametrize(("exits", "loads", "code"), [(0, True, 0), (1, False, 0), (127, False, 2)])
def test_a_modprobe_that_breaks_fails_the_role_and_one_that_is_refused_does_not(stubs, exits, loads, code):
    told = "could not insert 'nvidia': Key was rejected by service"
    stubs.sh("! test -e /sbin/modprobe")  # the lab's base has none
    stubs.sh(f"printf '#!/bin/sh\\necho \"{told}\" >&2\\nexit {exits}\\n' >/sbin/modprobe; chmod 755 /sbin/modprobe")
    try:
        play = stubs.run("cuda", cuda_gpus=1, cuda_settings={"persistence": True})
        assert play.code == code, play
        assert ("Gpus | Load the driver" in play.changed) is loads
        events = [json.loads(line) for line in play.output.splitlines() if line.startswith("{")]
        why = [each["event"] for each in events if each["task"] == "Gpus | Say why the driver is not loaded" and each["host"]]
        assert ("ok" in why) is (exits == 1), play.output
    finally:
        stubs.sh("rm /sbin/modprobe")
        stubs.removes("cuda")
