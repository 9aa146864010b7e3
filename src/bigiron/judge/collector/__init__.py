"""What the verifier runs on the host: sent as text, run from memory. Standard library only, relative imports, Python >= 3.9.

It shares no code with ``bigiron.onhost``, so that a blind spot of one is not a blind spot of the other; it says lstat, readlink
and walk in their own words (os, not pathlib), because that is what it is about.
"""
