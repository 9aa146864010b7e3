"""Role model against a small hub."""

import json

import pytest

pytestmark = pytest.mark.lab

REVISION = "0123456789abcdef0123456789abcdef01234567"
SENTINEL = "hf_sentinel0123456789"


def wanted(files, **more):
    listed = []
    for number in (1, 2):
        path, content = f"q/m-0000{number}-of-00002.gguf", bytes([number]) * 1_000_000
        digest = files.put(f"org/repo/resolve/{REVISION}/{path}", content)
        listed.append({"path": path, "size": len(content), "sha256": digest})
    return {
        "model_endpoint": files.url, "model_repo": "org/repo", "model_revision": REVISION, "model_files": listed,
        "model_entry": listed[0]["path"], "model_patience_s": 2, **more,
    }  # fmt: skip


FOLDER = f"/srv/models/org/repo/{REVISION}"


def test_check_then_converge_then_nothing_and_no_second_download(clean_host, files):
    before = clean_host.tree()
    variables = wanted(files)
    predicted = clean_host.run("model", check=True, **variables)
    assert (predicted.code, predicted.changed) == (0, ["Bring the model"]), predicted
    assert clean_host.tree() == before
    assert files.asked == []

    clean_host.converge("model", **variables)
    assert len(files.asked) == 2
    assert clean_host.sh(f"sha256sum {FOLDER}/q/*.gguf | cut -d' ' -f1").split() == [
        one["sha256"] for one in variables["model_files"]
    ]
    assert set(clean_host.sh(f"stat -c '%U:%G %a' {FOLDER}/q/* {FOLDER}/.bigiron.json").splitlines()) == {"root:root 644"}

    assert clean_host.removes("model").changed == []  # they may have taken days: only when told to
    clean_host.removes("model", model_remove=True)
    clean_host.sh("rmdir /run/bigiron")  # shared by all roles, so role base takes it
    assert clean_host.tree() == before


def test_disk_too_small_is_refused_before_the_first_byte(clean_host, files):
    refused = clean_host.run("model", **wanted(files, model_reserve_bytes=10**15))
    assert refused.code != 0
    assert "in reserve" in refused.failed[-1]
    assert files.asked == []
    assert clean_host.sh(f"ls {FOLDER} 2>/dev/null", check=False) == ""


def test_missing_shard_is_named_and_the_finished_one_stays_proved(clean_host, files):
    variables = wanted(files)
    second = files.folder / "org/repo/resolve" / REVISION / variables["model_files"][1]["path"]
    content = second.read_bytes()
    second.unlink()
    failed = clean_host.run("model", **variables)
    assert failed.code != 0
    assert "404" in failed.failed[-1]
    assert "00002-of-00002" in failed.failed[-1]
    second.write_bytes(content)
    asked = len(files.asked)
    assert clean_host.run("model", **variables).code == 0
    assert [path for path, _ in files.asked[asked:]] == [f"/org/repo/resolve/{REVISION}/q/m-00002-of-00002.gguf"]


def test_file_of_a_person_is_kept(clean_host, files):
    clean_host.sh(f"mkdir -p {FOLDER}/q; echo mine > {FOLDER}/q/m-00001-of-00002.gguf")
    failed = clean_host.run("model", **wanted(files))
    assert failed.code != 0
    assert "other content" in failed.failed[-1]
    assert clean_host.sh(f"cat {FOLDER}/q/m-00001-of-00002.gguf") == "mine\n"
    clean_host.sh("rm -r /srv/models")


def test_works_without_a_home(clean_host, files):
    done = clean_host.run("model", **wanted(files), arguments=["-e", json.dumps({"ansible_remote_tmp": "/tmp/.ansible"})])
    assert done.code == 0, done


def test_token_shows_up_nowhere(clean_host, files):
    variables = wanted(files, model_token=SENTINEL)
    variables["model_files"][1]["path"] = "q/not-there.gguf"  # a failure after which everything is printed
    failed = clean_host.run("model", **variables, arguments=["-vvvv"])
    assert failed.code != 0
    assert SENTINEL not in failed.output + failed.log
    assert all("Authorization" not in headers for _, headers in files.asked), "a token must not travel over plain HTTP"
    assert clean_host.sh(f"journalctl --no-pager 2>/dev/null | grep -c {SENTINEL}", check=False).strip() == "0"
