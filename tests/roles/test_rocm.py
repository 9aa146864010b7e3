"""Role rocm, with stand-ins for ROCm's files: what is incomplete is named, and a host that does not use it is left alone."""

import pytest

pytestmark = pytest.mark.lab

ROOT = "/opt/rocm-9.9.9"
COMPILER = f"{ROOT}/lib/llvm/bin/clang++"


@pytest.fixture
def rocm_host(clean_host):
    yield clean_host
    clean_host.sh(f"rm -rf {ROOT}")


def test_a_host_without_it_is_left_alone(clean_host):
    before = clean_host.tree()
    assert clean_host.converge("rocm").changed == []
    assert clean_host.removes("rocm").changed == []
    assert clean_host.tree() == before


def test_what_is_missing_is_named_until_it_is_complete(rocm_host):
    wanted = {"rocm_root": ROOT, "rocm_compiler": COMPILER}
    assert rocm_host.run("rocm", check=True, **wanted).code == 0  # on a virgin host nothing can be there yet
    steps = (
        (f"mkdir -p {COMPILER.rpartition('/')[0]}", f"no HIP compiler {COMPILER}"),
        (f"touch {COMPILER}", f"no HIP compiler {COMPILER}"),  # it cannot be run
        (f"chmod 755 {COMPILER}", f"no libamdhip64.so below {ROOT}/lib"),
    )
    for step, words in steps:
        rocm_host.sh(step)
        play = rocm_host.run("rocm", **wanted)
        assert play.code != 0
        assert words in play.failed[0]
    rocm_host.sh(f"touch {ROOT}/lib/libamdhip64.so.9")
    assert rocm_host.converge("rocm", **wanted).changed == []
