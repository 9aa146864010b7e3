"""One step of llama.cpp: the lines of the inventory that change, and what upstream's flags mean for a planned command line."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bigiron.cli import main
from bigiron.errors import BigironError, Refused, UsageError
from bigiron.fleet import builds, bump, lock
from bigiron.fleet.bump import Step
from bigiron.plan import flags
from bigiron.plan.releases import CachedRelease

HELP = Path(__file__).parents[1] / "fixtures" / "help"
OLD, NEW = (HELP / "llama-server-2025-07.txt").read_text(), (HELP / "llama-server-b11434.txt").read_text()
SUM = "a" * 64
ARCHIVE = f"""\
# how we pin it
llama_cpp_source_url: "https://example.org/refs/tags/b100.tar.gz"  # upstream
llama_cpp_source_sha256: {SUM}
llama_cpp_source_subdir: llama.cpp-b100

llama_cpp_build_number: 100
llama_cpp_commit: b100   # the tag
llama_cpp_ccache_dir: /var/cache/b100
"""


def inventory(tmp_path: Path, text: str) -> tuple[str, Path]:
    file = tmp_path / "inv" / "group_vars" / "gpu" / "llama_cpp.yml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    (tmp_path / "inv" / "hosts.yml").write_text("gpu: {hosts: {a: {}}}\n")
    return str(tmp_path / "inv"), file


def packed(path: Path, name: str = "llama.cpp-b200/CMakeLists.txt") -> str:
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder that is served, and its address."""
    folder = tmp_path / "www"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_only_the_lines_that_pin_it_change_with_their_comments_and_quotes(tmp_path: Path) -> None:
    where, file = inventory(tmp_path, ARCHIVE)
    done = bump.bump(where, Step("b200", sha256="c" * 64))
    assert done.written
    assert file.read_text().splitlines() == [
        "# how we pin it",
        'llama_cpp_source_url: "https://example.org/refs/tags/b200.tar.gz"  # upstream',
        f"llama_cpp_source_sha256: {'c' * 64}",
        "llama_cpp_source_subdir: llama.cpp-b200",
        "",
        "llama_cpp_build_number: 200",
        "llama_cpp_commit: b200   # the tag",
        "llama_cpp_ccache_dir: /var/cache/b100",
    ]
    assert len(done.lines) == 5
    again = bump.bump(where, Step("b200", sha256="c" * 64))
    assert (again.lines, again.written) == ([], False)


def test_check_writes_nothing(tmp_path: Path) -> None:
    where, file = inventory(tmp_path, ARCHIVE)
    done = bump.bump(where, Step("b200", sha256="c" * 64), check=True)
    assert (len(done.lines), done.written, file.read_text()) == (5, False, ARCHIVE)


def test_the_archive_is_fetched_and_its_sum_pinned(tmp_path: Path, site: tuple[Path, str]) -> None:
    folder, url = site
    digest = packed(folder / "b200.tar.gz")
    where, file = inventory(tmp_path, ARCHIVE.replace("https://example.org/refs/tags", url))
    bump.bump(where, Step("b200"))
    assert yaml.safe_load(file.read_text())["llama_cpp_source_sha256"] == digest


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda path: packed(path, "other/README"), Refused, "has no llama.cpp-b200/CMakeLists.txt"),
        (lambda path: path.write_text("<html>not found</html>"), Refused, "no tar archive"),
        (lambda path: None, BigironError, "cannot be fetched"),
    ],
)
def test_what_is_no_archive_of_llama_cpp_is_never_pinned(
    tmp_path: Path, site: tuple[Path, str], make: object, kind: type[BigironError], says: str
) -> None:
    folder, url = site
    make(folder / "b200.tar.gz")  # type: ignore[operator]
    text = ARCHIVE.replace("https://example.org/refs/tags", url)
    where, file = inventory(tmp_path, text)
    with pytest.raises(kind, match=says):
        bump.bump(where, Step("b200"))
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("text", "step", "says"),
    [
        (ARCHIVE, Step(""), "no build was named"),
        (ARCHIVE, Step("b200; rm"), "is no build of llama.cpp"),
        (ARCHIVE, Step("f" * 40, sha256=SUM), "the build number of f+ is not known"),
        (ARCHIVE, Step("b200", sha256="xyz"), "is no SHA-256"),
        (ARCHIVE.replace("b100.tar", "latest.tar"), Step("b200", sha256=SUM), "does not hold 'b100'"),
        (ARCHIVE.replace("llama_cpp_build_number: 100\n", ""), Step("b200", sha256=SUM), "llama_cpp_build_number is not set"),
        (ARCHIVE.replace("llama_cpp_source_url", "other_url"), Step("b200", sha256=SUM), "llama_cpp_source_url is not set"),
        (ARCHIVE + "llama_cpp_commit: b101\n", Step("b200", sha256=SUM), "set 2 times"),
        ("other: 1\n", Step("b200", sha256=SUM), "no file sets llama_cpp_commit"),
    ],
)
def test_what_is_not_clear_is_wrong_usage_and_writes_nothing(tmp_path: Path, text: str, step: Step, says: str) -> None:
    where, file = inventory(tmp_path, text)
    with pytest.raises(UsageError, match=says) as caught:
        bump.bump(where, step)
    assert caught.value.hint
    assert file.read_text() == text


