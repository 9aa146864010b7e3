"""Pinned source to programs: configure with exactly the plan's options, compile, collect what runs.

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Optional

from ..errors import BigironError, Refused
from ..units import count, gib
from . import budget, fit, release
from .buildlog import BACKENDS, FULL, GPU_ARCHITECTURES, ON, cmake_error, configure_problems, explain_failure, killed, native
from .progress import write_atomic
from .release import Layout
from .source import Source, is_full, unpacked

MINIMUM_FREE_BYTES = 2 * 1024**3
RPATH = "$ORIGIN;$ORIGIN/../lib"


@dataclass(frozen=True)
class Request:
    """What the role asks for; the fields are the role's ``llama_cpp_*`` variables without their prefix."""

    prefix: str
    build_root: str
    fingerprint: str
    identity: dict[str, Any]
    user: str
    source_url: str = ""
    source_mirrors: tuple[str, ...] = ()
    source_sha256: str = ""
    source_subdir: str = ""
    build_number: int = 0
    commit: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    library_path: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()
    gpu: dict[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    jobs: int = 1
    ccache_dir: str = ""
    archive: str = ""
    archive_sha256: str = ""
    pack: bool = False
    activate: bool = True
    trial: bool = True
    check: bool = False
    lock_wait_s: float = 4 * 3600.0

    @property
    def layout(self) -> Layout:
        return Layout(Path(self.prefix))

    @property
    def source(self) -> Source:
        return Source(self.source_url, tuple(self.source_mirrors), self.source_sha256, self.source_subdir, self.commit)

    @property
    def work(self) -> Path:
        """The folder of the build; it is kept after a failure, so that the next run with the same inputs goes on.

        All builds have the same: llama.cpp's unity files and ``__FILE__`` hold its name, and with another one ccache finds nothing of them.
        """
        return Path(self.build_root) / "build" / "llama.cpp"


def compile_release(request: Request, report: Callable[..., None]) -> None:
    """Source to build tree in ``request.work``; every step is skipped that an earlier run with the same inputs finished."""
    work = request.work
    _check_inputs(request)
    inputs = {
        **request.source.identity,
        "subdir": request.source_subdir,
        "options": cmake_options(request),
        "environment": request.environment,
        "library_path": list(request.library_path),
        "compiler": compiler(),
        "toolchains": request.identity.get("toolchains") or {},
        "ccache": bool(request.ccache_dir),
    }
    marker = work / "inputs.json"
    if not marker.is_file() or json.loads(marker.read_text(encoding="utf-8")) != inputs:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o755, parents=True)
        write_atomic(marker, json.dumps(inputs, indent=1))
    for other in work.parent.iterdir():
        if other != work:
            shutil.rmtree(other, ignore_errors=True)
    folder = unpacked(request.source, work, Path(request.build_root) / "sources", report)
    _configure(request, folder, report)
    _ninja(request, report)


def _check_inputs(request: Request) -> None:
    request.source.check()
    if not request.targets:
        raise Refused("a build needs llama_cpp_targets", where="llama_cpp")
    wanted = {
        "cmake": True,
        "ninja": True,
        "g++": True,
        "ldd": True,
        "ccache": request.ccache_dir,
        "git": request.source.is_git,
    }
    missing = [tool for tool, needed in wanted.items() if needed and not _which(tool)]
    if missing:
        raise BigironError(f"not installed: {', '.join(missing)}", hint="apply role base with base_packages, or install them")
    options = cmake_options(request)
    for name, value in sorted(options.items()):
        if name.startswith("CMAKE_") and name.endswith("_COMPILER") and value.startswith("/") and not os.access(value, os.X_OK):
            what = f"{name} is {value}, which is no program here"
            raise BigironError(
                what, where="llama_cpp_options", hint="install that toolchain, or name the compiler that is there"
            )
    architectures = [name for name in native(options) if name.endswith(GPU_ARCHITECTURES)]
    if architectures:
        what = f"{', '.join(architectures)}: native is whatever GPU the builder has, or none"
        raise Refused(what, where="llama_cpp_options", hint="name the architectures, such as 89;120a or gfx1100")
    planned, here = str(request.identity.get("compiler") or ""), compiler()
    if planned and planned != here:
        what = f"the compiler is {here}, and the release {request.fingerprint} is named after {planned}"
        raise BigironError(what, hint="plan again: the compiler was changed meanwhile")
    Path(request.build_root).mkdir(mode=0o755, parents=True, exist_ok=True)
    free = shutil.disk_usage(request.build_root).free
    if free < MINIMUM_FREE_BYTES and not (request.work / "out" / "build.ninja").exists():
        raise Refused(
            f"a build needs about {gib(MINIMUM_FREE_BYTES)} and {gib(free)} are free",
            where=request.build_root,
            hint="make room, or set llama_cpp_build_root to a larger file system",
        )


