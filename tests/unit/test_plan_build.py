from hypothesis import given
from hypothesis import strategies as st

from bigiron.plan import build_options as build
from bigiron.units import GIB

SOURCE = build.Source("http://mirror/x.tar.gz", "0" * 64, "x/llama.cpp", 11434, "b11434")
ZEN4 = [
    "sse4_2",
    "avx",
    "f16c",
    "fma",
    "bmi2",
    "avx2",
    "avx512f",
    "avx512cd",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512vbmi",
    "avx512_vnni",
    "avx512_bf16",
]
HASWELL = ["sse4_2", "avx", "f16c", "fma", "bmi2", "avx2"]


def identity(**changes):
    options, baseline = build.options("x86_64", changes.pop("flags", ZEN4), SOURCE, web_ui=False, extra={})
    base = {
        "source_sha256": SOURCE.sha256,
        "options": options,
        "compiler": "g++ 12.2.0",
        "libc": "glibc 2.36",
        "cpu_baseline": list(baseline),
    }
    return {**base, **changes}


def test_every_part_of_the_identity_changes_the_fingerprint():
    reference = build.fingerprint(identity())
    variants = [
        identity(source_sha256="1" * 64),
        identity(compiler="g++ 14.2.0"),
        identity(libc="glibc 2.41"),
        identity(flags=HASWELL),
        identity(options={**identity()["options"], "GGML_LTO": "ON"}),
    ]
    assert len({reference, *map(build.fingerprint, variants)}) == 6


def test_fingerprint_ignores_the_order_of_options():
    options = identity()["options"]
    assert build.fingerprint(identity(options=dict(reversed(options.items())))) == build.fingerprint(identity())


def test_cpu_without_avx512_gets_no_avx512_and_says_so_explicitly():
    options, baseline = build.cpu_options("x86_64", HASWELL)
    assert options["GGML_NATIVE"] == "OFF"  # -march=native would not be portable between hosts
    assert options["GGML_AVX2"] == "ON"
    assert options["GGML_AVX512"] == "OFF"
    assert "avx512f" not in baseline


def test_one_missing_avx512_part_turns_avx512_off():
    options, baseline = build.cpu_options("x86_64", [flag for flag in ZEN4 if flag != "avx512vl"])
    assert options["GGML_AVX512"] == "OFF"
    assert "avx512bw" not in baseline


@given(st.sets(st.sampled_from([flag for needs in build.X86_OPTIONS.values() for flag in needs])))
def test_baseline_is_never_more_than_the_cpu_has(flags):
    options, baseline = build.cpu_options("x86_64", flags)
    assert set(baseline) <= flags
    assert {name for name, value in options.items() if value == "ON"} == {
        n for n, needs in build.X86_OPTIONS.items() if set(needs) <= flags
    }


def test_amx_is_off_until_upstream_mends_it():
    options, baseline = build.cpu_options("x86_64", [*ZEN4, "amx_tile", "amx_int8", "amx_bf16"])
    assert {options[name] for name in build.AMX_OPTIONS} == {"OFF"}
    assert not any(flag.startswith("amx") for flag in baseline)


def test_arm_architecture_names_its_extensions():
    options, baseline = build.cpu_options("aarch64", ["asimd", "asimddp", "asimdhp", "i8mm", "sve"])
    assert options["GGML_CPU_ARM_ARCH"] == "armv8.2-a+dotprod+fp16+i8mm+sve"
    assert baseline == ("asimddp", "asimdhp", "i8mm", "sve")


def test_jobs_are_limited_by_memory():
    assert build.jobs(64, 16 * GIB) == 10
    assert build.jobs(4, 512 * GIB) == 4
    assert build.jobs(8, GIB // 2) == 1


def test_web_ui_is_downloaded_only_when_asked_for():
    asked, _ = build.options("x86_64", ZEN4, SOURCE, web_ui=True, extra={})
    silent, _ = build.options("x86_64", ZEN4, SOURCE, web_ui=False, extra={})
    assert (asked["LLAMA_USE_PREBUILT_UI"], silent["LLAMA_USE_PREBUILT_UI"]) == ("ON", "OFF")


def test_extra_options_win():
    options, _ = build.options("x86_64", ZEN4, SOURCE, web_ui=False, extra={"GGML_AVX512": "OFF"})
    assert options["GGML_AVX512"] == "OFF"
