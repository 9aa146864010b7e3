"""Packages: what apt says, what is recorded, what may go again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bigiron.errors import BigironError
from bigiron.onhost import apt as apt_module
from bigiron.onhost import packages

SIMULATED = """Reading package lists...
Inst libgomp1 [12.1] (12.2.0-14 Debian:12 [amd64])
Inst g++-12 (12.2.0-14+deb12u1 Debian:12.13/oldstable [amd64]) []
Inst libc6:i386 (2.36 Debian:12 [i386])
Conf g++-12 (12.2.0-14 Debian:12 [amd64])
"""


class Apt:
    """Answers by the first matching word; records what was asked."""

    def __init__(self, have: dict[str, str], answers: dict[str, list[tuple[int, str, str]]]) -> None:
        self.have = have
        self.answers = answers
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        self.asked.append(argv)
        if argv[0] == "dpkg-query":
            return subprocess.CompletedProcess(argv, 0, "".join(f"ii \t{n}\t{v}\n" for n, v in self.have.items()), "")
        word = next(word for word in ("-s", "update", "install", "purge") if word in argv)
        queue = self.answers[word]
        code, out, err = queue.pop(0) if len(queue) > 1 else queue[0]
        if word == "install" and code == 0:
            self.have |= {name.partition("=")[0]: "1" for name in argv[argv.index("--no-install-recommends") + 1 :]}
        return subprocess.CompletedProcess(argv, code, out, err)

    def verbs(self) -> list[str]:
        return [
            word
            for argv in self.asked
            for word in ("-s", "update", "install", "purge")
            if word in argv and argv[0] == "apt-get"
        ]


def test_only_new_packages_are_new() -> None:
    assert packages.simulated(SIMULATED) == {"g++-12": "12.2.0-14+deb12u1", "libc6": "2.36"}
    assert packages.simulated("Remv vim [2:9.0]\nPurg nano [7]\n", "Remv") == {"vim": ""}


def test_half_installed_package_is_missing() -> None:
    rows = "ii \ta\t1\nrc \tb\t1\niU \tc\t1\nhi \td\t1\n"
    have = packages.installed(lambda argv: subprocess.CompletedProcess(argv, 0, rows, ""))
    assert packages.missing(["a", "b", "d", "a=2"], have) == ["b", "a=2"]


def test_nothing_missing_asks_apt_nothing(tmp_path: Path) -> None:
    apt = Apt({"g++": "1"}, {})
    assert not packages.ensure(["g++"], record=tmp_path / "r.json", runner=apt)["changed"]
    assert apt.verbs() == []
    assert not (tmp_path / "r.json").exists()


def test_lists_are_updated_only_when_they_do_not_know_the_package(tmp_path: Path) -> None:
    record = tmp_path / "r.json"
    known = Apt({}, {"-s": [(0, SIMULATED, "")], "install": [(0, "", "")]})
    assert not packages.ensure(["g++"], record=record, runner=known)["updated_lists"]
    assert "update" not in known.verbs()
    virgin = Apt(
        {},
        {
            "-s": [(100, "", "E: Unable to locate package g++"), (0, SIMULATED, "")],
            "update": [(0, "", "")],
            "install": [(0, "", "")],
        },
    )
    assert packages.ensure(["g++"], record=record, runner=virgin)["updated_lists"]


def test_record_is_written_before_apt_starts_and_adds_up(tmp_path: Path) -> None:
    record = tmp_path / "r.json"
    record.write_text(json.dumps({"installed_packages": ["cmake"]}))
    killed = Apt({}, {"-s": [(0, SIMULATED, "")], "install": [(100, "", "E: dpkg was interrupted")]})
    with pytest.raises(BigironError, match="dpkg was interrupted"):
        packages.ensure(["g++"], record=record, runner=killed)
    assert packages.recorded(record) == ["cmake", "g++-12", "libc6"]


def test_unknown_package_is_named_and_nothing_is_recorded(tmp_path: Path) -> None:
    apt = Apt({}, {"-s": [(100, "", "E: Unable to locate package nosuch")], "update": [(0, "", "")]})
    with pytest.raises(BigironError, match="nosuch"):
        packages.ensure(["nosuch"], record=tmp_path / "r.json", runner=apt)
    assert not (tmp_path / "r.json").exists()


def test_lists_older_than_the_archive_are_fetched_once(tmp_path: Path) -> None:
    stale = (100, "", "E: Failed to fetch http://x/g++.deb  404  Not Found")
    apt = Apt({}, {"-s": [(0, SIMULATED, "")], "install": [stale, (0, "", "")], "update": [(0, "", "")]})
    assert packages.ensure(["g++"], record=tmp_path / "r.json", runner=apt)["updated_lists"]
    assert apt.verbs().count("update") == 1


def test_lock_that_is_not_given_up_names_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = (100, "", "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (unattended-upgr)\n")
    monkeypatch.setattr(apt_module, "holder", lambda _lock: "unattended-upgr (pid 7)")
    apt = Apt({}, {"-s": [(0, SIMULATED, "")], "install": [locked]})
    with pytest.raises(BigironError, match=r"unattended-upgr \(pid 7\)") as caught:
        packages.ensure(["g++"], record=tmp_path / "r.json", lock_timeout_s=0, runner=apt)
    assert caught.value.where == "/var/lib/dpkg/lock-frontend"


def test_lock_that_is_given_up_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(apt_module.time, "sleep", waits.append)
    locked = (100, "", "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)\n")
    apt = Apt({}, {"-s": [(0, SIMULATED, "")], "install": [locked, locked, (0, "", "")]})
    assert packages.ensure(["g++"], record=tmp_path / "r.json", runner=apt)["changed"]
    assert len(waits) == 2


class Dpkg(Apt):
    """A host whose packages have dpkg's states; apt-mark and dpkg --configure work, unless ``stuck``."""

    def __init__(
        self, rows: dict[str, tuple[str, str]], answers: dict[str, list[tuple[int, str, str]]], *, stuck: str = ""
    ) -> None:
        super().__init__({}, answers)
        self.rows = rows
        self.stuck = stuck

    def __call__(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        if argv[0] == "dpkg-query":
            self.asked.append(argv)
            return subprocess.CompletedProcess(argv, 0, "".join(f"{s} \t{n}\t{v}\n" for n, (s, v) in self.rows.items()), "")
        if argv[0] == "apt-mark":
            self.asked.append(argv)
            for name in argv[2:]:
                self.rows[name] = ({"hold": "h", "unhold": "i"}[argv[1]] + self.rows[name][0][1], self.rows[name][1])
            return subprocess.CompletedProcess(argv, 0, "", "")
        if argv[:2] == ["dpkg", "--configure"]:
            self.asked.append(argv)
            if not self.stuck:
                self.rows = {name: (state.replace("F", "i"), version) for name, (state, version) in self.rows.items()}
            return subprocess.CompletedProcess(argv, int(bool(self.stuck)), "", self.stuck)
        done = super().__call__(argv)
        if "install" in argv and "-s" not in argv and done.returncode == 0:
            for item in argv[argv.index("--allow-downgrades") + 1 :]:
                name, _, version = item.partition("=")
                assert self.rows.get(name, ("in", ""))[0][0] != "h", f"apt refuses to change {name}, which is held"
                self.rows[name] = ("ii", version)
        return done


OK = {"-s": [(0, "Inst drv (1.1 x [all])\n", "")], "install": [(0, "", "")], "purge": [(0, "Purg drv [1]\n", "")]}


def test_a_held_package_in_another_version_is_let_go_changed_and_held_again(tmp_path: Path) -> None:
    host = Dpkg({"drv": ("hi", "1.0"), "theirs": ("hi", "1")}, OK)
    options = {"hold": ["drv"], "record": tmp_path / "r.json", "runner": host}
    answer = packages.ensure(["drv=1.1"], **options)
    assert (answer["changed"], host.rows["drv"], host.rows["theirs"]) == (True, ("hi", "1.1"), ("hi", "1"))
    assert not packages.ensure(["drv=1.1"], **options)["changed"]


def test_holds_of_ours_go_with_the_plan_and_with_removal_those_of_a_person_stay(tmp_path: Path) -> None:
    host = Dpkg({"drv": ("ii", "1.0"), "lib": ("ii", "1.0"), "theirs": ("hi", "1")}, OK)
    options = {"record": tmp_path / "r.json", "runner": host}
    assert packages.ensure([], hold=["drv", "lib"], **options)["held"] == ["drv", "lib"]
    assert not packages.ensure([], **options)["changed"]  # another role's call looks at no hold
    assert packages.ensure([], hold=["drv"], **options)["unheld"] == ["lib"]
    assert packages.remove(**options)["changed"]
    assert {name: state for name, (state, _) in host.rows.items()} == {"drv": "ii", "lib": "ii", "theirs": "hi"}


def test_what_we_brought_and_a_person_holds_stays_and_says_why(tmp_path: Path) -> None:
    host = Dpkg({"drv": ("hi", "1.0")}, OK)
    (tmp_path / "r.json").write_text(json.dumps({"installed_packages": ["drv"]}))
    answer = packages.remove(record=tmp_path / "r.json", runner=host)
    assert (answer["removed"], answer["kept"][0]["name"]) == ([], "drv")
    assert "purge" not in host.verbs()


def test_a_hold_on_what_was_not_there_is_ours_once_it_is(tmp_path: Path) -> None:
    host = Dpkg({"drv": ("hn", "")}, OK)
    packages.ensure(["drv=1.1"], hold=["drv"], record=tmp_path / "r.json", runner=host)
    assert host.rows["drv"] == ("hi", "1.1")
    assert packages.recorded(tmp_path / "r.json", "held_packages") == ["drv"]


def test_a_hold_in_check_mode_holds_nothing(tmp_path: Path) -> None:
    host = Dpkg({"drv": ("ii", "1.0")}, OK)
    assert packages.ensure(["drv"], hold=["drv"], check=True, record=tmp_path / "r.json", runner=host)["changed"]
    assert host.rows["drv"][0] == "ii"


def test_what_is_half_configured_is_finished_first(tmp_path: Path) -> None:
    host = Dpkg({"drv": ("iF", "1.0")}, {})
    assert packages.ensure(["drv"], record=tmp_path / "r.json", runner=host)["changed"]
    assert host.verbs() == []


def test_what_cannot_be_finished_is_named_with_its_log(tmp_path: Path) -> None:
    said = "Consult /var/lib/dkms/drv/1.0/build/make.log for more information.\nsubprocess returned error exit status 10\n"
    host = Dpkg({"drv": ("iF", "1.0")}, {}, stuck=said)
    with pytest.raises(BigironError, match=r"drv is half configured after dpkg --configure -a .*exit status 10") as caught:
        packages.ensure(["other"], record=tmp_path / "r.json", runner=host)
    assert caught.value.where == "/var/lib/dkms/drv/1.0/build/make.log"


def test_dpkg_that_is_locked_out_is_waited_for_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt_module, "holder", lambda lock: f"{lock} by unattended-upgr (pid 7)")
    stuck = "dpkg: error: dpkg frontend lock was locked by another process with pid 7\n"
    host = Dpkg({"drv": ("iF", "1.0")}, {}, stuck=stuck)
    with pytest.raises(BigironError, match=r"lock-frontend by unattended-upgr \(pid 7\)"):
        packages.ensure(["drv"], record=tmp_path / "r.json", lock_timeout_s=0, runner=host)


