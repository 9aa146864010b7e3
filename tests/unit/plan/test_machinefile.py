"""Machine files, the catalogue and the tables: what a person writes by hand, checked to the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bigiron.errors import UsageError
from bigiron.machine.description import Machine
from bigiron.machine.hardware import from_machine
from bigiron.machine.machinefile import parse, read
from bigiron.machine.tables import cpu_by_model, gpu_by_name, gpu_by_pci, unified_by_model
from bigiron.plan import catalogue
from bigiron.units import GB, GIB

INVENTORY = Path(__file__).parents[3] / "inventory"
GOOD = """\
machine: desk
cpu:
  model: AMD Ryzen 9 7950X
  cores: 16
memory:
  gib: 128
gpus:
  - {model: RTX 4090}
"""


@pytest.mark.parametrize("path", sorted((INVENTORY / "machines").glob("*.yml")), ids=lambda path: path.stem)
def test_shipped_machine_files_load(path: Path) -> None:
    machine = read(path)
    assert machine.name == path.stem
    assert machine.bandwidth


def test_the_guides_machines_are_there() -> None:
    names = {path.stem for path in (INVENTORY / "machines").glob("*.yml")}
    assert {"epyc-9354p", "threadripper-7960x", "ryzen-7950x-nvme", "mac-studio-m2-ultra", "workstation-rtx-4090"} <= names
    assert read(INVENTORY / "machines" / "epyc-9354p.yml").bandwidth == 12 * 4800e6 * 8


def test_tables_fill_in_what_a_model_name_tells() -> None:
    machine = parse(GOOD, "desk.yml")
    assert machine.bandwidth == 2 * 5200e6 * 8
    assert (machine.isa, machine.clock_ghz, machine.threads) == ("avx512", 4.7, 16)
    assert machine.gpus[0].device == "CUDA0"
    assert machine.gpus[0].memory_bytes == int(23.98 * GIB)


@pytest.mark.parametrize(
    ("old", "new", "line", "words", "hint"),
    [
        ("  cores: 16", "  coers: 16", 4, 'unknown key "coers" in cpu', 'did you mean "cores"?'),
        ("  cores: 16", "  cores: 0", 4, "cpu.cores: 0 is not at least 1", None),
        ("  gib: 128", "  gib: -3", 6, "memory.gib: -3 is not more than 0", None),
        ("  gib: 128", "  gib: lots", 6, "memory.gib: 'lots' is no number", None),
        ("machine: desk", "machine: 12", 1, "machine: 12 is no string (put it in quotes)", None),
        ("  gib: 128", "  gib:", 6, "memory.gib: nothing is no number", None),
        ("  gib: 128", "  mts: 5200", 5, '"gib" is missing', None),
        ("RTX 4090", "RTX 4099", 8, "in no table and its memory is not guessed", "RTX 4090"),
        ("RTX 4090", "RTX 4090 Laptop GPU", 8, "its memory is not guessed", "vram_gib"),
        ("{model: RTX 4090}", "{model: RTX 4090, count: 0}", 8, "gpus.0.count: 0 is not at least 1", None),
        ("AMD Ryzen 9 7950X", "Potato 9000", 5, "memory channels and speed of 'Potato 9000' are in no table", "channels"),
        ("machine: desk", "machine: desk\nmachine: two", 2, '"machine" is given twice', None),
        ("cpu:", "cpu: [", 4, "not YAML", None),
        ("  cores: 16", "  cores: 16\n  threads: 8", 5, "fewer threads than cores", None),
        ("machine: desk", "machines: desk", 1, 'unknown key "machines"', 'did you mean "machine"?'),
    ],
)
def test_a_mistake_is_named_with_its_line(old: str, new: str, line: int, words: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        parse(GOOD.replace(old, new), "desk.yml")
    assert words in caught.value.what
    assert caught.value.where == f"desk.yml:{line}"
    if hint:
        assert hint in str(caught.value.hint)


@pytest.mark.parametrize("text", ["", "- 1\n", "just text", "a: &x [*x]\n", "\x00"])
def test_other_files_are_no_machine_files(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text, "odd.yml")


def test_a_missing_file_names_those_that_exist() -> None:
    with pytest.raises(UsageError, match="No such file") as caught:
        read(INVENTORY / "machines" / "epyc-9354.yml")
    assert "epyc-9354p.yml" in str(caught.value.hint)


def test_unknown_gpus_can_be_described() -> None:
    entry = "{model: Homemade, vendor: amd, count: 2, vram_gib: 33, bandwidth_gb_s: 500}"
    machine = parse(GOOD.replace("{model: RTX 4090}", entry), "desk.yml")
    assert [gpu.device for gpu in machine.gpus] == ["ROCm0", "ROCm1"]
    assert machine.gpus[1].memory_bytes == 33 * GIB


def test_a_cpu_without_vector_unit_in_the_table_is_asked_for() -> None:
    text = GOOD.replace("AMD Ryzen 9 7950X", "Potato 9000").replace("  gib: 128", "  gib: 128\n  channels: 2\n  mts: 3200")
    with pytest.raises(UsageError, match="vector unit") as caught:
        parse(text, "desk.yml")
    assert "cpu.isa" in str(caught.value.hint)


def test_measured_bandwidth_wins() -> None:
    machine = parse(GOOD.replace("  gib: 128", "  gib: 128\n  bandwidth_gb_s: 60"), "desk.yml")
    assert (machine.bandwidth, machine.bandwidth_measured) == (60 * GB, True)


@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("AMD EPYC 9354P 32-Core Processor", 12),
        ("AMD EPYC 7763 64-Core Processor", 8),
        ("AMD Ryzen Threadripper PRO 7965WX 24-Cores", 8),
        ("AMD Ryzen Threadripper 7960X 24-Cores", 4),
        ("AMD Ryzen 9 7950X 16-Core Processor", 2),
        ("Intel(R) Xeon(R) Platinum 8480+", 8),
        ("INTEL(R) XEON(R) GOLD 6548N", 8),
        ("Intel(R) Xeon(R) w9-3495X", 8),
        ("13th Gen Intel(R) Core(TM) i9-13900K", 2),
        ("Intel(R) Xeon(R) 6960P", 12),
    ],
)
def test_cpus_as_the_kernel_spells_them(name: str, channels: int) -> None:
    found = cpu_by_model(name)
    assert found is not None
    assert found.channels == channels


def test_unknown_hardware_is_not_guessed() -> None:
    assert cpu_by_model("Intel(R) Xeon(R) Processor") is None
    assert gpu_by_name("RTX 4090 Laptop GPU") is None
    assert gpu_by_pci("1002", "744c") is None  # 7900 XTX, XT and GRE share it
    assert unified_by_model("Apple M2") is None


def test_gpus_by_name_and_id() -> None:
    assert gpu_by_name("NVIDIA GeForce RTX 4090") == gpu_by_pci("10de", "2684")
    assert unified_by_model("Apple M2 Ultra") is not None


MACHINE = {
    "hostname": "h",
    "os": {"id": "debian", "version_id": "12", "pretty": "Debian 12", "codename": "bookworm"},
    "kernel": "6.1",
    "arch": "x86_64",
    "virtualization": "none",
    "init": "systemd",
    "python": "3.11",
    "libc": "glibc 2.36",
    "cpu": {
        "model": "AMD EPYC 9354P 32-Core Processor",
        "vendor": "AuthenticAMD",
        "sockets": 1,
        "cores": 32,
        "threads": 64,
        "flags": ["avx2", "avx512f", "avx512_vnni"],
        "numa_nodes": [
            {"id": 0, "cpus": [0, 1], "memory_bytes": 200 * GIB},
            {"id": 1, "cpus": [], "memory_bytes": 184 * GIB},
            {"id": 2, "cpus": [2], "memory_bytes": 0},
        ],
    },
    "memory": {
        "total_bytes": 384 * GIB,
        "available_bytes": 380 * GIB,
        "cgroup_limit_bytes": None,
        "dimms": [{"size_bytes": 32 * GIB, "speed_mts": 4800, "type": "DDR5", "locator": f"P0 {n}"} for n in range(12)],
    },
    "gpus": [],
    "nvme": [],
    "nics": [],
}


def observed(**changes: object) -> Machine:
    document = json.loads(json.dumps(MACHINE))
    for path, value in changes.items():
        at = document
        *parents, last = path.split("__")
        for part in parents:
            at = at[part]
        at[last] = value
    return Machine.from_json(document)


def test_an_observed_machine() -> None:
    found = from_machine(observed())
    assert found.bandwidth == 12 * 4800e6 * 8
    assert (found.isa, found.numa_nodes, found.cores) == ("avx512", 2, 32)
    assert found.available_bytes == 380 * GIB


def test_a_cgroup_limit_is_all_there_is() -> None:
    found = from_machine(observed(memory__cgroup_limit_bytes=2 * GIB))
    assert (found.memory_bytes, found.available_bytes) == (2 * GIB, 2 * GIB)
    assert "cgroup" in found.notes[-1]


def test_no_dimms_no_bandwidth_unless_measured() -> None:
    assert from_machine(observed(memory__dimms=[])).bandwidth is None
    measured = from_machine(observed(memory__dimms=[]), bandwidth=300e9)
    assert (measured.bandwidth, measured.bandwidth_measured) == (300e9, True)


def test_two_dimms_on_a_channel_count_once() -> None:
    dimms = MACHINE["memory"]["dimms"] * 2  # type: ignore[index]
    assert from_machine(observed(memory__dimms=dimms)).bandwidth == 12 * 4800e6 * 8


def pci(device: str, memory: int | None = None, vendor: str = "10de", slot: str = "0000:01:00.0") -> dict[str, object]:
    return {
        "pci": slot,
        "vendor_id": vendor,
        "device_id": device,
        "vendor": "",
        "driver": None,
        "memory_bytes": memory,
        "class": "030000",
    }


def test_gpus_without_driver_by_the_table() -> None:
    found = from_machine(observed(gpus=[pci("2684"), pci("2204"), pci("1234", vendor="1a03")]))
    assert [(gpu.device, gpu.model) for gpu in found.gpus] == [("CUDA0", "GeForce RTX 4090"), ("CUDA1", "GeForce RTX 3090")]


def test_a_gpu_nobody_knows_is_asked_for() -> None:
    with pytest.raises(UsageError, match="is unknown: no driver reports it and no table has it"):
        from_machine(observed(gpus=[pci("ffff")]))
    assert from_machine(observed(gpus=[pci("ffff")]), gpu_memory=(20 * GIB,)).gpus[0].memory_bytes == 20 * GIB
    assert from_machine(observed(gpus=[pci("ffff", 10 * GIB)])).gpus[0].memory_bytes == 10 * GIB


def test_graphics_inside_an_intel_cpu_are_no_accelerator() -> None:
    assert from_machine(observed(gpus=[pci("a780", vendor="8086", slot="0000:00:02.0")])).gpus == ()


def test_the_shipped_catalogue() -> None:
    models = catalogue.read(INVENTORY / "catalogue.yml")
    assert models["kimi-k2"].repo == "unsloth/Kimi-K2-Instruct-GGUF"
    assert not models["kimi-k2"].pinned
    assert models["kimi-k2"].branch == "main"
    with pytest.raises(UsageError, match="no model 'kimi-k3'") as caught:
        catalogue.find(models, "kimi-k3")
    assert "kimi-k2" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{repo: a/b, revision: main, licence: MIT}", "revision: 'main' does not look right"),
        ("{repo: b, revision: ask, licence: MIT}", "repo: 'b' does not look right"),
        ("{repo: a/b, revision: ask}", '"licence" is missing'),
        ("{repo: a/b, revision: ask, license: MIT, licence: MIT}", 'unknown key "license"'),
    ],
)
def test_wrong_catalogue_entries(tmp_path: Path, entry: str, words: str) -> None:
    path = tmp_path / "catalogue.yml"
    path.write_text(f"models:\n  one: {entry}\n")
    with pytest.raises(UsageError) as caught:
        catalogue.read(path)
    assert words in caught.value.what
    assert caught.value.where == f"{path}:2"


def test_a_pinned_entry(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.yml"
    path.write_text(f"models:\n  one: {{repo: a/b, revision: {'a' * 40}, licence: MIT}}\n")
    assert catalogue.read(path)["one"].pinned
