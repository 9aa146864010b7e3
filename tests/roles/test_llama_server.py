"""Role llama_server with a small server in the place of llama-server, under the real unit and the real systemd."""

import json

import pytest
from tests.conftest import UNTIL_8080_LISTENS

pytestmark = pytest.mark.lab

UNIT = "llama-server-main.service"
SENTINEL = "key-sentinel-0123456789"
SERVER = """#!/usr/bin/python3
import http.server, json, os, sys, time
if '--help' in sys.argv:
    options = ['--host A', '--port N', '--model F', '--api-key-file F', '--die', '--load-for-ever', *(f'--switch-{n}' for n in range(10))]
    print('\\n'.join(option + '  text' for option in options))
    sys.exit()
def option(name, default):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default
key = open(option('--api-key-file', '')).read().strip()
open(option('--model', '/dev/null')).close()
began = time.time()
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, code, document):
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if '--load-for-ever' in sys.argv or time.time() - began < 1.5:
            return self.answer(503, {'error': {'code': 503, 'message': 'Loading model'}})
        self.answer(200, {'status': 'ok'})
    def do_POST(self):
        self.rfile.read(int(self.headers['Content-Length']))
        if self.headers.get('Authorization') != 'Bearer ' + key:
            return self.answer(401, {'error': {'message': 'Invalid API Key'}})
        environment = ' '.join(sorted(os.environ))
        self.answer(200, {'content': environment, 'model': 'stub', 'timings': {
            'prompt_n': 5, 'predicted_n': 16, 'prompt_per_second': 50.0, 'predicted_per_second': 10.0}})
    def log_message(self, *words):
        pass
if '--die' in sys.argv:
    sys.exit('error loading model: stub says no')
http.server.HTTPServer((option('--host', '127.0.0.1'), int(option('--port', '8080'))), Handler).serve_forever()
"""


def wanted(*more_arguments, **more):
    argv = ["/opt/bigiron/current/bin/llama-server", "--port", "8080", "--api-key-file", f"/run/credentials/{UNIT}/api-key"]
    return {"llama_server_argv": [*argv, *more_arguments], "llama_server_start_timeout_s": 30, **more}


@pytest.fixture
def server_host(clean_host):
    """A host with the service user and a release that is the small server."""
    done = clean_host.run("base", base_packages=[])
    assert done.code == 0, done
    clean_host.sh(
        "mkdir -p /srv/models /opt/bigiron/releases/stubstub/bin; ln -sfn releases/stubstub /opt/bigiron/current; "
        f"cat >/opt/bigiron/current/bin/llama-server <<'END'\n{SERVER}END\nchmod 755 /opt/bigiron/current/bin/llama-server"
    )
    yield clean_host
    clean_host.sh(f"systemctl disable --now {UNIT} 2>/dev/null; rm -rf /etc/systemd/system/{UNIT}* /srv/models", check=False)


def started(host):
    return host.sh(f"systemctl show -p MainPID -p NRestarts {UNIT}")


def test_check_predicts_then_it_serves_then_nothing_changes(server_host):
    before = server_host.tree()
    predicted = server_host.run("llama_server", check=True, **wanted())
    assert predicted.code == 0, predicted
    assert {"Configure | Keep the API key", "Configure | Install the unit"} <= set(predicted.changed)
    assert server_host.tree() == before

    server_host.converge("llama_server", **wanted())
    assert server_host.sh("stat -c '%U %a' /etc/bigiron/credentials/main.key /etc/bigiron/credentials").split() == [
        "root",
        "600",
        "root",
        "700",
    ]
    assert len(server_host.sh("cat /etc/bigiron/credentials/main.key").strip()) >= 40
    assert server_host.sh(f"systemctl is-enabled {UNIT}").strip() == "enabled"


def test_process_older_than_what_it_depends_on_is_restarted(server_host):
    server_host.converge("llama_server", **wanted())
    for change in ("touch /etc/bigiron/credentials/main.key", "sleep 1; ln -sfn releases/stubstub /opt/bigiron/current"):
        before = started(server_host)
        server_host.sh(change)
        again = server_host.run("llama_server", **wanted())
        assert again.changed == ["Start | Read the unit, enable and start it"], again
        assert started(server_host) != before
    # a run that was killed between writing the unit and the restart
    before = started(server_host)
    server_host.sh(f"echo '# edited' >> /etc/systemd/system/{UNIT}")
    repaired = server_host.run("llama_server", **wanted())
    assert repaired.changed == ["Configure | Install the unit", "Start | Read the unit, enable and start it"], repaired
    assert started(server_host) != before


