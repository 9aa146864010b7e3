"""Who may open a GPU's nodes, and what the service user must be for it."""

from pathlib import Path

import pytest

from bigiron.onhost.kinds import user
from bigiron.parts import planner
from bigiron.parts.difference import diff
from bigiron.plan import devices
from bigiron.plan.build_options import Access, Toolchain
from fixtures.hostfacts import as_planned, fact
from fixtures.hostroot import look, plant


def node(group: str, mode: str = "0660") -> dict[str, str]:
    return {"type": "character", "owner": "root", "group": group, "mode": mode}


def test_the_group_is_the_nodes_own() -> None:
    seen = {"devices": {"/dev/kfd": node("video"), "/dev/dri/renderD128": node("render"), "/dev/nvidia0": node("root", "0666")}}
    assert devices.owners(seen, ["/dev/kfd", "/dev/dri/renderD*"]) == (("render", "video"), ())
    assert devices.owners(seen, ["/dev/nvidia*"]) == ((), ())


@pytest.mark.parametrize(
    ("have", "says"),
    [
        (node("root", "0600"), "no group of its own"),
        (node("disk"), "no group of its own"),
        (node("render", "0640"), "no group of its own"),
        (node("109"), "groupadd --system --gid 109"),
        ({"error": "Permission denied"}, "cannot be looked at"),
    ],
)
def test_a_node_that_no_group_opens_is_told(have: dict[str, str], says: str) -> None:
    found = devices.owners({"devices": {"/dev/kfd": have}}, ["/dev/kfd"])
    assert found.groups == ()
    assert says in found.problems[0]


def test_nodes_and_groups_are_looked_at(tmp_path: Path) -> None:
    plant(tmp_path, {"dev/dri/renderD128": "", "dev/dri/card0": "", "etc/group": "render:x:105:llama\nvideo:x:44:\n"})
    found = look(tmp_path, device=["/dev/dri/renderD*", "/dev/kfd"], group=["render", "nosuch"])
    assert list(found["devices"]) == ["/dev/dri/renderD128"]
    assert found["groups"] == {"render": {"gid": 105}}


@pytest.fixture
def gpu_host(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Toolchain("other", "1", access=Access(groups=("render", "video")))
    real = planner.equipped
    monkeypatch.setattr(planner, "equipped", lambda one: planner.replace(real(one), toolchains=(tool,)))


@pytest.mark.usefixtures("gpu_host")
def test_a_group_that_does_not_exist_is_refused_before_a_unit_names_it() -> None:
    plan = planner.plan_hosts([fact(observed={"groups": {"video": {"gid": 44}}})], [])["a"]
    assert isinstance(plan, planner.HostPlan)
    (refusal,) = plan.planned.refusals
    assert "the group render" in refusal.what
    assert plan.variables["base_user_groups"] == ["render", "video"]


@pytest.mark.usefixtures("gpu_host")
def test_a_user_outside_the_groups_is_a_difference_and_one_in_more_is_none() -> None:
    groups = {name: {"gid": 1} for name in ("render", "video")}
    plan = planner.plan_hosts([fact(observed={"groups": groups})], [])["a"]
    assert isinstance(plan, planner.HostPlan)
    have = as_planned(plan)
    have["users"]["llama"]["groups"] = ["audio", "video"]
    assert [each.problem for each in diff(plan.planned.resources, have) if each.resource == "user:llama"] == [
        "is not in render"
    ]
    assert not list(user.differs("llama", {"groups": ["llama"]}, {"group": "llama", "groups": []}))