def test_of_two_files_that_pin_it_one_is_named(tmp_path: Path) -> None:
    where, file = inventory(tmp_path, ARCHIVE)
    other = file.parent.parent / "cpu.yml"
    other.write_text(ARCHIVE)
    with pytest.raises(UsageError, match="2 files set llama_cpp_commit"):
        bump.bump(where, Step("b200", sha256=SUM))
    bump.bump(where, Step("b200", sha256=SUM), file=str(other))
    assert (file.read_text(), "b200" in other.read_text()) == (ARCHIVE, True)
    with pytest.raises(UsageError, match="no such file"):
        bump.bump(where, Step("b200"), file=str(tmp_path / "none.yml"))


def test_a_tag_of_a_repository_is_pinned_by_its_commit(tmp_path: Path) -> None:
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "--quiet"], [*who, "commit", "--quiet", "--allow-empty", "-m", "x"], ["tag", "b200"]):
        subprocess.run(["git", "-C", str(upstream), *words], check=True)
    commit = subprocess.run(
        ["git", "-C", str(upstream), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout
    text = f"llama_cpp_source_url: git+file://{upstream}\nllama_cpp_build_number: 100\nllama_cpp_commit: {'0' * 40}\n"
    where, file = inventory(tmp_path, text)
    bump.bump(where, Step("b200"))
    found = yaml.safe_load(file.read_text())
    assert (found["llama_cpp_commit"], found["llama_cpp_build_number"]) == (commit.strip(), 200)
    with pytest.raises(Refused, match="no branch or tag b300"):
        bump.bump(where, Step("b300"))


# --- what it means for the hosts ------------------------------------------------------------------------


def test_flags_that_went_changed_or_have_another_default_are_told() -> None:
    argv = ["/x/llama-server", "--model", "m", "--mlock", "-fa", "--parallel", "1"]
    found = {each.option: each.told for each in flags.changes(argv, OLD, NEW)}
    assert found["--mlock"] == "--mlock is gone"
    assert found["-fa"].startswith("-fa takes a value now")
    assert found["--ctx-size"] == "--ctx-size, which the plan leaves open, has another default: 0, before 4096"
    assert "--parallel" not in found  # the plan says its value


def test_a_flag_with_the_explanation_of_another_was_renamed() -> None:
    renamed = NEW.replace("--threads N ", "--workers N ").replace("-t,    --workers", "-w,    --workers")
    [change] = flags.changes(["llama-server", "--threads", "2"], NEW, renamed)
    assert (change.kind, change.told) == ("renamed", "--threads is called --workers now")
    assert flags.changes(["llama-server", "--threads", "2"], NEW, NEW) == []


def test_each_host_is_told_or_what_is_missing_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, _ = inventory(tmp_path, ARCHIVE)
    for host, mark in (("a", "oldmark"), ("b", "unknown")):
        content = {"release": {"fingerprint": mark}, "service": {"argv": ["llama-server", "--mlock"]}}
        lock.write(lock.path_for(where, host), content)
    cached = [CachedRelease("oldmark", {"source_sha256": SUM}, "x", "", OLD)]
    monkeypatch.setattr(builds.survey, "cached_releases", lambda: cached)
    done = bump.bump(where, Step("b200", sha256="c" * 64))
    assert all("builds.build --host" in each.unknown for each in done.hosts)
    cached.append(CachedRelease("newmark", {"source_sha256": "c" * 64}, "x", "", NEW))
    first, second = bump.bump(where, Step("b200", sha256="c" * 64)).hosts
    assert "--mlock is gone" in [each.told for each in first.changes]
    assert "unknown" in second.unknown


def test_the_command_says_the_lines_and_speaks_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    where, file = inventory(tmp_path, ARCHIVE)
    words = ["inv", "builds.bump", "--to", "b200", "--sha256", "c" * 64, "--inventory", where]
    assert main([*words, "--check", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["written"], len(document["lines"])) == (False, 5)
    assert main(words) == 0
    said = capfd.readouterr().out
    assert "- llama_cpp_commit: b100   # the tag\n+ llama_cpp_commit: b200   # the tag" in said
    assert "b200" in file.read_text()
    assert main(["inv", "builds.bump", "--inventory", where, "--json"]) == 64
    assert "no build was named" in json.loads(capfd.readouterr().out)["what"]
