"""Drop-ins of a systemd unit: which of them changes which planned setting (systemd.unit(5), systemd.syntax(7)).

Standard library only: this file also runs on hosts.
"""

from __future__ import annotations

from typing import Dict, Iterable, Iterator, List, Mapping, Tuple

DECISIVE = ("ExecStart", "ExecStartPre", "ExecStartPost", "Type", "User", "Group", "LoadCredential", "RootDirectory")
"""Settings that decide what runs: a drop-in that changes or adds one of them is a difference, not a taste."""
_NAMED = {"Environment": "=", "LoadCredential": ":", "SetCredential": ":"}
"""Lists of named entries: only a planned name with another value is a change."""
_ADDED_TO = frozenset(
    """After Before Wants Requires Requisite BindsTo PartOf Upholds Conflicts OnFailure OnSuccess RequiresMountsFor WantsMountsFor
    Documentation WantedBy RequiredBy Also Alias EnvironmentFile PassEnvironment UnsetEnvironment SupplementaryGroups
    ReadWritePaths ReadOnlyPaths InaccessiblePaths BindPaths BindReadOnlyPaths ExecPaths NoExecPaths""".split()  # noqa: SIM905 - a list of words
)
"""Lists where more entries leave the planned ones in force."""
_EXACT = frozenset(
    """ExecStart ExecStartPre ExecStartPost ExecCondition ExecReload ExecStop ExecStopPost SystemCallFilter SystemCallArchitectures
    RestrictAddressFamilies RestrictNamespaces CapabilityBoundingSet AmbientCapabilities DeviceAllow""".split()  # noqa: SIM905
)
"""Lists where one more entry changes what runs or what it may do."""
_BOOLEANS = {
    **dict.fromkeys(("1", "yes", "y", "true", "t", "on"), "yes"),
    **dict.fromkeys(("0", "no", "n", "false", "f", "off"), "no"),
}

Setting = Tuple[str, str]  # section, key


def overrides(unit_text: str, drop_ins: Mapping[str, str]) -> List[Tuple[str, str]]:
    """``(path, setting)`` for every planned (or decisive) setting that ``drop_ins`` change, with the file that wins.

    ``drop_ins``: path -> text in the order in which systemd applies them. Setting a planned value again, or adding to a list
    that keeps the planned entries, changes nothing.
    """
    planned = _apply({}, unit_text)
    now = planned
    winner: Dict[Setting, str] = {}
    for path, text in drop_ins.items():
        before, now = now, _apply(now, text)
        for setting in dict.fromkeys(each for each, _ in _assignments(text)):
            key = setting[1]
            if setting not in planned and (setting[0], key in DECISIVE) != ("Service", True):
                continue
            want = planned.get(setting, [])
            change = _change(key, want, now[setting])
            single = key not in _ADDED_TO and key not in _NAMED
            if not change:
                winner.pop(setting, None)
            elif single or change != _change(key, want, before.get(setting, [])):
                winner[setting] = path
    return [(path, setting[1]) for setting, path in winner.items()]


def told(unit: str, found: Iterable[Tuple[str, str]]) -> Iterator[Tuple[str, str]]:
    """A sentence for each file in ``found`` (`overrides`), and how to keep or remove what decides what runs ("" when it does not)."""
    by_path: Dict[str, List[str]] = {}
    for path, setting in found:
        by_path.setdefault(path, []).append(setting)
    for path, settings in by_path.items():
        hint = f"to keep it, say it in the inventory (llama_server_extra_args); then remove it on the host: rm {path} && systemctl daemon-reload"
        decisive = bool(set(settings) & set(DECISIVE))
        yield f"{path} overrides {', '.join(f'{each}=' for each in settings)} of {unit}", hint if decisive else ""


def _assignments(text: str) -> Iterator[Tuple[Setting, str]]:
    section = pending = ""
    for line in map(str.lstrip, [*text.splitlines(), ""]):
        if line.startswith(("#", ";")):  # a comment between continued lines is left out, too
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:  # an even number of them escapes each other
            pending += line[:-1] + " "
            continue
        whole, pending = (pending + line).strip(), ""
        key, equals, value = whole.partition("=")
        if whole.startswith("[") and whole.endswith("]"):
            section = whole[1:-1]
        elif equals:
            yield (section, key.strip()), " ".join(value.split())


def _apply(settings: Mapping[Setting, List[str]], text: str) -> Dict[Setting, List[str]]:
    """``settings`` after ``text``: an empty value drops all that came before it."""
    after = dict(settings)
    for setting, value in _assignments(text):
        after[setting] = [*after.get(setting, []), value] if value else []
    return after


def _change(key: str, planned: List[str], now: List[str]) -> object:
    """What became of the planned values where that is not what was planned; falsy when nothing changed."""
    if key in _EXACT:
        return now != planned and ["", *now]
    if key in _NAMED or key in _ADDED_TO:
        want, have = _entries(planned, _NAMED.get(key, "")), _entries(now, _NAMED.get(key, ""))
        return {each: have.get(each) for each in want if have.get(each) != want[each]}
    want_last, last = (_BOOLEANS.get(values[-1].lower(), values[-1]) if values else "" for values in (planned, now))
    return last != want_last and ["", last]


def _entries(values: List[str], mark: str) -> Dict[str, str]:
    words = [word for value in values for word in value.split()]
    return {word.partition(mark)[0] if mark else word: word for word in words}
