"""Role llama_cpp with a small project in the place of llama.cpp: the same cmake, ninja, libraries, proofs and renames."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from bigiron.onhost import release

pytestmark = pytest.mark.lab

CMAKE = """cmake_minimum_required(VERSION 3.14)
project("llama.cpp" CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_library(stub SHARED lib.cpp)
add_executable(llama-server main.cpp)
target_link_libraries(llama-server PRIVATE stub)
target_compile_definitions(llama-server PRIVATE SPEED=${STUB_SPEED})
"""


def archive(main: str = 'int main(int, char **) { return say("version: 1"); }', lib: str = "", cmake: str = CMAKE) -> bytes:
    """A source archive like llama.cpp's: a program with a library of its own, in a folder."""
    source = {
        "CMakeLists.txt": cmake,
        "lib.cpp": lib or '#include <cstdio>\nint say(const char *text) { std::puts(text); return 0; }\n',
        "main.cpp": f"int say(const char *);\n{main}\n",
    }  # fmt: skip
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in source.items():
            member = tarfile.TarInfo(f"stub-1/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


ILL = "int main(int, char **) { __builtin_trap(); }"


def wanted(files, content=None, **more):
    digest = files.put("stub.tar.gz", content or archive())
    return {
        "llama_cpp_source_url": f"{files.url}/stub.tar.gz",
        "llama_cpp_source_sha256": digest,
        "llama_cpp_source_subdir": "stub-1",
        "llama_cpp_options": {"CMAKE_BUILD_TYPE": "Release", "STUB_SPEED": "1"},
        "llama_cpp_targets": ["llama-server"],
        # the lab's own values are for the real llama.cpp
        "llama_cpp_build_number": 0,
        "llama_cpp_commit": "",
        "llama_cpp_ccache_dir": "",
        **more,
    }


@pytest.fixture(scope="module")
def builder(role_host):
    """The host with user and compiler, nothing else."""
    role_host.teardown()
    done = role_host.run("base", base_packages=["g++", "cmake", "ninja-build"])
    assert done.code == 0, done
    return role_host


def unpacked(archive, folder):
    folder.mkdir()
    release.unpack(archive, folder)
    return folder


def current(host):
    return host.sh("readlink /opt/bigiron/current", check=False).strip()


def test_builds_proves_and_then_changes_nothing(builder, files, tmp_path):
    before = builder.tree()
    variables = wanted(files, llama_cpp_fetch_to=f"{tmp_path}/")
    predicted = builder.run("llama_cpp", check=True, **variables)
    assert (predicted.code, predicted.changed) == (0, ["Make the release current"]), predicted
    assert builder.tree() == before

    builder.converge("llama_cpp", **variables)
    made = current(builder)
    assert (
        builder.sh("cd /tmp && env -i /sbin/runuser -u llama -- /opt/bigiron/current/bin/llama-server").strip() == "version: 1"
    )
    assert builder.sh("ls /opt/bigiron/current/lib /var/cache/bigiron/build").split() == [
        "/opt/bigiron/current/lib:",
        "libstub.so",
        "/var/cache/bigiron/build:",
    ]
    manifest = json.loads(builder.sh("cat /opt/bigiron/current/manifest.json"))
    assert manifest["identity"]["compiler"].startswith("g++ ")
    assert set(manifest["files"]) == {"bin/llama-server", "lib/libstub.so"}

    # what was brought back installs on a host that has never seen a compiler, and is the same
    mark = made.rsplit("/", 1)[-1]
    packed = tmp_path / f"{mark}.tar.gz"
    assert json.loads((tmp_path / f"{mark}.json").read_text()) == manifest
    builder.sh("rm -rf /opt/bigiron /var/cache/bigiron")
    installed = builder.converge(
        "llama_cpp", llama_cpp_fingerprint=mark, llama_cpp_archive=str(packed),
        llama_cpp_archive_sha256=hashlib.sha256(packed.read_bytes()).hexdigest(),
    )  # fmt: skip
    assert "Archive | Copy the packed release" in installed.changed
    assert json.loads(builder.sh("cat /opt/bigiron/current/manifest.json")) == manifest

    # the same, built where the C library is newer
    newer = unpacked(packed, tmp_path / "newer")
    release.write_manifest(newer, mark, {**manifest["identity"], "libc": "glibc 9.99"}, {})
    digest = release.pack(newer, tmp_path / "newer.tar.gz")
    builder.sh("rm -rf /opt/bigiron /var/cache/bigiron")
    refused = builder.run(
        "llama_cpp",
        llama_cpp_fingerprint=mark,
        llama_cpp_archive=str(tmp_path / "newer.tar.gz"),
        llama_cpp_archive_sha256=digest,
    )
    assert "linked against glibc 9.99, which is newer than this machine's C library (glibc " in refused.failed[-1], refused
    assert builder.sh("ls /opt/bigiron/current /opt/bigiron/releases/*", check=False) == ""
    builder.converge("llama_cpp", **variables)

    assert builder.removes("llama_cpp").changed == ["Remove | Delete the releases, their sources and build trees"]
    assert builder.sh("ls -d /opt/bigiron /var/cache/bigiron 2>/dev/null", check=False) == ""


def test_other_options_make_another_release_and_the_previous_one_stays(builder, files):
    variables = wanted(files)
    builder.run("llama_cpp", **variables)
    first = current(builder)
    for speed in ("2", "3"):
        changed = builder.run("llama_cpp", **{**variables, "llama_cpp_extra_options": {"STUB_SPEED": speed}})
        assert changed.changed == ["Make the release current"], changed
    assert current(builder) != first
    assert len(builder.sh("ls /opt/bigiron/releases").split()) == 2
    assert first not in builder.sh("readlink /opt/bigiron/previous")


@pytest.fixture
def repository(builder):
    """``(url, commit)`` of a git repository on the host itself, with the small project in it."""
    done = builder.run("base", base_packages=["git"])
    assert done.code == 0, done
    # the small project has no use for the commit that is compiled in, and an option without effect is a failure
    project = archive(cmake=CMAKE + "message(STATUS ${LLAMA_BUILD_COMMIT})\n")
    with tarfile.open(fileobj=io.BytesIO(project)) as tar:
        text = {Path(one.name).name: tar.extractfile(one).read().decode() for one in tar}
    files = "".join(f"cat >{name} <<'END'\n{content}\nEND\n" for name, content in text.items())
    git = "git -c user.name=t -c user.email=t@example.org"
    builder.sh(
        f"rm -rf /srv/up; mkdir -p /srv/up; cd /srv/up; git init --quiet\n{files}{git} add .; {git} commit --quiet -m one"
    )
    yield "git+file:///srv/up", builder.sh("git -C /srv/up rev-parse HEAD").strip()
    builder.sh("rm -rf /srv/up")


def test_a_commit_of_a_repository_is_built_by_way_of_its_second_address(builder, files, repository):
    url, commit = repository
    git = {
        "llama_cpp_source_url": "git+file:///srv/away", "llama_cpp_source_mirrors": [url], "llama_cpp_source_sha256": "",
        "llama_cpp_source_subdir": "", "llama_cpp_commit": commit, "llama_cpp_options": {"CMAKE_BUILD_TYPE": "Release", "STUB_SPEED": "4"},
    }  # fmt: skip
    builder.converge("llama_cpp", **wanted(files, **git))
    identity = json.loads(builder.sh("cat /opt/bigiron/current/manifest.json"))["identity"]
    assert identity["source_commit"] == commit
    assert "source_sha256" not in identity
    before = current(builder)
    failed = builder.run("llama_cpp", **wanted(files, **{**git, "llama_cpp_commit": "0" * 40}))
    assert failed.code != 0
    assert f"{url}: commit {'0' * 40} does not exist there" in failed.failed[-1], failed
    assert current(builder) == before


def test_a_packed_folder_of_the_controller_is_built(builder, files, tmp_path):
    content = archive(lib='#include <cstdio>\nint say(const char *text) { std::puts("local"); return 0; }\n')
    (tmp_path / "tree.tar.gz").write_bytes(content)
    local = {"llama_cpp_source_url": "", "llama_cpp_source_packed": str(tmp_path / "tree.tar.gz")}
    done = builder.converge("llama_cpp", **wanted(files, content, **local))
    assert "Source | Copy the packed source" in done.changed
    assert builder.sh("/opt/bigiron/current/bin/llama-server").strip() == "local"


@pytest.mark.parametrize("inodes", [4, 14, 40])
def test_a_disk_that_fills_up_during_a_build_is_named_and_the_next_run_carries_on(builder, files, inodes):
    """A file system that has no more room for files, so that unpacking, configuring or compiling meets the real error."""
    assert builder.run("llama_cpp", **wanted(files)).code == 0
    before = current(builder)
    content = archive(lib=f"// {inodes}\n" + "#include <cstdio>\nint say(const char *text) { std::puts(text); return 0; }\n")
    options = {"llama_cpp_options": {"CMAKE_BUILD_TYPE": "Release", "STUB_SPEED": str(inodes)}}
    builder.sh(f"mkdir -p /var/cache/bigiron; mount -t tmpfs -o size=3G,nr_inodes={inodes},mode=755 none /var/cache/bigiron")
    try:
        failed = builder.run("llama_cpp", **wanted(files, content, **options))
        assert failed.code != 0
        assert "the disk is full" in failed.failed[-1], failed
        assert "make room" in failed.failed[-1], failed
        assert current(builder) == before
        builder.sh("mount -o remount,nr_inodes=10000 /var/cache/bigiron")
        assert builder.run("llama_cpp", **wanted(files, content, **options)).code == 0
    finally:
        builder.sh("umount /var/cache/bigiron")


UNUSED = {"llama_cpp_extra_options": {"GGML_RENAMED": "ON"}}


@pytest.mark.parametrize(
    ("content", "more", "says"),
    [
        pytest.param(b"no archive", {"llama_cpp_source_sha256": "0" * 64}, "expected " + "0" * 64, id="wrong sum"),
        pytest.param(archive("syntax error"), {}, "error:", id="does not compile"),
        pytest.param(archive(ILL), {}, "CPU features", id="illegal instruction"),
        pytest.param(archive("int main(int, char **) { return 7; }"), {}, "exit code 7", id="exit code"),
        pytest.param(None, UNUSED, "without effect in this llama.cpp: GGML_RENAMED", id="unused option"),
        pytest.param(None, {"llama_cpp_targets": ["llama-server", "llama-none"]}, "llama-none", id="no such target"),
        pytest.param(None, {"llama_cpp_source_url": "file:///srv/none.tar"}, "is not on this host", id="no such archive"),
        pytest.param(
            archive(cmake="project(other)"), {}, "is not llama.cpp: its CMakeLists.txt is of project other", id="not llama.cpp"
        ),
        pytest.param(None, {"llama_cpp_source_subdir": "elsewhere"}, "elsewhere/CMakeLists.txt", id="no such folder"),
        pytest.param(None, {"llama_cpp_user": "nobody-there"}, "nobody-there", id="no such user"),
        pytest.param(None, {"llama_cpp_ccache_dir": "/var/cache/x"}, "not installed: ccache", id="no ccache"),
    ],
)
def test_failure_says_why_and_leaves_the_host_as_it_was(builder, files, content, more, says):
    assert builder.run("llama_cpp", **wanted(files)).code == 0
    before = builder.sh("find /opt/bigiron -printf '%p %l %s\\n' | sort")
    # other options, so that the release that stands there is not the one that is asked for
    options = {"llama_cpp_options": {"CMAKE_BUILD_TYPE": "Debug", "STUB_SPEED": "5"}}
    failed = builder.run("llama_cpp", **wanted(files, content, **{**options, **more}))
    assert failed.code != 0
    assert says in failed.failed[-1], failed
    assert builder.sh("find /opt/bigiron -printf '%p %l %s\\n' | sort") == before


def test_remove_refuses_a_folder_that_is_not_ours(builder):
    refused = builder.run("llama_cpp", entry="remove", llama_cpp_prefix="/usr/local")
    assert refused.code != 0
    assert "/usr/local has no 'bigiron' in its last part" in refused.failed[-1]
    assert builder.sh("ls -d /usr/local") == "/usr/local\n"
