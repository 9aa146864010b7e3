"""Releases: made, installed, proved, taken into use and pruned, without a compiler."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
from pathlib import Path

import pytest

from bigiron.errors import BigironError, Refused
from bigiron.onhost import build, fit, release
from bigiron.onhost import compile as compiling
from bigiron.onhost.buildlog import configure_problems, explain_failure
from bigiron.onhost.compile import Request, configure_argv, named
from bigiron.onhost.release import Layout
from bigiron.plan.build_options import fingerprint as planned_fingerprint

MARK = "0123456789abcdef"
SCRIPT = "#!/bin/sh\ncase $1 in --version) echo 'version: 1 (build 7)' >&2 ;; --help) echo '--load-mode' ;; esac\n"


def request(tmp_path: Path, **more: object) -> Request:
    values = {
        "prefix": str(tmp_path / "opt/bigiron"), "build_root": str(tmp_path / "cache"), "fingerprint": MARK,
        "identity": {"cpu_baseline": []}, "user": "root", **more,
    }  # fmt: skip
    return Request(**values)  # type: ignore[arg-type]


def make_release(folder: Path, mark: str = MARK, program: str = SCRIPT) -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    server = folder / "bin" / "llama-server"
    server.write_text(program)
    server.chmod(0o755)
    release.write_manifest(folder, mark, {"cpu_baseline": []}, {"version": "1"})


def packed(tmp_path: Path, mark: str = MARK, program: str = SCRIPT) -> tuple[str, str]:
    folder = tmp_path / f"made-{mark}"
    make_release(folder, mark, program)
    archive = tmp_path / f"{mark}.tar.gz"
    return str(archive), release.pack(folder, archive)


def install(tmp_path: Path, mark: str = MARK, program: str = SCRIPT, **more: object) -> dict[str, object]:
    archive, digest = packed(tmp_path, mark, program)
    return build.ensure(request(tmp_path, fingerprint=mark, archive=archive, archive_sha256=digest, **more), lambda *_a: None)


@pytest.fixture(autouse=True)
def open_folder(tmp_path: Path) -> None:
    """The service user must be able to walk down to a release."""
    for folder in (tmp_path, *tmp_path.parents):
        if os.access(folder, os.W_OK) and folder != Path("/") and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)


def test_archive_becomes_current_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    first = install(tmp_path)
    layout = Layout(tmp_path / "opt/bigiron")
    assert (first["changed"], first["how"], first["before"]) == (True, "archive", None)
    assert layout.current.readlink() == Path(f"releases/{MARK}")
    second = build.ensure(request(tmp_path, archive=str(tmp_path / f"{MARK}.tar.gz")), lambda *_a: None)
    assert (second["changed"], second["how"]) == (False, "present")
    assert [path.name for path in layout.releases.iterdir()] == [MARK]


def test_check_mode_touches_nothing_even_on_a_virgin_host(tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    answer = build.ensure(request(tmp_path, check=True, source_url="http://x"), lambda *_a: None)
    assert answer["changed"]
    assert sorted(tmp_path.rglob("*")) == before


def test_previous_is_kept_and_older_ones_go(tmp_path: Path) -> None:
    for mark in ("aaaaaaaa", "bbbbbbbb", "cccccccc"):
        install(tmp_path, mark)
    layout = Layout(tmp_path / "opt/bigiron")
    assert (layout.target(layout.current), layout.target(layout.previous)) == ("cccccccc", "bbbbbbbb")
    assert sorted(path.name for path in layout.releases.iterdir()) == ["bbbbbbbb", "cccccccc"]


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("#!/bin/sh\nkill -ILL $$\n", "CPU features"),
        ("#!/bin/sh\necho boom >&2; exit 3\n", "exit code 3.*boom"),
        ("#!/bin/sh\nkill -SEGV $$\n", "signal 11"),
        ("#!/no/such/shell\n", "cannot be run"),
    ],
)
def test_release_that_does_not_run_leaves_the_host_as_it_was(tmp_path: Path, program: str, says: str) -> None:
    install(tmp_path, "goodgood")
    with pytest.raises(BigironError, match=says):
        install(tmp_path, "badbadba", program)
    layout = Layout(tmp_path / "opt/bigiron")
    assert layout.target(layout.current) == "goodgood"
    assert [path.name for path in layout.releases.iterdir()] == ["goodgood"]


def test_proof_sees_a_clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "7")
    program = SCRIPT.replace(
        "#!/bin/sh\n", '#!/bin/sh\n[ -z "$LD_LIBRARY_PATH$LLAMA_ARG_CTX_SIZE" ] && [ "$PWD" = / ] || exit 9\n'
    )
    assert install(tmp_path, program=program)["changed"]


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_proof_runs_as_the_service_user(tmp_path: Path) -> None:
    program = SCRIPT.replace("#!/bin/sh\n", '#!/bin/sh\n[ "$(id -un)" = nobody ] && [ "$(id -G | wc -w)" = 1 ] || exit 9\n')
    assert install(tmp_path, program=program, user="nobody")["changed"]


def test_missing_user_is_named(tmp_path: Path) -> None:
    with pytest.raises(BigironError, match="no-such-user"):
        install(tmp_path, user="no-such-user")


def test_missing_library_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    make_release(folder)
    (folder / "lib/libx.so").write_bytes(b"\x7fELF")
    answers = {"ldd": "\tlibgone.so.1 => not found\n"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            release.subprocess, "run",
            lambda argv, **_k: release.subprocess.CompletedProcess(argv, 0, answers[argv[0]], ""),
        )  # fmt: skip
        with pytest.raises(BigironError, match=r"libgone\.so\.1"):
            release.prove(folder, "root")


def test_library_from_the_build_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    make_release(folder)
    (folder / "lib/libx.so").write_bytes(b"\x7fELF")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            release.subprocess, "run",
            lambda argv, **_k: release.subprocess.CompletedProcess(argv, 0, "\tliby.so => /cache/build/x/liby.so (0x1)\n", ""),
        )  # fmt: skip
        with pytest.raises(BigironError, match="build folder"):
            release.prove(folder, "root", Path("/cache/build/x"))


def test_release_for_another_cpu_is_refused_with_the_missing_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "cpu_flags", lambda: ["avx2", "fma"])
    fit.check({"cpu_baseline": ["avx2"]}, {})
    with pytest.raises(BigironError, match="avx512f"):
        fit.check({"cpu_baseline": ["avx2", "avx512f"]}, {})


@pytest.mark.parametrize(
    ("built", "here", "fits"),
    [
        ("glibc 2.36", "glibc 2.36", True),
        ("glibc 2.36", "glibc 2.41", True),
        ("glibc 2.41", "glibc 2.36", False),
        ("glibc 2.9", "glibc 2.36", True),  # versions are numbers, not text
        ("glibc 3.0", "glibc 2.41", False),
        ("glibc 2.36", "unknown", False),
        ("unknown", "glibc 2.36", True),
        ("", "unknown", True),
    ],
)
def test_a_release_fits_the_glibc_it_was_linked_against_and_newer_ones(built: str, here: str, fits: bool) -> None:
    problems = fit.unfit({"libc": built}, [], here)
    assert problems == [] if fits else built in problems[0] and here in problems[0]


def test_a_packed_release_for_a_newer_glibc_is_refused_before_anything_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "libc_version", lambda: "glibc 2.36")
    monkeypatch.setattr(release, "prove", lambda *_: pytest.fail("it was run"))
    made = tmp_path / "made"
    make_release(made)
    release.write_manifest(made, MARK, {"libc": "glibc 2.41"}, {})
    digest = release.pack(made, tmp_path / "r.tar.gz")
    wanted = request(tmp_path, archive=str(tmp_path / "r.tar.gz"), archive_sha256=digest)
    with pytest.raises(BigironError, match=r"glibc 2\.41.*glibc 2\.36") as caught:
        build.ensure(wanted, lambda *_a: None)
    assert "llama_cpp_archive" in str(caught.value.hint)
    assert list((tmp_path / "opt/bigiron/releases").iterdir()) == []
    assert not (tmp_path / "opt/bigiron/current").is_symlink()


def test_damaged_release_is_noticed_and_replaced(tmp_path: Path) -> None:
    install(tmp_path)
    layout = Layout(tmp_path / "opt/bigiron")
    server = layout.release(MARK) / "bin/llama-server"
    server.write_text(SCRIPT.replace("build 7", "build 8"))
    assert "differs" in release.problems(layout.release(MARK), MARK)[0]
    os.utime(layout.current, (0, 0), follow_symlinks=False)
    again = build.ensure(request(tmp_path, archive=str(tmp_path / f"{MARK}.tar.gz")), lambda *_a: None)
    assert (again["changed"], release.problems(layout.release(MARK), MARK)) == (True, [])
    assert server.read_text() == SCRIPT
    assert (
        layout.current.lstat().st_mtime > 0
    )  # so that a server that runs the damaged files is restarted, by this run or the next


def test_wrong_archive_is_removed_and_both_sums_are_named(tmp_path: Path) -> None:
    archive, digest = packed(tmp_path)
    with pytest.raises(BigironError, match=f"{digest}, expected {'0' * 64}"):
        build.ensure(request(tmp_path, archive=archive, archive_sha256="0" * 64), lambda *_a: None)
    assert not Path(archive).exists()
    assert not (tmp_path / "opt/bigiron/current").exists()


def test_archive_of_another_release_is_refused(tmp_path: Path) -> None:
    archive, digest = packed(tmp_path, "otherone")
    with pytest.raises(BigironError, match="otherone"):
        build.ensure(request(tmp_path, archive=archive, archive_sha256=digest), lambda *_a: None)


def test_packing_depends_on_the_content_only(tmp_path: Path) -> None:
    make_release(tmp_path / "a")
    make_release(tmp_path / "b")
    os.utime(tmp_path / "b/bin/llama-server", (1, 1))
    assert release.pack(tmp_path / "a", tmp_path / "a.tar.gz") == release.pack(tmp_path / "b", tmp_path / "b.tar.gz")


@pytest.mark.parametrize(
    ("name", "link"), [("../evil", ""), ("/evil", ""), ("a/../../evil", ""), ("link", "../../etc"), ("link", "/etc/passwd")]
)
def test_archive_member_that_reaches_outside_is_refused(tmp_path: Path, name: str, link: str) -> None:
    archive = tmp_path / "x.tar"
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo(name)
        if link:
            member.type, member.linkname = tarfile.SYMTYPE, link
        tar.addfile(member, io.BytesIO())
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(BigironError, match="reach outside"):
        release.unpack(archive, folder)
    assert list(folder.iterdir()) == []


def test_device_in_an_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar"
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo("null")
        member.type = tarfile.CHRTYPE
        tar.addfile(member)
    with pytest.raises(BigironError, match="reach outside"):
        release.unpack(archive, tmp_path)


def test_only_the_wanted_folder_is_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("top/llama.cpp/CMakeLists.txt", "top/llama.cpp2/other", "top/rest"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    release.unpack(archive, tmp_path / "out", "top/llama.cpp")
    assert [str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()] == [
        "top/llama.cpp/CMakeLists.txt"
    ]


def test_text_that_is_no_archive_is_told(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("<html>")
    with pytest.raises(BigironError, match="not a readable tar"):
        release.unpack(tmp_path / "x", tmp_path)


# --- building ------------------------------------------------------------------------------------------


def test_cmake_gets_exactly_the_options_the_rpath_and_ccache(tmp_path: Path) -> None:
    wanted = request(tmp_path, options={"GGML_NATIVE": False, "A": "x y"}, build_number=7, commit="b7", ccache_dir="/cc")
    argv = configure_argv(wanted, Path("/s"), Path("/o"))
    assert argv[:7] == ["cmake", "-G", "Ninja", "-S", "/s", "-B", "/o"]
    assert argv[7:] == [
        "-DA=x y", "-DGGML_NATIVE=OFF", "-DLLAMA_BUILD_COMMIT=b7", "-DLLAMA_BUILD_NUMBER=7",
        "-DCMAKE_INSTALL_RPATH=$ORIGIN;$ORIGIN/../lib", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        "-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache",
    ]  # fmt: skip


def test_without_a_cache_folder_ccache_is_neither_asked_nor_used(tmp_path: Path) -> None:
    wanted = request(tmp_path)
    assert not [word for word in configure_argv(wanted, Path("/s"), Path("/o")) if "ccache" in word]
    assert compiling._environment(wanted)["CCACHE_DISABLE"] == "1"


UNUSED = """-- Generating done
CMake Warning:
  Manually-specified variables were not used by the project:

    CMAKE_CUDA_COMPILER_LAUNCHER
    LLAMA_CUBLAS_OLD


