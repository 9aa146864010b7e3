"""Why a reboot is pending: what kind boot sees of kernels, headers and modules, what is said of it, and how a host is rebooted."""

import itertools
from types import SimpleNamespace

import pytest

from bigiron import parts
from bigiron.errors import BigironError, Unreachable
from bigiron.fleet import reboot as hosts
from bigiron.fleet.ssh import Completed
from bigiron.onhost.kinds.boot import flavour
from bigiron.parts.planner import plan_hosts
from bigiron.plan import reboot, wishes
from fixtures.hostfacts import fact, virgin
from fixtures.hostroot import look, plant

OLD, NEW = "6.1.0-9-amd64", "6.1.0-10-amd64"


def host(tmp_path, running=OLD, kernels=(OLD, NEW), headers=(), nvidia="", **files):
    tree = {"proc/sys/kernel/osrelease": running + "\n", "proc/sys/kernel/random/boot_id": "b-1\n", **files}
    for each in kernels:
        tree |= {f"boot/vmlinuz-{each}": "", f"lib/modules/{each}/modules.dep": ""}
    tree |= {f"usr/src/linux-headers-{each}/Makefile": "" for each in headers}
    tree |= {"sys/module/nvidia/version": nvidia + "\n", "sys/module/nvidia/initstate": "live\n"} if nvidia else {}
    return look(plant(tmp_path, tree), boot=["nvidia", "amdgpu"])["boot"]


def test_the_newest_kernel_is_found_by_number(tmp_path):
    boot = host(tmp_path)
    assert boot["system"]["newest"] == NEW
    assert boot["system"]["id"] == "b-1"
    assert NEW in reboot.newer_kernel(boot)


def test_another_flavour_does_not_boot_next(tmp_path):
    boot = host(tmp_path, kernels=(OLD, "6.1.0-12-rt-amd64", "6.1.0-12-cloud-amd64"))
    assert reboot.newer_kernel(boot) == ""


@pytest.mark.parametrize(
    ("release", "says"),
    [(OLD, "amd64"), ("6.1.0-9-rt-amd64", "rt-amd64"), ("5.15.0-91-generic", "generic"), ("6.12.5+bpo-amd64", "bpo-amd64"), ("6.12.5", "")],
)  # fmt: skip
def test_flavours(release, says):
    assert flavour(release) == says


def test_a_folder_that_dkms_left_is_no_kernel(tmp_path):
    boot = host(tmp_path, kernels=(OLD,), **{f"lib/modules/{NEW}/updates/dkms/x.ko": ""})
    assert reboot.newer_kernel(boot) == ""


def test_a_kernel_is_known_by_its_package_too(tmp_path):
    status = f"Package: linux-image-{NEW}\nStatus: install ok installed\n\nPackage: linux-image-9.9\nStatus: deinstall ok config-files\n"
    modules = {f"lib/modules/{each}/modules.dep": "" for each in (NEW, "9.9")}
    boot = host(tmp_path, kernels=(OLD,), **{"var/lib/dpkg/status": status}, **modules)
    assert boot["system"]["installed"] == [OLD, NEW]


def test_a_kernel_of_ones_own_that_is_newer_is_left_alone(tmp_path):
    assert reboot.newer_kernel(host(tmp_path, running="7.1.0-mine", kernels=(OLD, NEW))) == ""


def test_a_container_without_kernels_has_nothing_pending(tmp_path):
    boot = host(tmp_path, kernels=())
    assert (reboot.newer_kernel(boot), reboot.required(boot)) == ("", "")


def test_the_systems_own_wish_names_its_packages(tmp_path):
    files = {
        "run/reboot-required": "*** System restart required ***\n",
        "run/reboot-required.pkgs": "libc6\nlinux-base\nlibc6\n",
    }
    assert "libc6, linux-base changed" in reboot.required(host(tmp_path, **files))
    assert "asks for a reboot" in reboot.required(host(tmp_path / "bare", **{"run/reboot-required": ""}))


@pytest.mark.parametrize("installed", ["570.133", "570.133-0ubuntu1", "1:570.133-1"])
def test_a_module_in_another_version_than_the_software(tmp_path, installed):
    boot = host(tmp_path, nvidia="570.124")
    assert "570.124" in reboot.other_module(boot, "nvidia", installed)
    assert reboot.other_module(boot, "nvidia", installed.replace("133", "124")) == ""


