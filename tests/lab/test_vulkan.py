"""A GPU release end to end without a GPU: Mesa's Vulkan driver that computes on the CPU, on Debian 13, stands in for one."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from tests.conftest import inv, on

from bigiron.fleet import survey
from bigiron.lab import hubfiles, lab, seed
from fixtures.gguf_models import SMALL_MOE, write_random

pytestmark = [pytest.mark.lab, pytest.mark.timeout(90 * 60)]
HOST = "lab09"
REPO = "lab/random-moe-GGUF"
TOKENS = 16
PORT = 8099
"""Of the server beside the service, for the comparison."""
KEY = "/etc/bigiron/credentials/main.key"
ASK = """
import json, time, urllib.error, urllib.request
body = {{"prompt": list(range(300, 364)), "n_predict": {tokens}, "temperature": 0, "return_tokens": True}}
headers = {{"Authorization": "Bearer " + open("{key}").read().strip(), "Content-Type": "application/json"}}
request = urllib.request.Request("http://127.0.0.1:{port}/completion", json.dumps(body).encode(), headers)
for _ in range(120):
    try:
        print(json.dumps(json.load(urllib.request.urlopen(request, timeout=300))["tokens"]))
        break
    except (urllib.error.HTTPError, urllib.error.URLError):
        time.sleep(1)
"""


@pytest.fixture(scope="module")
def model(request):
    """The revision of a mixture of experts with random weights (0.4 GiB), in the lab's mirror; without --slow only where no release has to be compiled."""
    made = [one.identity for one in survey.cached_releases()]
    if not request.config.getoption("--slow") and not any("vulkan" in one.get("toolchains", {}) for one in made):
        pytest.skip("no Vulkan release is kept here, and compiling one takes long: ./inv test --slow")
    spec = replace(
        SMALL_MOE, name="Random MoE", layers=4, embedding=512, heads=8, kv_heads=2, feed_forward=1024, vocabulary=8192, context=8192,
        key=64, value=64, experts=32, experts_used=4, expert_feed_forward=512, rope=64,
    )  # fmt: skip
    work = seed.root() / "repos" / REPO / "tmp"
    shutil.rmtree(work.parent, ignore_errors=True)
    work.mkdir(parents=True)
    write_random(work / "Random-MoE-F32.gguf", spec)
    files = hubfiles.describe(work)
    revision = hubfiles.revision_of(files)
    work.rename(work.parent / revision)
    hubfiles.publish(seed.root(), REPO, revision, files)
    yield revision
    shutil.rmtree(work.parent)


@pytest.fixture(scope="module")
def inventory(lab_session, model, tmp_path_factory):
    """Wishes for the stand-in beside the lab's own."""
    wishes = {
        "llama_cpp_backend": "vulkan",
        "llama_cpp_software_gpu_mib": 512,
        "model_repo": REPO,
        "model_revision": model,
        "model_quant": "F32",
        "llama_server_context": 1024,
    }
    path = tmp_path_factory.mktemp("inventory") / "hosts.yml"
    path.write_text(json.dumps({"lab": {"hosts": {HOST: wishes}}}))
    lab.up(0, lambda _line: None, [HOST], {HOST: "trixie"})
    yield f"inventory/lab,{path}"
    inv("teardown", "--host", HOST, "--inventory", f"inventory/lab,{path}", "--models")


@pytest.fixture(scope="module")
def provisioned(inventory):
    done = inv("provision", "--host", HOST, "--inventory", inventory, "--json", timeout=80 * 60)
    assert done.code == 0, done
    return done


@pytest.fixture(scope="module")
def plan(provisioned, inventory):
    return inv("plan", "--host", HOST, "--inventory", inventory, "--json").document[HOST]


def test_the_plan_puts_the_experts_on_the_cpu_and_the_rest_on_the_device(plan):
    argv = plan["variables"]["llama_server_argv"]
    assert argv[argv.index("--n-gpu-layers") + 1] != "0"
    assert "exps" in argv[argv.index("--override-tensor") + 1]
    assert plan["variables"]["llama_cpp_identity"]["toolchains"].keys() == {"vulkan"}


def test_the_server_has_loaded_the_backend_and_only_the_driver_that_is_meant(provisioned):
    maps = on(HOST, "cat /proc/$(systemctl show --property=MainPID --value llama-server-main)/maps")
    assert {"libggml-vulkan.so", "libvulkan_lvp.so"} <= {line.rsplit("/", 1)[-1] for line in maps.splitlines()}
    assert "libvulkan_radeon.so" not in maps


def test_what_the_driver_compiled_is_kept_for_the_next_start(provisioned):
    assert on(HOST, "find /var/cache/llama-server-main -type f")


def test_the_unit_stays_hardened(provisioned):
    said = on(HOST, "systemd-analyze security llama-server-main.service --no-pager | tail -1")
    assert float(re.search(r"exposure level for \S+: ([\d.]+)", said)[1]) <= 3.5


def test_the_device_computes_the_same_first_tokens_as_the_cpu(plan, inventory):
    """At temperature 0, against the same release told to leave the device alone."""
    weights = plan["variables"]["llama_server_argv"][plan["variables"]["llama_server_argv"].index("--model") + 1]
    here = json.loads(
        on(HOST, "python3 -", stdin=ASK.format(key=KEY, port=plan["variables"]["llama_server_port"], tokens=TOKENS))
    )
    on(
        HOST,
        f"systemd-run -q --unit=cpu-run -p RuntimeMaxSec=300 /opt/bigiron/current/bin/llama-server --device none --model {weights} "
        f"--port {PORT} --ctx-size 1024 --parallel 1 --api-key-file {KEY} --offline",
    )
    try:
        there = json.loads(on(HOST, "python3 -", stdin=ASK.format(key=KEY, port=PORT, tokens=TOKENS)))
    finally:
        on(HOST, "systemctl stop cpu-run", check=False)
    assert len(here) == TOKENS
    assert here == there


def test_the_verdict_is_ok_and_a_second_run_changes_nothing(provisioned, inventory):
    assert inv("verify", "--host", HOST, "--inventory", inventory, "--json").document[0]["ok"] is True
    done = inv("provision", "--host", HOST, "--inventory", inventory)
    assert done.code == 0, done
    assert f"{HOST}: in sync" in done.out