def _which(tool: str) -> Optional[str]:
    return shutil.which(tool, path=release.CLEAN_PATH)


def named(request: Request) -> Request:
    """The request with its identity and fingerprint filled in from this host, where the plan could not know them.

    The compiler's version decides the fingerprint and is known only once the compiler is installed. Without a compiler the
    fingerprint stays empty.
    """
    if request.fingerprint:
        return request
    options = cmake_options(request)
    mine_alone = native(options)
    identity = dict(request.identity) or {
        **request.source.identity,
        "options": options,
        "libc": fit.libc_version(),
        "cpu_baseline": fit.cpu_flags() if mine_alone else [],
    }
    identity["compiler"] = identity.get("compiler") or compiler()
    if not identity["compiler"]:
        return request
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return replace(request, identity=identity, fingerprint=hashlib.sha256(canonical.encode()).hexdigest()[:16])


def compiler() -> str:
    """``"g++ 12.2.0"``, or nothing where there is none."""
    try:
        answer = subprocess.run(
            ["g++", "-dumpfullversion"], capture_output=True, text=True, check=True, env=release.clean_environment()
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"g++ {answer.stdout.strip()}"


def cmake_options(request: Request) -> dict[str, str]:
    """The plan's options as CMake reads them (true is ON), plus the build number that an archive without git cannot give."""
    words = {True: "ON", False: "OFF"}
    options = {name: words[value] if isinstance(value, bool) else str(value) for name, value in request.options.items()}
    if request.build_number:
        options.setdefault("LLAMA_BUILD_NUMBER", str(request.build_number))
    if request.commit:
        options.setdefault("LLAMA_BUILD_COMMIT", request.commit)
    return options


def _environment(request: Request) -> dict[str, str]:
    extra = {**request.environment, "HOME": str(request.work), "TMPDIR": str(request.work)}
    if request.ccache_dir:
        # equal sources and an equal compiler must hit whatever host or folder they were first compiled in
        extra.update(
            CCACHE_DIR=request.ccache_dir,
            CCACHE_BASEDIR=str(request.work),
            CCACHE_NOHASHDIR="1",
            CCACHE_COMPILERCHECK="content",
            CCACHE_UMASK="022",
            CCACHE_SLOPPINESS="time_macros",
        )
    else:
        extra["CCACHE_DISABLE"] = "1"
    return release.clean_environment(**extra)


def configure_argv(request: Request, source: Path, out: Path) -> list[str]:
    """The cmake command: exactly the plan's options, the RPATH, and ccache where it is wanted."""
    options = cmake_options(request)
    launchers = []
    if request.ccache_dir:
        launchers = [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX", *request.compilers)]
    wanted = [f"-D{name}={value}" for name, value in sorted(options.items())]
    # llama.cpp sets no RPATH itself; its release CI passes the same two (.github/workflows/release.yml)
    folders = ";".join((RPATH, *request.library_path))
    rpath = [f"-DCMAKE_INSTALL_RPATH={folders}", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON"]
    return ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(out), *wanted, *rpath, *launchers]


def _configure(request: Request, source: Path, report: Callable[..., None]) -> None:
    out, log = request.work / "out", request.work / "configure.log"
    done = request.work / "configured"
    if done.exists():
        return
    report("configuring", 0, 1)
    shutil.rmtree(out, ignore_errors=True)  # a cmake that failed remembers what it did not find, and what was installed since
    with log.open("w", encoding="utf-8") as stream:
        argv = configure_argv(request, source, out)
        code = subprocess.run(
            argv,
            env=_environment(request),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=False,
            close_fds=False,
        ).returncode
    text = log.read_text(encoding="utf-8", errors="replace")
    if code != 0 and (FULL in text or is_full(request.work)):
        what, hint = explain_failure(FULL)
        raise BigironError(what, where=str(log), hint=hint)
    if code != 0:
        raise BigironError(f"cmake failed (exit code {code}): {cmake_error(text)}", where=str(log))
    found = configure_problems(text, cmake_options(request))
    if found:
        raise BigironError("; ".join(found), where=str(log), hint="correct llama_cpp_options; nothing was compiled")
    done.touch()


def _ninja(request: Request, report: Callable[..., None]) -> None:
    """Compile, with as many compilers as memory and the control groups allow; one that was killed for memory is tried again with half of them."""
    log = request.work / "build.log"
    now = budget.of_this_process()
    jobs = budget.jobs(request.jobs, now)
    while _compiled(request, jobs, log, report) != 0:
        said = log.read_text(encoding="utf-8", errors="replace")
        if is_full(request.work):
            said = FULL
        elif killed(said) and jobs > 1:
            jobs //= 2
            report(f"memory ran out: going on with {count(jobs, 'compiler')}", 0, 1)
            continue
        what, hint = explain_failure(said, killed(said) and budget.of_this_process().oom_kills > now.oom_kills)
        raise BigironError(f"the build failed: {what}", where=str(log), hint=hint)


def _compiled(request: Request, jobs: int, log: Path, report: Callable[..., None]) -> int:
    """Run ninja, its output in ``log``; returns its exit code."""
    argv = ["ninja", "-C", str(request.work / "out"), "-j", str(jobs), *request.targets]
    with log.open("w", encoding="utf-8") as stream, subprocess.Popen(
        argv, env=_environment(request), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", close_fds=False,
    ) as process:  # fmt: skip
        assert process.stdout is not None  # noqa: S101 (PIPE was asked for)
        for line in process.stdout:
            stream.write(line)
            step = re.match(r"\[(\d+)/(\d+)\]", line)
            if step:
                stream.flush()
                report("compiling", int(step.group(1)), int(step.group(2)))
    return process.returncode


def collect(request: Request, stage: Path) -> dict[str, Any]:
    """Copy the targets, their libraries (under the names they are asked for by) and the loadable backends.

    ``cmake --install`` needs every target of the project built, and its rules have missed libraries before (llama.cpp#23494).
    """
    built = request.work / "out" / "bin"
    for folder in ("bin", "lib"):
        (stage / folder).mkdir(mode=0o755)
    needed: set[str] = set()
    for target in request.targets:
        program = built / target
        if not program.is_file():
            raise BigironError(f"the build made no program {target!r}", where=str(built), hint="check llama_cpp_targets")
        shutil.copyfile(program, stage / "bin" / target)
        (stage / "bin" / target).chmod(0o755)
        needed |= _needed(program)
    modules = [path for path in sorted(built.glob("libggml-*.so")) if not path.is_symlink() and path.name not in needed]
    linked = {name for module in modules for name in _needed(module)}
    queue = sorted(needed | linked)
    while queue:
        name = queue.pop()
        library = built / name
        if library.is_file() and not (stage / "lib" / name).exists():
            shutil.copyfile(library, stage / "lib" / name)
            (stage / "lib" / name).chmod(0o644)
            queue += sorted(_needed(library))
    for module in modules:
        if not (stage / "lib" / module.name).exists():
            shutil.copyfile(module, stage / "bin" / module.name)
            (stage / "bin" / module.name).chmod(0o644)
    _check_backends(cmake_options(request), stage)
    return {"targets": sorted(request.targets)}


def _check_backends(options: dict[str, str], stage: Path) -> None:
    """A backend that was asked for and is not in the release means a CPU-only server that nobody notices (llama.cpp#15245)."""
    if options.get("BUILD_SHARED_LIBS", "ON").upper() not in ON:
        return
    names = " ".join(path.name for path in stage.rglob("*.so*"))
    for backend in BACKENDS:
        if options.get(f"GGML_{backend}", "").upper() in ON and f"libggml-{backend.lower()}.so" not in names:
            raise BigironError(f"the build has no {backend} backend although GGML_{backend} is ON", where=str(stage))


def _needed(path: Path) -> set[str]:
    """The libraries an ELF file asks for by name (``objdump -p`` comes with the compiler)."""
    answer = subprocess.run(
        ["objdump", "-p", str(path)], capture_output=True, text=True, check=True, env=release.clean_environment()
    )
    return set(re.findall(r"^\s*NEEDED\s+(\S+)", answer.stdout, re.MULTILINE))
