#!/usr/bin/python
"""Ansible module: the service serves, see bigiron.onhost.serving."""

from __future__ import annotations

DOCUMENTATION = r"""
module: llama_ready
short_description: Wait until a llama.cpp server is ready, and have it complete one prompt
description:
  - Ready means that C(/health) answers 200 and the answering process is the unit's own.
  - A process that dies meanwhile is an error at once, with the reason and its last log lines.
options:
  unit: {type: str, required: true, description: "Unit name."}
  host: {type: str, default: 127.0.0.1, description: "Address the server listens on."}
  port: {type: int, required: true, description: "Port the server listens on."}
  key_file: {type: path, required: true, description: "File with the API key."}
  timeout_s: {type: int, default: 600, description: "Seconds until the model must be loaded."}
  weight_bytes: {type: int, default: 0, description: "Size of the weights, for the progress bar."}
  prompt: {type: str, default: "The capital of France is", description: "What to complete."}
  n_predict: {type: int, default: 16, description: "Tokens to generate."}
author: bigiron
"""
EXAMPLES = r"""
- name: Wait until the model answers
  bigiron.host.llama_ready:
    unit: llama-server-main.service
    port: 8080
    key_file: /etc/bigiron/credentials/main.key
"""
RETURN = r"""
seconds: {type: float, returned: success, description: "Seconds until it was ready."}
prefill_tps: {type: float, returned: success, description: "Prompt tokens per second."}
generation_tps: {type: float, returned: success, description: "Generated tokens per second."}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.errors import BigironError
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost import serving
from ansible_collections.bigiron.host.plugins.module_utils.bigiron.onhost.progress import Progress


def main():
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "required": True},
            "key_file": {"type": "path", "required": True, "no_log": False},
            "timeout_s": {"type": "int", "default": 600},
            "weight_bytes": {"type": "int", "default": 0},
            "prompt": {"type": "str", "default": "The capital of France is"},
            "n_predict": {"type": "int", "default": 16},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, msg="check mode: nothing was started that could be asked")
    wanted = module.params
    report = Progress("llama_server")

    def progress(waiting):
        report("loading the model", min(waiting.resident_bytes, wanted["weight_bytes"]), wanted["weight_bytes"], "bytes")

    try:
        key = serving.read_key(wanted["key_file"])
        secrets = (key,) if key else ()
        ready = serving.wait_ready(
            wanted["unit"], wanted["port"], wanted["host"], wanted["timeout_s"], progress=progress, secrets=secrets
        )
        answer = serving.complete(
            wanted["host"], wanted["port"], key, wanted["prompt"], wanted["n_predict"], wanted["timeout_s"]
        )
    except BigironError as error:
        module.fail_json(msg=str(error), hint=error.hint)
    finally:
        report.close()
    if not answer["generated_tokens"]:
        module.fail_json(msg=f"{wanted['unit']}: the completion is empty", hint=f"journalctl --unit {wanted['unit']}")
    module.exit_json(changed=False, seconds=round(ready.seconds, 1), **answer)


if __name__ == "__main__":
    main()
