"""What runs on the host: sent as text, run from memory by ``python3 -I -S -``. Standard library only, Python >= 3.9.

It says lstat, readlink and walk in their own words (os, not pathlib): that is what it is about.
"""
