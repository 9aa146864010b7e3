"""Where llama.cpp's source comes from: what pins it, mirrors in order, and every way in which it is not what was asked for."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from bigiron.errors import BigironError, Refused, UsageError
from bigiron.fleet import pinning
from bigiron.onhost import build
from bigiron.onhost.compile import Request
from bigiron.onhost.source import Source, is_full, no_room, unpacked
from bigiron.parts.planner import plan_hosts
from bigiron.plan import sources, wishes
from fixtures.hostfacts import VARIABLES, fact

OURS = 'project("llama.cpp" C CXX)\n'
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def archive(path: Path, cmake: str = OURS, folder: str = "llama.cpp-b1") -> str:
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo(f"{folder}/CMakeLists.txt")
        member.size = len(cmake)
        tar.addfile(member, io.BytesIO(cmake.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def bring(tmp_path: Path, url: str, *mirrors: str, sha256: str = "0" * 64, subdir: str = "", commit: str = "") -> Path:
    work = tmp_path / "work"
    work.mkdir(parents=True, exist_ok=True)
    return unpacked(Source(url, mirrors, sha256, subdir, commit), work, tmp_path / "archives", lambda *_: None)


@pytest.fixture
def repository(tmp_path: Path) -> tuple[str, str, str]:
    """``(url, first commit, second commit)`` of a repository with a tag ``b2`` and a branch ``main``."""
    folder = tmp_path / "upstream"
    folder.mkdir()

    def git(*words: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
        return subprocess.run(
            ["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    commits = []
    for text in ("one", "two"):
        (folder / "CMakeLists.txt").write_text(OURS)
        (folder / "which").write_text(text)
        git("add", ".")
        git("commit", "--quiet", "-m", text)
        commits.append(git("rev-parse", "HEAD"))
    git("tag", "-a", "b2", "-m", "b2")
    return f"git+file://{folder}", commits[0], commits[1]


def test_an_archive_is_unpacked_and_kept_for_the_next_build(tmp_path: Path) -> None:
    digest = archive(tmp_path / "a b.tar")
    folder = bring(tmp_path, f"file://{tmp_path}/a%20b.tar", sha256=digest)
    assert folder.name == "llama.cpp-b1"
    assert (tmp_path / "archives" / digest).is_file()
    (tmp_path / "work" / "src").rename(tmp_path / "gone")
    assert bring(tmp_path, "file:///nowhere.tar", sha256=digest).is_dir()


def test_an_archive_with_another_sum_is_refused_and_left_where_it_is(tmp_path: Path) -> None:
    digest = archive(tmp_path / "x.tar")
    with pytest.raises(BigironError, match=f"SHA-256 is {digest}, expected {'0' * 64}"):
        bring(tmp_path, f"file://{tmp_path}/x.tar")
    assert (tmp_path / "x.tar").exists()


def test_mirrors_are_tried_in_order_and_all_answers_are_told(tmp_path: Path) -> None:
    digest = archive(tmp_path / "good.tar")
    archive(tmp_path / "bad.tar", folder="other")
    addresses = [f"file://{tmp_path}/{name}.tar" for name in ("none", "bad", "good")]
    assert bring(tmp_path, *addresses, sha256=digest).is_dir()
    with pytest.raises(
        BigironError, match=r"none of 2 addresses has the source: .*none.tar: .*not on this host; .*bad.tar: wrong content"
    ):
        bring(tmp_path / "other", *addresses[:2], sha256="1" * 64)


@pytest.mark.parametrize(
    ("cmake", "subdir", "says"),
    [
        ("project(whisper.cpp)\n", "", "is not llama.cpp: its CMakeLists.txt is of project whisper.cpp"),
        ("message(hello)\n", "", "is not llama.cpp: its CMakeLists.txt is of project .none."),
        (OURS, "elsewhere", "has no elsewhere/CMakeLists.txt"),
    ],
)
def test_an_archive_that_is_not_llama_cpp_is_refused_before_anything_is_compiled(
    tmp_path: Path, cmake: str, subdir: str, says: str
) -> None:
    digest = archive(tmp_path / "x.tar", cmake)
    with pytest.raises(BigironError, match=says):
        bring(tmp_path, f"file://{tmp_path}/x.tar", sha256=digest, subdir=subdir)


def test_exactly_the_commit_of_a_repository_is_built_from(tmp_path: Path, repository: tuple[str, str, str]) -> None:
    url, first, _ = repository
    folder = bring(tmp_path, url, commit=first)
    assert (folder / "which").read_text() == "one"
    assert not (folder / ".git").exists()  # a shallow history would give a wrong build number
    assert list((tmp_path / "archives").iterdir()) == []


def test_a_commit_that_does_not_exist_is_named_with_its_repository(tmp_path: Path, repository: tuple[str, str, str]) -> None:
    with pytest.raises(BigironError, match=f"commit {COMMIT} does not exist there") as caught:
        bring(tmp_path, repository[0], commit=COMMIT)
    assert caught.value.where == repository[0].removeprefix("git+")


def test_a_mirror_of_a_repository_serves_when_the_first_is_away(tmp_path: Path, repository: tuple[str, str, str]) -> None:
    url, _, second = repository
    assert (bring(tmp_path, f"git+file://{tmp_path}/away", url, commit=second) / "which").read_text() == "two"


@pytest.mark.parametrize("commit", ["main", "b2", "0123abc", ""])
def test_a_branch_a_tag_or_half_a_commit_is_refused_on_the_host_too(tmp_path: Path, commit: str) -> None:
    wanted = Request(
        str(tmp_path),
        str(tmp_path),
        "a" * 16,
        {},
        "root",
        source_url="git+https://h/x",
        commit=commit,
        targets=("llama-server",),
    )
    with pytest.raises(Refused, match="no full commit"):
        build.ensure(wanted, lambda *_: None)


def test_a_full_disk_is_told_as_one() -> None:
    told = no_room(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x"), Path("/y"))
    assert (told.what, told.where) == ("the disk is full", "/y")
    assert no_room(OSError(errno.EIO, "broken", "/x"), Path("/y")).what == "broken"


@pytest.mark.parametrize(
    ("bavail", "files", "favail", "full"),
    [(10, 9, 9, True), (1 << 20, 100, 3, True), (1 << 20, 0, 0, False), (1 << 20, 99, 50, False)],
)
def test_a_file_system_without_room_or_without_files_left_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bavail: int, files: int, favail: int, full: bool
) -> None:
    answer = type("Statvfs", (), {"f_bavail": bavail, "f_frsize": 4096, "f_files": files, "f_favail": favail})()
    monkeypatch.setattr(os, "statvfs", lambda _path: answer)
    assert is_full(tmp_path) is full


# --- what a person writes ------------------------------------------------------------------------------

GIT = {**VARIABLES, "llama_cpp_source_url": "git+https://h/llama.cpp", "llama_cpp_commit": COMMIT}
del GIT["llama_cpp_source_sha256"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"llama_cpp_commit": "master"}, "llama_cpp_commit is master, which moves"),
        ({"llama_cpp_commit": "b11434"}, "llama_cpp_commit is b11434, which moves"),
        ({"llama_cpp_source_sha256": "a" * 64}, "is of an archive, and the source is a git repository"),
        ({"llama_cpp_source_url": "https://h/x.tar.gz"}, "llama_cpp_source_sha256 is not set"),
        ({"llama_cpp_source_mirrors": ["https://h/x.tar.gz"]}, "holds https://h/x.tar.gz, which is no git repository"),
        ({"llama_cpp_source_url": "/home/me/llama.cpp", "llama_cpp_floating": True}, "for a git repository only"),
        (
            {"llama_cpp_source_url": "/home/me/llama.cpp", "llama_cpp_source_mirrors": ["git+https://h/x"]},
            "no meaning for a folder",
        ),
        ({"llama_cpp_source_url": "svn://h/x"}, "llama_cpp_source_url is"),
    ],
)
def test_a_source_that_is_not_pinned_is_refused_before_any_connection(change: dict[str, object], says: str) -> None:
    wishes.read("h", GIT)
    with pytest.raises(UsageError, match=says):
        wishes.read("h", {**GIT, **change})


def test_floating_is_allowed_only_when_it_is_said() -> None:
    assert wishes.read("h", {**GIT, "llama_cpp_commit": "master", "llama_cpp_floating": True})["llama_cpp_floating"] is True


def test_the_source_names_itself_in_the_identity_and_brings_git_only_where_it_is_needed() -> None:
    by_archive, by_git = (plan_hosts([fact(**changes)], [])["a"] for changes in ({}, {**GIT, "llama_cpp_source_sha256": ""}))
    assert by_archive.release.identity.to_json()["source_sha256"] == "a" * 64
    identity = by_git.release.identity.to_json()
    assert identity["source_commit"] == COMMIT
    assert "source_sha256" not in identity
    packages = [[one.name for one in plan.planned.resources if one.kind == "package"] for plan in (by_archive, by_git)]
    assert ["git" in names for names in packages] == [False, True]


# --- pinned on the controller --------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/bigiron/sources"


def tree(folder: Path) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text(OURS)
    (folder / "src/a.cpp").write_text("int a;\n")
    return folder


def test_a_folder_is_packed_by_content_alone(tmp_path: Path, cache: Path) -> None:
    first = pinning.pack(tree(tmp_path / "one"))
    second = tree(tmp_path / "two")
    os.utime(second / "src/a.cpp", (1, 1))
    assert pinning.pack(second) == first
    (second / "src/a.cpp").write_text("int b;\n")
    assert pinning.pack(second)[1] != first[1]
    assert hashlib.sha256(first[0].read_bytes()).hexdigest() == first[1]
    work = tmp_path / "work"
    work.mkdir()
    assert (
        unpacked(Source(f"file://{first[0]}", (), first[1], "", ""), work, tmp_path / "a", lambda *_: None) / "src/a.cpp"
    ).is_file()


def test_an_unchanged_folder_is_not_packed_twice(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tree(tmp_path / "one")
    first = pinning.pack(folder)
    monkeypatch.setattr(pinning, "_pack", lambda *_: pytest.fail("packed again"))
    assert pinning.pack(folder) == first


def test_of_a_work_tree_only_what_git_would_commit_is_packed(tmp_path: Path, cache: Path) -> None:
    folder = tree(tmp_path / "one")
    plain = pinning.pack(folder)[1]
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    (folder / "build").mkdir()
    (folder / "build/x.o").write_text("x")
    (folder / ".git/info/exclude").write_text("build/\n")
    assert pinning.pack(folder)[1] == plain


@pytest.mark.parametrize(("make", "says"), [(False, "is no folder"), (True, "has no CMakeLists.txt")])
def test_a_folder_that_is_no_source_is_refused(tmp_path: Path, make: bool, says: str) -> None:
    if make:
        (tmp_path / "x").mkdir()
    with pytest.raises(Refused, match=says):
        pinning.pack(tmp_path / "x")


def test_a_packed_folder_goes_to_the_role_of_the_host_that_builds(tmp_path: Path, cache: Path) -> None:
    variables = {**VARIABLES, "llama_cpp_source_url": str(tree(tmp_path / "one"))}
    del variables["llama_cpp_source_sha256"]
    wish = pinning.pinned(wishes.read("a", variables))
    one = fact()
    plan = plan_hosts([type(one)(**{**vars(one), "wish": wish})], [])["a"]
    archive, digest = pinning.pack(tmp_path / "one")
    assert plan.variables["llama_cpp_source_packed"] == str(archive)
    assert plan.variables["llama_cpp_source_sha256"] == digest == plan.release.identity.to_json()["source_sha256"]


def test_a_floating_name_is_the_commit_of_today(repository: tuple[str, str, str]) -> None:
    url, _, second = repository
    wish = wishes.read("a", {**GIT, "llama_cpp_source_url": url, "llama_cpp_commit": "b2", "llama_cpp_floating": True})
    assert pinning.pinned(wish)["llama_cpp_commit"] == second  # the commit, not the tag object
    assert pinning.resolve((url,), "main") == second
    with pytest.raises(Refused, match="no branch or tag b3"):
        pinning.resolve((url,), "b3")


def test_a_pinned_source_is_left_alone() -> None:
    wish = wishes.read("a", GIT)
    assert pinning.pinned(wish) is wish
    assert sources.read(wish).kind == sources.GIT