def test_a_module_that_is_not_loaded_is_no_mismatch(tmp_path):
    boot = host(tmp_path, **{"sys/module/nvidia/parameters/x": "1"})
    assert "nvidia" not in boot
    assert reboot.other_module(boot, "nvidia", "570.133") == ""


def test_headers_of_another_kernel_than_the_running_one(tmp_path):
    says = reboot.no_headers(host(tmp_path, headers=[NEW]))
    assert says.endswith(f"there are headers for {NEW} only: reboot into {NEW}, or install linux-headers-{OLD}")


def test_headers_of_the_running_kernel_do_not_do_for_the_next(tmp_path):
    assert f"install linux-headers-{NEW}" in reboot.no_headers(host(tmp_path, headers=[OLD]))
    assert reboot.no_headers(host(tmp_path / "both", headers=[OLD, NEW])) == ""


def test_a_dangling_build_link_is_no_headers(tmp_path):
    plant(tmp_path, {f"lib/modules/{OLD}/x": ""})
    (tmp_path / f"lib/modules/{OLD}/build").symlink_to(f"/usr/src/linux-headers-{OLD}")
    assert "none at all" in reboot.no_headers(host(tmp_path, kernels=(OLD,)))


def test_a_host_looks_at_its_boot_only_when_asked(tmp_path):
    assert "boot" not in parts.watch(wishes.read("a", fact().wish | {"llama_server_api_key": ""}))
    watching = fact(base_watch_reboot=True, observed={"boot": host(tmp_path)})
    assert parts.watch(watching.wish)["boot"] == []
    plan = plan_hosts([watching], [])["a"]
    assert NEW in plan.planned.reboot[0]
    assert plan.to_json()["reboot"] == plan.planned.reboot
    assert plan.variables == plan_hosts([fact()], [])["a"].variables
    assert "boot" not in virgin()


class Machine:
    """Stands in for a host over ssh: ``boots`` are what it answers, one a connection; an error is raised."""

    def __init__(self, monkeypatch, *boots, status=0, controller="c-1"):
        self.ran = []
        self.status = status
        boots = itertools.chain(boots, itertools.repeat(boots[-1]))
        outer = self

        class Session:
            def __init__(self, target):
                self.target = target

            def __enter__(self):
                return self

            def __exit__(self, *_):
                return None

            def read_file(self, _path):
                answer = next(boots)
                if isinstance(answer, Exception):
                    raise answer
                return answer.encode()

            def run(self, argv, **_):
                outer.ran.append(argv)
                return Completed(outer.status, "", "Access denied")

        monkeypatch.setattr(hosts, "Session", Session)
        monkeypatch.setattr(hosts, "PAUSE_S", 0)
        monkeypatch.setattr(hosts, "Tree", lambda: SimpleNamespace(text=lambda _name: controller))

    @property
    def asked(self):
        return ["systemctl", "--no-wall", "reboot"] in self.ran


TARGET = SimpleNamespace(name="a")


def test_a_host_is_back_when_its_boot_id_is_another(monkeypatch):
    machine = Machine(monkeypatch, "b-1\n", "b-1\n", Unreachable("no route"), "b-2\n")
    assert hosts.reboot(TARGET, 60) == ""
    assert machine.asked
    assert machine.ran[-1] == ["systemctl", "is-system-running", "--wait"]


def test_a_host_that_does_not_come_back_is_unreachable_and_says_why(monkeypatch):
    Machine(monkeypatch, "b-1\n", Unreachable("no route to it"))
    with pytest.raises(Unreachable, match="no route to it"):
        hosts.reboot(TARGET, 0.05)


def test_a_reboot_that_is_not_allowed_is_an_error_at_once(monkeypatch):
    Machine(monkeypatch, "b-1\n", status=1)
    with pytest.raises(BigironError, match="Access denied"):
        hosts.reboot(TARGET, 60)


def test_what_shares_the_controllers_kernel_is_not_rebooted(monkeypatch):
    machine = Machine(monkeypatch, "c-1\n")
    assert "same boot id" in hosts.reboot(TARGET, 60)
    assert not machine.asked