def test_holder_of_a_lock_is_found_by_inode(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    line = f"1: POSIX  ADVISORY  WRITE 999999999 00:1f:{lock.stat().st_ino} 0 EOF\n"
    assert apt_module.holder(str(lock), line) == "pid 999999999"
    assert apt_module.holder(str(lock), line.replace("WRITE", "READ")) == ""
    assert apt_module.holder(str(tmp_path / "gone"), line) == ""


class Purge:
    """A host where removing ``lib`` would take a person's ``tool`` along."""

    def __init__(self, have: list[str], drags: dict[str, list[str]]) -> None:
        self.have, self.drags, self.purged = have, drags, [""]

    def __call__(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        if argv[0] == "dpkg-query":
            return subprocess.CompletedProcess(argv, 0, "".join(f"ii \t{name}\t1\n" for name in self.have), "")
        names = argv[argv.index("purge") + 1 :]
        if "-s" not in argv:
            self.purged = names
            return subprocess.CompletedProcess(argv, 0, "", "")
        gone = [*names, *(other for name in names for other in self.drags.get(name, []))]
        return subprocess.CompletedProcess(argv, 0, "".join(f"Purg {name} [1]\n" for name in gone), "")


def test_removal_takes_the_recorded_and_keeps_what_others_need(tmp_path: Path) -> None:
    record = tmp_path / "r.json"
    record.write_text(json.dumps({"installed_packages": ["cmake", "g++", "lib", "removed-since"]}))
    apt = Purge(["cmake", "g++", "lib", "tool", "vim"], {"lib": ["tool"]})
    answer = packages.remove(record=record, runner=apt)
    assert answer["removed"] == apt.purged == ["cmake", "g++"]
    assert answer["kept"] == [{"name": "lib", "because": "removing it would also remove tool"}]
    assert not record.exists()
    assert not packages.remove(record=record, runner=apt)["changed"]


def test_removal_in_check_mode_touches_nothing(tmp_path: Path) -> None:
    record = tmp_path / "r.json"
    record.write_text(json.dumps({"installed_packages": ["cmake"]}))
    apt = Purge(["cmake"], {})
    assert packages.remove(record=record, check=True, runner=apt)["removed"] == ["cmake"]
    assert apt.purged == [""]
    assert record.exists()


def test_unreadable_record_is_an_error_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{")
    with pytest.raises(BigironError, match="not readable"):
        packages.recorded(tmp_path / "r.json")