def test_given_key_is_used_rotated_and_shows_up_nowhere(server_host):
    assert server_host.run("llama_server", **wanted()).code == 0
    first = server_host.run("llama_server", arguments=["-vvvv"], **wanted(llama_server_api_key=SENTINEL))
    assert first.code == 0, first
    assert server_host.sh("cat /etc/bigiron/credentials/main.key").strip() == SENTINEL
    failed = server_host.run("llama_server", arguments=["-vvvv"], **wanted("--die", llama_server_api_key=SENTINEL))
    assert failed.code != 0
    for text in (first.output, first.log, failed.output, failed.log):
        assert SENTINEL not in text
    pattern = f"{SENTINEL[:-1]}[{SENTINEL[-1]}]"  # matches the key and not the command that looks for it
    seen = server_host.sh(
        f"grep -rl '{pattern}' /proc/[0-9]*/cmdline /proc/[0-9]*/environ /etc/systemd /tmp /root/.ansible 2>/dev/null; "
        f"journalctl --no-pager | grep '{pattern}'; systemctl show {UNIT} | grep '{pattern}'",
        check=False,
    )
    assert seen == "", seen


def serving(host, port=8080):
    """What the service answers on /health, its key read on the host."""
    return host.sh(
        f"python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:{port}/health\").status)'", check=False
    )


def on_disk(host):
    return host.sh(
        f"sha256sum /etc/systemd/system/{UNIT} /etc/bigiron/credentials/*; readlink /opt/bigiron/current; "
        f"systemctl show -p NeedDaemonReload -p UnitFileState {UNIT}"
    )


def test_first_start_that_fails_is_told_stopped_and_disabled(server_host):
    failed = server_host.run("llama_server", **wanted("--die"))
    assert failed.code != 0
    assert "stub says no" in failed.failed[-1], failed
    assert "nothing ran before, so the unit was stopped and disabled" in failed.failed[-1], failed
    shown = server_host.sh(f"systemctl show -p ActiveState -p SubState -p UnitFileState -p Job {UNIT}")
    assert "UnitFileState=disabled" in shown
    assert "ActiveState=inactive" in shown or "ActiveState=failed" in shown
    server_host.converge("llama_server", **wanted())
    assert serving(server_host).strip() == "200"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (wanted("--host", "203.0.113.9", llama_server_host="203.0.113.9"), "Cannot assign requested address"),
        (wanted("--model", "/srv/models/none.gguf"), "No such file or directory: '/srv/models/none.gguf'"),
        (wanted("--die", llama_server_api_key=SENTINEL), "stub says no"),
        (wanted("--load-for-ever", llama_server_start_timeout_s=3), "/health says 503: Loading model"),
        (wanted(llama_server_user="_apt"), "216/GROUP: a group of the unit does not exist"),
    ],
)
def test_service_that_runs_is_put_back_when_its_successor_does_not_become_ready(server_host, change, says):
    server_host.converge("llama_server", **wanted())
    before = on_disk(server_host)
    failed = server_host.run("llama_server", **change)
    assert failed.code != 0
    assert says in failed.failed[-1], failed
    assert "the previous service was put back and is ready on 127.0.0.1:8080" in failed.failed[-1], failed
    assert serving(server_host).strip() == "200"
    assert on_disk(server_host) == before
    again = server_host.run("llama_server", **wanted())
    assert (again.code, again.changed) == (0, []), again


def test_release_of_the_running_process_is_put_back(server_host):
    # a program of its own in the release, as the real one is: the kernel says which release a process runs
    server_host.sh(
        "cd /opt/bigiron/releases/stubstub/bin; cp $(readlink -f /usr/bin/python3) python3; "
        "sed -i '1s|.*|#!/opt/bigiron/releases/stubstub/bin/python3|' llama-server"
    )
    server_host.converge("llama_server", **wanted())
    before = on_disk(server_host)
    server_host.sh(
        "cd /opt/bigiron; cp -r releases/stubstub releases/broken; ln -sfn releases/broken current; "
        "sed -i 's/^def option/sys.exit(\"broken release\")\\n&/' current/bin/llama-server"
    )
    failed = server_host.run("llama_server", **wanted())
    assert "broken release" in failed.failed[-1], failed
    assert "is ready on 127.0.0.1:8080" in failed.failed[-1], failed
    assert serving(server_host).strip() == "200"
    assert on_disk(server_host) == before


def test_run_that_was_killed_before_the_successor_was_ready_is_ended_by_the_next(server_host):
    server_host.converge("llama_server", **wanted())
    before = on_disk(server_host)
    bad = wanted("--load-for-ever", llama_server_api_key=SENTINEL)
    first = server_host.sh(f"systemctl show -P MainPID {UNIT}").strip()
    restarted = f'test "$(systemctl show -P MainPID {UNIT})" != {first}'
    killed = server_host.run("llama_server", kill_when=restarted, **bad)
    assert killed.code == -9
    failed = server_host.run("llama_server", **{**bad, "llama_server_start_timeout_s": 3})
    assert "the previous service was put back and is ready" in failed.failed[-1], failed
    assert on_disk(server_host) == before
    server_host.run("llama_server", kill_when="test -e /etc/bigiron/credentials/main.previous", **bad)
    server_host.converge("llama_server", **wanted())
    assert serving(server_host).strip() == "200"


