"""Everything that runs on a host: standard library only, relative imports only, Python 3.9."""
