"""One file per kind of resource.

A kind is a module with

- ``SECTION``: where in the observed document its entries stand (files, directories, links and secrets share one),
- ``observe(reader, names)``, on the host: ``{name: entry}``, or a function that finishes what was begun and returns that. What is not
  there has no entry, what cannot be read has ``{"error": why}``,
- ``differs(name, want, have)``, on the controller: ``(problem, unified diff or "")`` for everything about the entry ``have`` (None when
  absent) that is not as wanted. A kind that is only watched (a port, a disk) has none,
- ``find(section, name, want)``, where an entry is not simply ``section[name]``.

It is found by its file name: a new one needs no list. Standard library only: what a look needs is sent to the host as text.
"""
