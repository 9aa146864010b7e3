"""ROCm: the GPUs are what the plan took them for, the library holds code for them, and AMD supports this kernel and the next one."""

import re

from bigiron.judge.checks import cannot_tell, check

NODES = "/sys/class/kfd/kfd/topology/nodes"
CODE = re.compile(r"amdgcn-amd-amdhsa--(gfx[0-9a-f]+)")


def root(plan):
    return plan.get("rocm_root")


def cards(plan):
    return plan.get("rocm_cards") or []


def kernels(plan):
    return plan.get("rocm_kernels") or []


def library(plan):
    return f"{plan['llama_cpp_prefix']}/releases/{plan['llama_cpp_fingerprint']}/bin/libggml-hip.so"


def look(plan):
    """What the collector is to look at on the host."""
    if not root(plan):
        return {}
    commands = {
        "rocm_kfd": ["grep", "-rhs", "^gfx_target_version ", NODES],
        "rocm_code": ["grep", "-aoE", CODE.pattern, library(plan)],
        "rocm_modules": ["ls", "/boot"],
    }
    return {"commands": commands}


def name_of(version):
    """``110000`` as KFD says it (major, minor and step, two digits each) -> ``gfx1100``."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


@check("rocm.cards", "on {host}: rocminfo; what is right goes into rocm_targets or rocm_gfx_override", when=cards)
def test_the_kernel_calls_the_gpus_what_the_plan_does(plan, found, note):
    said = found["commands"]["rocm_kfd"]["out"].split()
    there = {name_of(int(word)) for word in said if word.isdigit() and word != "0"}
    if not there:
        cannot_tell(f"{NODES} shows no GPU")
    note(f"the driver says {', '.join(sorted(there))}")
    missing = sorted({*cards(plan)} - there)
    assert not missing, f"planned for {', '.join(missing)}; the driver says {', '.join(sorted(there))}"


@check("rocm.code", "on {host}: ./inv builds.explain --host {host}", when=root)
def test_the_library_holds_code_for_the_planned_targets(plan, found, note):
    options = plan["llama_cpp_identity"]["options"]
    wanted = {*(options.get("GPU_TARGETS") or options.get("CMAKE_HIP_ARCHITECTURES") or "").split(";")} - {""}
    there = {*CODE.findall(found["commands"]["rocm_code"]["out"])}
    if not there and found["commands"]["rocm_code"]["rc"] == 1:
        cannot_tell("the code in the library is compressed, and does not say for which targets it is")
    note(f"code for {', '.join(sorted(there))}")
    assert wanted <= there, f"no code for {', '.join(sorted(wanted - there))} in {library(plan)}"


@check("rocm.kernel", "boot a kernel that AMD lists, or set rocm_any_kernel: true", when=kernels)
def test_amd_supports_the_kernel_that_runs_and_the_newest_one(plan, found, note):
    running = found["host"]["kernel"]
    images = [
        word.removeprefix("vmlinuz-")
        for word in found["commands"]["rocm_modules"]["out"].split()
        if word.startswith("vmlinuz-")
    ]
    newest = max(images, key=lambda each: [int(number) for number in re.findall(r"\d+", each)], default=running)
    note(f"runs {running}, the newest is {newest}")
    bad = [each for each in dict.fromkeys((running, newest)) if ".".join(re.findall(r"\d+", each)[:2]) not in kernels(plan)]
    assert not bad, f"{' and '.join(bad)}: AMD lists {', '.join(kernels(plan))}"
