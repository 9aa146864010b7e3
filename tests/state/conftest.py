"""For plain pytest: ``pytest tests/state --hosts=ansible://lab01 --ansible-inventory=inventory/lab`` plans by itself, then judges.

``./inv verify`` brings its own plan. The fixtures of the checks are in `bigiron.judge.fixtures`.
"""

from bigiron.judge import plain
from bigiron.judge.fixtures import NAME


def pytest_addoption(parser):
    group = parser.getgroup("bigiron")
    group.addoption("--deep", action="store_true", help="hash every file of the release and the model again")
    group.addoption("--no-completion", action="store_true", help="do not ask the server for a completion")


def pytest_configure(config):
    if not config.pluginmanager.has_plugin(NAME):
        plain.start(config)
