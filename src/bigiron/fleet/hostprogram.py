"""One Python program as text: package modules plus an import hook, to be run by ``python3 -I -S`` on a host.

The protocol keeps the program and its answer apart from anything else on the wire (motd, a shell profile, a password line
that sudo did not want). Every run has its own random marker:

1. the bootstrap in argv checks the Python, prints ``MARKER READY`` and skips input up to the line ``MARKER <bytes>``;
2. it reads exactly that many bytes, and runs them only when all arrived;
3. the program reads one line of JSON (the request), calls the entry, and prints ``MARKER {"ok": ...}`` or an error.

Nothing is read from or written to the host's disk, and the program's own standard output is its standard error.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from pathlib import Path
from typing import Any

from bigiron import errors
from bigiron.errors import BigironError

OLD_PYTHON = 126
NO_PYTHON = 127
MINIMUM = (3, 9)
_PACKAGE = Path(errors.__file__).parent
_RELATIVE = re.compile(r"^[ \t]*from[ \t]+(\.+)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]+)", re.MULTILINE)

# One line, double quotes only, no backslash, no "!": it must survive sh, sudo, fish and csh.
_BOOTSTRAP = (
    'import sys;m="{marker}";'
    'sys.version_info<{minimum} and (sys.stderr.write(m+" OLD "+sys.version.split()[0]+" "),sys.exit({old}));'
    "i=sys.stdin.buffer;k=m.encode();"
    'print(m+" READY",flush=True);'
    'l=next((l for l in iter(i.readline,b"") if l.startswith(k)),k+b" 0");'
    "n=int(l.split()[1]);b=i.read(n);"
    'n and len(b)==n and exec(compile(b,"bigiron","exec"))'
)

_PROGRAM = """\
import importlib.machinery, json, os, sys
sys.dont_write_bytecode = True
SOURCES = {sources}
class Text:  # a finder and loader without importlib.abc, which drags in tempfile and shutil
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return importlib.machinery.ModuleSpec(name, self, origin="<" + name + ">", is_package=SOURCES[name][0])
        return None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(SOURCES[module.__name__][1], "<" + module.__name__ + ">", "exec"), module.__dict__)
def run():
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.meta_path.insert(0, Text())
    request = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    from bigiron.errors import BigironError
    try:
        import importlib
        result = {{"ok": getattr(importlib.import_module({module!r}), {function!r})(request)}}
        line = json.dumps(result)
    except BigironError as error:
        line = json.dumps({{"error": error.to_json()}})
    except Exception as error:
        frame, place = error.__traceback__, ""
        while frame is not None:
            if frame.tb_frame.f_code.co_filename.startswith("<bigiron"):
                place = "%s:%d" % (frame.tb_frame.f_code.co_filename.strip("<>"), frame.tb_lineno)
            frame = frame.tb_next
        line = json.dumps({{"crash": {{"type": type(error).__name__, "message": str(error), "at": place}}}})
    answer.write("\\n" + m + " " + line + "\\n")
    answer.flush()
run()
"""


@functools.cache
def build(entry: str, modules: tuple[str, ...] = ()) -> bytes:
    """The program text for ``entry`` (``"bigiron.onhost.observe:main"``, a ``def main(request: dict) -> dict``).

    Sent are the module of ``entry``, ``modules``, ``bigiron.errors`` and whatever those import relatively. A package that is
    only a parent is sent empty, one that is imported from with its ``__init__``. Raises BigironError for a missing module.
    """
    module, _, function = entry.partition(":")
    sources: dict[str, tuple[bool, str]] = {}
    waiting = ["bigiron.errors", module, *modules]
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        path = _path(name)
        if path is None:
            raise BigironError(f"there is no module {name} to send to a host", where=entry)
        text = path.read_text(encoding="utf-8")
        is_package = path.name == "__init__.py"
        sources[name] = (is_package, text)
        waiting += _relative_imports(name if is_package else name.rpartition(".")[0], text)
    for name in list(sources):
        parent = name.rpartition(".")[0]
        while parent:
            sources.setdefault(parent, (True, ""))
            parent = parent.rpartition(".")[0]
    return _PROGRAM.format(sources=repr(sources), module=module, function=function or "main").encode("utf-8")


def _path(name: str) -> Path | None:
    """Where a module's text is; found without importing it, which would run its parents on the controller."""
    head, *rest = name.split(".")
    if head != "bigiron":
        return None
    base = _PACKAGE.joinpath(*rest)
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _relative_imports(package: str, text: str) -> list[str]:
    found: list[str] = []
    for dots, target, names in _RELATIVE.findall(text):
        base = ".".join(package.split(".")[: len(package.split(".")) - len(dots) + 1])
        if target:
            base = f"{base}.{target}"
        members = [f"{base}.{name.split()[0]}" for name in names.strip("()").replace("\n", " ").split(",") if name.strip()]
        submodules = [member for member in members if _path(member)]
        found += submodules
        if len(submodules) < len(members) and _path(base):
            found.append(base)
    return found


def payload(program: bytes, request: dict[str, Any], marker: str) -> bytes:
    """What goes into the bootstrap's standard input."""
    line = json.dumps(request).encode("utf-8")
    return b"%s %d\n%s%s\n" % (marker.encode("ascii"), len(program), program, line)


def shell_script(marker: str, python: str | None) -> str:
    """A POSIX sh one-liner that runs the bootstrap under the first Python that is new enough.

    ``python`` is the inventory's ``ansible_python_interpreter``; None tries ``python3`` and the distribution's own paths.
    Exit status 126: only an older Python was found; 127: none.
    """
    bootstrap = shlex.quote(_BOOTSTRAP.format(marker=marker, minimum=f"({MINIMUM[0]},{MINIMUM[1]})", old=OLD_PYTHON))
    flags = f"-I -S -c {bootstrap}"
    if python is not None:
        command = " ".join(shlex.quote(word) for word in shlex.split(python))
        first = shlex.quote(shlex.split(python)[0])
        return f"command -v {first} >/dev/null 2>&1 || exit {NO_PYTHON}; exec {command} {flags}"
    return (
        f"r={NO_PYTHON}; for p in python3 /usr/bin/python3 /usr/libexec/platform-python; do "
        f"command -v $p >/dev/null 2>&1 || continue; $p {flags}; r=$?; [ $r = {OLD_PYTHON} ] || exit $r; done; exit $r"
    )


def parse(stdout: bytes, marker: str, where: str) -> dict[str, Any] | None:
    """The entry's answer, wherever it stands in ``stdout``; None when there is none. Raises what the host reported."""
    prefix = f"{marker} {{".encode("ascii")
    start = stdout.rfind(prefix)
    if start < 0:
        return None
    line, newline, _ = stdout[start + len(prefix) - 1 :].partition(b"\n")
    if not newline:
        return None
    answer = json.loads(line)
    if "ok" in answer:
        result: dict[str, Any] = answer["ok"]
        return result
    if "error" in answer:
        raise _typed(answer["error"], where)
    crash = answer["crash"]
    raise BigironError(
        f"the program on the host failed: {crash['type']}: {crash['message']}",
        where=where,
        hint=f"this is a defect in {crash['at'] or 'bigiron'}; please report it with this line",
    )


def _typed(report: dict[str, Any], where: str) -> BigironError:
    kind = getattr(errors, str(report.get("error")), BigironError)
    if not (isinstance(kind, type) and issubclass(kind, BigironError)):
        kind = BigironError
    place = report.get("where")
    return kind(str(report["what"]), where=f"{where}: {place}" if place else where, hint=report.get("hint"))
