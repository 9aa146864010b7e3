"""The lab: throw-away hosts on this machine (booted Debian containers on a private bridge) and a mirror of what they download.

Import :mod:`bigiron.lab.lab` for the commands; nothing heavy is imported here, because ``provision`` asks
:func:`bigiron.lab.lab.ensure_for` on every run.
"""