def test_taken_port_is_told(server_host):
    server_host.sh("nohup python3 -m http.server 8080 --bind 127.0.0.1 >/dev/null 2>&1 & echo $! >/run/holder")
    server_host.sh(UNTIL_8080_LISTENS)
    failed = server_host.run("llama_server", **wanted())
    server_host.sh("kill $(cat /run/holder); rm /run/holder")
    assert failed.code != 0
    assert "Address already in use" in failed.failed[-1], failed


def test_bad_drop_in_of_a_person_is_told_and_kept(server_host):
    server_host.converge("llama_server", **wanted())
    drop_in = f"/etc/systemd/system/{UNIT}.d/mine.conf"
    server_host.sh(f"mkdir -p {drop_in.rsplit('/', 1)[0]}; printf '[Service]\\nStartLimitFoo=3\\n' >{drop_in}")
    failed = server_host.run("llama_server", **wanted())
    assert failed.code != 0
    assert "StartLimitFoo" in failed.failed[-1], failed
    assert "StartLimitFoo" in server_host.sh(f"cat {drop_in}")


def test_drop_in_that_decides_what_runs_is_named_before_the_service_is_touched(server_host):
    server_host.converge("llama_server", **wanted())
    before = started(server_host) + on_disk(server_host)
    drop_in = f"/etc/systemd/system/{UNIT}.d/mine.conf"
    server_host.sh(
        f"mkdir -p {drop_in.rsplit('/', 1)[0]}; printf '[Service]\\nExecStart=\\nExecStart=/bin/sleep 600\\n' >{drop_in}"
    )
    failed = server_host.run("llama_server", **wanted("--switch-1"))
    assert failed.code != 0
    for words in (f"{drop_in} overrides ExecStart= of {UNIT}", f"rm {drop_in} && systemctl daemon-reload", "left alone"):
        assert words in failed.failed[-1], failed
    assert started(server_host) + on_disk(server_host) == before
    server_host.sh(f"printf '[Service]\\nNice=5\\n' >{drop_in}; touch {drop_in}")
    server_host.converge("llama_server", **wanted())
    assert started(server_host) not in before


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"llama_server_argv": ["llama-server"]}, "absolute program"),
        ({"llama_server_argv": ["/bin/x", "--api-key", "secret"]}, "--api-key"),
        (wanted(llama_server_user="nobody-there"), "nobody-there does not exist"),
        (wanted("--no-mmap"), "this build has no option --no-mmap"),
        (wanted("--die", "now"), "now belongs to no option"),
        (wanted(llama_server_api_key="two words"), "holds a space"),
    ],
)
def test_wrong_wish_is_refused_before_anything_is_touched(server_host, variables, says):
    refused = server_host.run("llama_server", **variables)
    assert refused.code != 0
    assert says in refused.failed[-1], refused
    assert "Configure | Install the unit" not in refused.changed


def test_environment_of_the_manager_does_not_reach_the_server(server_host):
    server_host.sh("systemctl set-environment LLAMA_API_KEY=stray LLAMA_ARG_CTX_SIZE=7")
    try:
        assert server_host.run("llama_server", **wanted()).code == 0
        pid = server_host.sh(f"systemctl show -P MainPID {UNIT}").strip()
        names = {entry.split("=")[0] for entry in server_host.sh(f"tr '\\0' '\\n' </proc/{pid}/environ").split()}
    finally:
        server_host.sh("systemctl unset-environment LLAMA_API_KEY LLAMA_ARG_CTX_SIZE")
    assert names == {"HOME", "LANG", "PATH"}, json.dumps(sorted(names))


def test_remove_takes_the_services_that_bigiron_wrote_and_no_other(server_host):
    before = server_host.tree()
    theirs = "/etc/systemd/system/llama-server-theirs.service"
    server_host.sh(f"printf '[Service]\nExecStart=/bin/sleep 9\n' >{theirs}")
    server_host.converge("llama_server", **wanted())
    server_host.sh(f"mkdir -p /etc/systemd/system/{UNIT}.d; touch /etc/systemd/system/{UNIT}.d/mine.conf")
    server_host.removes("llama_server")
    assert server_host.sh(f"systemctl is-active {UNIT}", check=False).strip() == "inactive"
    assert server_host.sh(f"ls {theirs}; rm {theirs}; rmdir /run/bigiron").strip() == theirs
    assert server_host.tree() == before
