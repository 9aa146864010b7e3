"""The host itself, the service account, and the folders and files that provision made."""

import hashlib

from bigiron.judge.checks import cannot_tell, check

PRIVILEGED = {"root", "sudo", "wheel", "admin", "adm", "docker", "lxd", "disk", "shadow", "kmem", "libvirt"}


def directories(plan):
    return {entry["path"]: entry for entry in plan["base_directories"]}


def owned(plan):
    """The folders whose owner and mode are not a person's to choose."""
    return {path: entry for path, entry in directories(plan).items() if not entry.get("keep")}


def files(plan):
    return {entry["path"]: entry for entry in plan.get("base_files", [])}


def groups(plan):
    return {name: name for name in plan.get("base_user_groups", [])}


def held(plan):
    return {name: name for name in plan.get("base_held_packages", [])}


def repositories(plan):
    return {entry["name"]: entry for entry in plan.get("base_repositories", [])}


def look(plan):
    """What the collector is to look at on the host."""
    commands = {"held packages": ["apt-mark", "showhold"]} if held(plan) else {}
    if repositories(plan):
        commands["repositories"] = ["apt-cache", "policy"]
    paths = [*directories(plan), *files(plan)]
    return {"user": plan["base_user"], "paths": paths, "digests": [*files(plan)], "commands": commands}


def lock(plan):
    return f"on {plan.host}: usermod --lock --shell /usr/sbin/nologin {plan['base_user']}"


def assert_is(kind, path, found, note):
    assert not found.absent("paths", path), f"{path} does not exist"
    note(f"{path} is a {found['paths'][path]['type']}")
    assert found["paths"][path]["type"] == kind


def assert_owner(path, planned, found, note):
    status = found["paths"][path]
    owner = f"{status['owner']}:{status['group']}"
    note(f"{path} belongs to {owner}, planned {planned}")
    assert owner == planned


def assert_mode(path, planned, found, note):
    mode = found["paths"][path]["mode"]
    note(f"{path} has mode {mode}, planned {planned}")
    assert int(mode, 8) == int(planned, 8)


@check("host.root", "let {host} be reached as root, or as a user with sudo (ansible_become, ansible_become_password)")
def test_looked_at_as_root(found):
    uid = found["host"]["euid"]
    if uid != 0:
        cannot_tell(f"needs root, looked at as uid {uid}: what only root may read stays open")


@check("host.systemd", "{host} must have been booted with systemd; a chroot or a plain container was not")
def test_booted_with_systemd(found, note):
    note(f"PID 1 is {found['host']['init']}, and it answers")
    assert found["show"]["LoadState"]


@check("user.exists")
def test_account_exists(plan, found, note):
    user = plan["base_user"]
    assert not found.absent("user"), f"the user {user} does not exist (a unit with it dies with 217/USER)"
    note(f"{user} is uid {found['user']['uid']}")


@check("user.system", lambda plan: f"./inv teardown --host {plan.host}, then ./inv provision --host {plan.host}")
def test_account_is_a_system_account(found, note):
    user = found["user"]
    note(f"uid {user['uid']}; system accounts are 1 to {user['system_uid_max']}")
    assert 0 < user["uid"] <= user["system_uid_max"]


@check("user.shell", lock)
def test_account_has_no_login_shell(found, note):
    shell = found["user"]["shell"]
    note(f"its shell is {shell}")
    assert shell.endswith(("/nologin", "/false"))


@check("user.group")
def test_account_has_its_own_group(plan, found, note):
    group = found["user"]["group"]
    note(f"its primary group is {group}")
    assert group == plan["base_user"]


@check("user.unprivileged", lambda plan: f"on {plan.host}: gpasswd -d {plan['base_user']} GROUP")
def test_account_is_in_no_privileged_group(found):
    extra = sorted(set(found["user"]["groups"]) & PRIVILEGED)
    assert not extra, f"it is in {', '.join(extra)}"


@check("user.groups", "./inv provision --host {host}; a service that runs sees it after its restart", group=groups)
def test_account_is_in_the_groups_of_the_devices(group, found, note):
    note(f"it is in {', '.join(found['user']['groups']) or 'no further group'}")
    assert group in found["user"]["groups"]


@check("package.held", "./inv provision --host {host}", package=held)
def test_package_is_held(package, found, note):
    names = found["commands"]["held packages"]["out"].split()
    note(f"apt-mark holds {', '.join(names) or 'nothing'}")
    assert package in names, f"{package} is not held: the next upgrade may change it"


@check("repository.read", "./inv provision --host {host}; it disables what lists the repository twice", repository=repositories)
def test_repository_is_one_that_apt_reads(repository, found, note):
    told = found["commands"]["repositories"]
    assert told["rc"] == 0, f"apt reads no repository at all: {told['out'].strip()[-300:]}"
    note(f"apt reads {repository['uri']}")
    assert repository["uri"].rstrip("/") in told["out"], f"apt does not read {repository['uri']}"


@check("user.locked", lock)
def test_password_is_locked(found):
    assert found["user"]["locked"], "it has a usable password"


@check("directory.type", directory=directories)
def test_directory_is_one(directory, found, note):
    assert_is("directory", directory["path"], found, note)


@check("directory.owner", directory=owned)
def test_directory_has_its_owner(directory, found, note):
    assert_owner(directory["path"], f"{directory['owner']}:{directory['group']}", found, note)


@check("directory.mode", directory=owned)
def test_directory_has_its_mode(directory, found, note):
    assert_mode(directory["path"], directory["mode"], found, note)


@check("file.type", file=files)
def test_file_is_one(file, found, note):
    assert_is("file", file["path"], found, note)


@check("file.owner", file=files)
def test_file_has_its_owner(file, found, note):
    assert_owner(file["path"], f"{file.get('owner', 'root')}:{file.get('group', 'root')}", found, note)


@check("file.mode", file=files)
def test_file_has_its_mode(file, found, note):
    assert_mode(file["path"], file.get("mode", "0644"), found, note)


@check("file.content", file=files)
def test_file_has_its_content(file, found, note):
    path = file["path"]
    assert not found.absent("digests", path), f"{path} does not exist"
    note(f"{path} has the planned content")
    assert found["digests"][path] == hashlib.sha256(file["content"].encode()).hexdigest(), (
        f"{path} differs from the planned content"
    )
