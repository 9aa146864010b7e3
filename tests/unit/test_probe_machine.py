"""The probe against trees of machines that are not at hand: NUMA boxes, containers, cgroup limits, ARM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bigiron.errors import BigironError
from bigiron.machine.description import Machine
from bigiron.onhost import probe, system


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def programs(**answers: tuple[int, str]):
    """A `system.Start` that knows some programs by name; any other call is an error of the test."""

    def begin(argv):
        rc, out = answers[Path(argv[0]).name.replace("-", "_")]
        return lambda: system.Output(rc, out, "")

    return begin


def machine(root: Path, **answers: tuple[int, str]) -> Machine:
    return Machine.from_json(probe.begin(system.Tree(str(root)), programs(**answers))())


def workstation(nodes: int, per_node: int, *, packages: int, memoryless: tuple[int, ...] = ()) -> dict[str, str]:
    """A box whose CPU n and n + half are threads of one core, with ``nodes`` NUMA nodes of ``per_node`` threads."""
    total = nodes * per_node
    files = {
        "proc/cpuinfo": "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9654\n"
        "flags\t\t: fpu avx2 avx512f\n\nprocessor\t: 1\nflags\t\t: wrong\n",
        "proc/self/status": f"Name:\tx\nCpus_allowed_list:\t0-{total - 1}\n",
        "proc/meminfo": "MemTotal:       1056000000 kB\nMemFree: 1 kB\nMemAvailable:   1000000000 kB\n",
        "proc/sys/kernel/hostname": "big\n",
        "sys/devices/system/cpu/online": f"0-{total - 1}\n",
        "etc/os-release": 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian 12 (bookworm)"\nVERSION_CODENAME=bookworm\n',
    }
    for cpu in range(total):
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        core = cpu % (total // 2)
        files[f"{topology}/physical_package_id"] = f"{core * packages // (total // 2)}\n"
        files[f"{topology}/core_id"] = f"{core % (total // 2 // packages)}\n"
    for node in range(nodes):
        first = node * per_node
        kib = 0 if node in memoryless else 132_000_000
        files[f"sys/devices/system/node/node{node}/cpulist"] = f"{first}-{first + per_node - 1}\n"
        files[f"sys/devices/system/node/node{node}/meminfo"] = f"Node {node} MemTotal:       {kib} kB\n"
    return files


def test_eight_numa_nodes_on_two_sockets(tmp_path):
    found = machine(plant(tmp_path, workstation(8, 16, packages=2)))
    assert (found.cpu.sockets, found.cpu.cores, found.cpu.threads) == (2, 64, 128)
    assert found.cpu.flags == ("fpu", "avx2", "avx512f")
    assert [node.id for node in found.cpu.numa_nodes] == list(range(8))
    assert found.cpu.numa_nodes[7].cpus == tuple(range(112, 128))
    assert found.cpu.numa_nodes[7].memory_bytes == 132_000_000 * 1024
    assert found.memory.total_bytes == 1056000000 * 1024
    assert found.os.codename == "bookworm"
    assert found.hostname == "big"


def test_memoryless_node_is_kept_with_zero(tmp_path):
    found = machine(plant(tmp_path, workstation(2, 4, packages=1, memoryless=(1,))))
    assert [node.memory_bytes for node in found.cpu.numa_nodes] == [132_000_000 * 1024, 0]


def test_cpu_less_memory_node(tmp_path):
    files = workstation(2, 4, packages=1) | {"sys/devices/system/node/node1/cpulist": "\n"}
    assert machine(plant(tmp_path, files)).cpu.numa_nodes[1].cpus == ()


def test_cpuset_limits_threads_and_cores_but_not_sockets(tmp_path):
    files = workstation(2, 8, packages=2) | {"proc/self/status": "Cpus_allowed_list:\t0-1,8-9\n"}
    found = machine(plant(tmp_path, files)).cpu
    assert (found.sockets, found.cores, found.threads) == (2, 2, 4)


def test_core_ids_that_repeat_on_each_die(tmp_path):
    files = workstation(1, 4, packages=1)
    for cpu in range(4):
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/core_id"] = "0\n"
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/die_id"] = f"{cpu % 2}\n"
    assert machine(plant(tmp_path, files)).cpu.cores == 2


def test_no_sysfs_at_all(tmp_path):
    files = {name: text for name, text in workstation(1, 4, packages=1).items() if not name.startswith("sys/")}
    found = machine(plant(tmp_path, files))
    assert (found.cpu.sockets, found.cpu.cores, found.cpu.threads) == (1, 4, 4)
    assert [(node.cpus, node.memory_bytes) for node in found.cpu.numa_nodes] == [((0, 1, 2, 3), found.memory.total_bytes)]
    assert (found.gpus, found.nvme, found.nics, found.memory.dimms) == ((), (), (), ())


def test_arm_names_its_vendor(tmp_path):
    files = workstation(1, 2, packages=1) | {
        "proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd i8mm\nCPU implementer\t: 0xc0\nCPU part\t: 0xac3\n\n"
    }
    found = machine(plant(tmp_path, files)).cpu
    assert (found.vendor, found.model, found.flags) == ("Ampere", "Ampere 0xac3", ("fp", "asimd", "i8mm"))


GIB = 1024**3


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        pytest.param({}, None, id="no cgroups"),
        pytest.param({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, None, id="v2 unlimited"),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{4 * GIB}\n"}, 4 * GIB, id="v2 namespace root"
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": f"{8 * GIB}\n",
                "sys/fs/cgroup/a/b/memory.max": f"{16 * GIB}\n",
            },
            8 * GIB,
            id="v2 nested, parent is tighter",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:cpu,memory:/docker/abc\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            },
            2 * GIB,
            id="v1 without namespace: the path is the host's",
        ),
        pytest.param(
            {"proc/self/cgroup": "4:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712\n"},
            None,
            id="v1 says unlimited with a huge number",
        ),
        pytest.param(
            {
                "run/systemd/system/x": "",
                "proc/1/cgroup": "0::/init.scope\n",
                "proc/self/cgroup": "0::/user.slice/session-1.scope\n",
                "sys/fs/cgroup/user.slice/memory.max": f"{1 * GIB}\n",
                "sys/fs/cgroup/system.slice/memory.max": f"{32 * GIB}\n",
            },
            32 * GIB,
            id="systemd: the session's limit does not bind a service, the slice's does",
        ),
    ],
)
def test_cgroup_limit(tmp_path, files, limit):
    assert machine(plant(tmp_path, workstation(1, 2, packages=1) | files)).memory.cgroup_limit_bytes == limit


@pytest.mark.parametrize(
    ("files", "answers", "expected"),
    [
        ({"usr/bin/systemd-detect-virt": ""}, {"systemd_detect_virt": (0, "kvm\n")}, "kvm"),
        ({"usr/bin/systemd-detect-virt": ""}, {"systemd_detect_virt": (1, "none\n")}, "none"),
        ({"run/systemd/container": "systemd-nspawn"}, {}, "systemd-nspawn"),
        ({"proc/1/environ": "A=b\0container=lxc\0"}, {}, "lxc"),
        ({".dockerenv": ""}, {}, "docker"),
        ({"sys/class/dmi/id/sys_vendor": "QEMU\n"}, {}, "qemu"),
        ({}, {}, "none"),
    ],
)
def test_virtualization(tmp_path, files, answers, expected):
    assert machine(plant(tmp_path, workstation(1, 2, packages=1) | files), **answers).virtualization == expected


def test_init(tmp_path):
    plant(tmp_path, workstation(1, 2, packages=1) | {"proc/1/comm": "runit\n"})
    assert machine(tmp_path).init == "runit"
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert machine(tmp_path).init == "systemd"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_is_reported(tmp_path):
    plant(tmp_path, workstation(1, 2, packages=1) | {"sys/firmware/dmi/tables/DMI": "x"})
    (tmp_path / "sys/firmware/dmi/tables/DMI").chmod(0)
    assert "/sys/firmware/dmi/tables/DMI" in machine(tmp_path).unreadable


def test_this_machine_agrees_with_the_kernel():
    found = Machine.from_json(probe.main({})["machine"])
    assert found.cpu.threads == len(os.sched_getaffinity(0))
    assert found.kernel == os.uname().release
    assert found.memory.total_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert Machine.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("kernel"), 'machine: "kernel" is missing'),
        (lambda d: d["cpu"].update(cores="8"), "machine.cpu.cores: expected a whole number, found '8'"),
        (lambda d: d["cpu"].update(cores=True), "machine.cpu.cores: expected a whole number, found True"),
        (
            lambda d: d["memory"].update(total_bytes=-1),
            "machine.memory.total_bytes: expected a whole number of at least 0, found -1",
        ),
        (lambda d: d["cpu"]["numa_nodes"].append(3), "machine.cpu.numa_nodes[1]: expected an object, found 3"),
        (lambda d: d.update(gpus={}), "machine.gpus: expected a list, found {}"),
        (lambda d: d.update(unreadable={"a": 1}), "machine.unreadable: expected an object of texts, found {'a': 1}"),
    ],
)
def test_from_json_names_what_is_wrong(tmp_path, change, message):
    document = machine(plant(tmp_path, workstation(1, 2, packages=1))).to_json()
    change(document)
    with pytest.raises(BigironError) as caught:
        Machine.from_json(document)
    assert str(caught.value) == message


def test_from_json_takes_more_than_it_knows(tmp_path):
    document = machine(plant(tmp_path, workstation(1, 2, packages=1))).to_json()
    assert Machine.from_json({**document, "from_the_future": 1}).to_json() == document


def test_start_says_why_a_program_gave_nothing():
    assert system.start(["/nonexistent/program"])() == (127, "", "/nonexistent/program: No such file or directory")
    assert system.start(["sleep", "30"], timeout_s=0.05)().rc == 124
    assert system.start(["sh", "-c", "echo $LC_ALL; cat; exit 3"])() == (3, "C\n", "")


@pytest.mark.parametrize(("text", "cpus"), [("0-2,8\n", [0, 1, 2, 8]), ("", []), ("5", [5]), ("x-3,1", [1]), ("3-x", [])])
def test_numbers(text, cpus):
    assert probe.numbers(text) == cpus