-- Build files have been written to: /x
"""


def test_our_option_without_effect_is_a_failure_and_cmakes_own_is_not() -> None:
    assert configure_problems(UNUSED, {"LLAMA_CUBLAS_OLD": "ON"}) == [
        "options without effect in this llama.cpp: LLAMA_CUBLAS_OLD"
    ]
    assert configure_problems(UNUSED, {"GGML_CUDA": "ON"}) == []
    ignored = "CMake Warning at CMakeLists.txt:164 (message):\n  LLAMA_CURL is deprecated and will be ignored\n"
    assert "LLAMA_CURL" in configure_problems(ignored, {"LLAMA_CURL": "ON"})[0]


def test_missing_tls_matters_only_when_it_was_asked_for() -> None:
    log = "CMake Warning at vendor/cpp-httplib/CMakeLists.txt:150 (message):\n  OpenSSL not found, HTTPS support disabled\n"
    assert "libssl-dev" in configure_problems(log, {"LLAMA_OPENSSL": "ON"})[0]
    assert configure_problems(log, {"LLAMA_OPENSSL": "OFF"}) == []


def test_killed_compiler_is_told_as_out_of_memory() -> None:
    what, hint = explain_failure("[3/9] x\nFAILED: a.o\ng++: fatal error: Killed signal terminated program cc1plus\n")
    assert "out of memory" in what
    assert "what was compiled is kept" in hint
    what, _ = explain_failure("FAILED: a.o\na.cpp:1:2: error: expected ';'\n")
    assert what == "a.cpp:1:2: error: expected ';'"
    assert "disk is full" in explain_failure("cc1plus: No space left on device")[0]


def test_fingerprint_made_on_the_host_is_the_planners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compiler", lambda: "g++ 12.2.0")
    identity = {
        "source_sha256": "ab",
        "options": {"B": "1", "A": "2"},
        "compiler": "",
        "libc": "glibc 2.36",
        "cpu_baseline": ["avx"],
    }
    done = named(request(tmp_path, fingerprint="", identity=identity))
    assert done.fingerprint == planned_fingerprint({**identity, "compiler": "g++ 12.2.0"})


def test_without_a_compiler_check_mode_predicts_and_a_real_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compiler", lambda: "")
    assert build.ensure(request(tmp_path, fingerprint="", check=True), lambda *_a: None)["changed"]
    with pytest.raises(BigironError, match=r"g\+\+"):
        build.ensure(request(tmp_path, fingerprint=""), lambda *_a: None)


def test_small_disk_is_refused_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_which", lambda tool: tool)
    monkeypatch.setattr(compiling.shutil, "disk_usage", lambda _p: type("Usage", (), {"free": 1000})())
    wanted = request(tmp_path, source_url="http://127.0.0.1:9/x", source_sha256="0" * 64, targets=("llama-server",))
    with pytest.raises(Refused, match="free"):
        build.ensure(wanted, lambda *_a: None)


def test_missing_tools_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_which", lambda tool: None if tool == "ninja" else tool)
    wanted = request(tmp_path, source_url="http://127.0.0.1:9/x", source_sha256="0" * 64, targets=("llama-server",))
    with pytest.raises(BigironError, match="not installed: ninja"):
        build.ensure(wanted, lambda *_a: None)


def test_backend_that_was_asked_for_and_is_not_there_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "libggml-cpu.so.0").touch()
    compiling._check_backends({"GGML_NATIVE": "ON"}, tmp_path)
    with pytest.raises(BigironError, match="CUDA"):
        compiling._check_backends({"GGML_CUDA": "ON"}, tmp_path)


def test_second_run_waits_for_the_first_and_then_has_nothing_to_do(tmp_path: Path) -> None:
    import fcntl

    archive, digest = packed(tmp_path)
    root = tmp_path / "cache"
    root.mkdir()
    holder = os.open(root / "build.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    steps: list[str] = []
    wanted = request(tmp_path, archive=archive, archive_sha256=digest)
    thread = threading.Thread(target=build.ensure, args=(wanted, lambda step, *_a: steps.append(step)))
    thread.start()
    while not steps:
        thread.join(0.05)
    make_release(Layout(tmp_path / "opt/bigiron").release(MARK))  # what the other run made meanwhile
    os.close(holder)
    thread.join(10)
    assert steps[0].startswith("waiting")
    assert "installing the packed release" not in steps


def test_leftover_of_a_killed_run_is_cleared(tmp_path: Path) -> None:
    leftover = tmp_path / "opt/bigiron/releases/.staging-abc"
    leftover.mkdir(parents=True)
    install(tmp_path)
    assert not leftover.exists()


def test_manifest_records_every_file(tmp_path: Path) -> None:
    make_release(tmp_path / "r")
    manifest = json.loads((tmp_path / "r" / release.MANIFEST).read_text())
    assert list(manifest["files"]) == ["bin/llama-server"]
    assert manifest["files"]["bin/llama-server"]["size"] == len(SCRIPT)


def test_a_release_that_any_link_names_is_not_pruned(tmp_path: Path) -> None:
    layout = release.Layout(tmp_path)
    for name in ("old", "kept", "previous", "current"):
        layout.release(name).mkdir(parents=True)
    for link, name in (("before-llama-server-main.service", "kept"), ("previous", "previous"), ("current", "current")):
        release.point(tmp_path / link, f"releases/{name}")
    assert release.prune(layout) == ["old"]
    assert sorted(path.name for path in layout.releases.iterdir()) == ["current", "kept", "previous"]
