"""A start of a launch that trained here before, or of another one; a machine that is gone."""

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed import TCPStore

from hf_efficient.errors import OutputError
from hf_efficient.launch import output, restart
from hf_efficient.launch import started as identity
from hf_efficient.launch.output import plan_output, write_resolved_recipe
from hf_efficient.launch.restart import SILENT_SECONDS, PeerWatch, Silence, meet_anew
from hf_efficient.launch.started import Launch, own_agent
from hf_efficient.recipe.load import load_recipe

LAUNCH = Launch(("one/7/1.00", "two/8/2.00"), is_restart=True)
REPLACED = Launch(("three/9/3.00", "two/8/2.00"), is_restart=False)  # machine one was, and counts anew
ANOTHER = Launch(("one/7/9.00",), is_restart=False)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch):
    """A checkpoint is whole where it is not empty."""
    monkeypatch.setattr(restart, "_begun", set())
    monkeypatch.setattr(output, "fault_of", lambda path: None if any(path.iterdir()) else "it is empty")
    return lambda how="refuse", *more: load_recipe(
        "quickstart/lora", [f"output_dir={tmp_path / 'out'}", f"existing_output={how}", *more]
    )


@pytest.fixture
def trained(tmp_path, recipe):
    """What a launch left; the last checkpoint is not whole."""
    out = tmp_path / "out"
    for step in (4, 8, 12):
        (out / f"checkpoint-{step}").mkdir(parents=True)
    for step in (4, 8):
        (out / f"checkpoint-{step}/trainer_state.json").touch()
    write_resolved_recipe(out, recipe(), {}, LAUNCH.agents)
    return out


@pytest.mark.parametrize("how", ["refuse", "overwrite", "resume"])
@pytest.mark.parametrize("launch", [LAUNCH, REPLACED])
def test_a_restart_goes_on_whatever_the_recipe_says_of_other_runs(recipe, trained, how, launch):
    plan = plan_output(recipe(how), launch)
    assert (plan.checkpoint, plan.replaces, plan.continues) == (trained / "checkpoint-8", False, True)
    again = "the launcher started the processes again; checkpoint-12 is passed over: it is empty"
    assert plan.remark.startswith(again)
    assert plan.agents == launch.agents


def test_other_launches_do_not_go_on_with_it(recipe, trained):
    """A restart that failed before it cleared the old run, and the second launch of a notebook's kernel."""
    plan = plan_output(recipe("overwrite"), Launch(ANOTHER.agents, is_restart=True))
    assert (plan.checkpoint, plan.replaces, plan.continues) == (None, True, False)
    first = Launch(LAUNCH.agents, is_first=True)
    with pytest.raises(OutputError, match="already holds a run"):
        plan_output(recipe(), first)
    assert plan_output(recipe("overwrite"), first).replaces


def test_a_restart_of_a_run_that_was_begun_from_a_named_checkpoint(recipe, trained, tmp_path):
    named = tmp_path / "other" / "checkpoint-2"
    named.mkdir(parents=True)
    (named / "weights").touch()
    begun = recipe("refuse", f"train.resume_from_checkpoint={named}")
    assert plan_output(begun, LAUNCH).checkpoint == trained / "checkpoint-8"
    for step in (4, 8):
        (trained / f"checkpoint-{step}" / "trainer_state.json").unlink()
    assert plan_output(begun, LAUNCH).checkpoint == named


def test_an_agent_is_the_same_after_the_clock_was_set(monkeypatch):
    """psutil adds the time of the boot, which moves with the clock, to what the process began after it."""
    for boot in (1000.0, 4600.0):
        process = SimpleNamespace(pid=7, create_time=lambda boot=boot: boot + 50.25)
        monkeypatch.setattr(identity.psutil, "boot_time", lambda boot=boot: boot)
        monkeypatch.setattr(identity.psutil, "Process", lambda pid, process=process: process)
        assert own_agent({"TORCHELASTIC_RUN_ID": "none"}) == f"{socket.gethostname()}/7/50.25"


@pytest.mark.parametrize(("counts", "begun", "nodes", "is_restart", "is_first"), [
    ((0, 0), False, 1, False, True), ((1, 1), False, 1, True, False), ((1, 1), True, 1, False, True),
    ((0, 0), False, 2, False, False),  # for the sake of a machine that was replaced
    ((0, 1), False, 2, True, False), ((0, 0), True, 2, False, True),
])  # fmt: skip
def test_what_the_processes_tell_makes_a_launch(counts, begun, nodes, is_restart, is_first):
    told = [(f"agent {rank * nodes // 2}", count, begun) for rank, count in enumerate(counts)]
    assert restart._launch(told, nodes) == Launch(("agent 0", "agent 1")[:nodes], is_restart, is_first)


def agreed(monkeypatch, recipe, *others, sleep=None):
    """What rank 0 makes of it, while the others say this after it."""
    said = iter(others)
    monkeypatch.setattr(restart.time, "sleep", sleep or pytest.fail)
    monkeypatch.setattr(restart, "from_all", lambda mine, world_size: [mine, *next(said, [None])])
    environment = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    return restart.agreed_output(recipe, SimpleNamespace(world_size=2, process_index=0), environment)


def test_a_script_that_trains_twice_in_one_directory(monkeypatch, recipe, trained):
    """On two machines, where nothing else tells that it is no restart."""
    name = str(own_agent({"TORCHELASTIC_RUN_ID": "none"}))
    write_resolved_recipe(trained, recipe(), {}, [name])
    same = [[("two/8/2.00", 0, False)], [("two", "from checkpoint-8")]]
    assert agreed(monkeypatch, recipe(), *same).checkpoint == trained / "checkpoint-8"
    with pytest.raises(OutputError, match="already holds a run"):
        agreed(monkeypatch, recipe(), [("two/8/2.00", 0, True)], [("two", None)])


@pytest.mark.parametrize(("restarts", "seconds"), [(0, 0), (1, 60)])
def test_machines_that_do_not_see_the_same_checkpoints(monkeypatch, recipe, trained, restarts, seconds):
    """At a restart it takes what an NFS may hide for so long."""
    others = [[("two/8/2.00", restarts, False)], *[[("two", "from the first step")]] * 13]
    waited = []
    with pytest.raises(OutputError, match=r"starts from checkpoint-8 on .*, and from the first step on two: it must"):
        agreed(monkeypatch, recipe("resume"), *others, sleep=waited.append)
    assert sum(waited) == seconds


def test_a_checkpoint_that_a_machine_sees_late(monkeypatch, recipe, trained):
    others = [[("two", start)] for start in ("from checkpoint-4", "from checkpoint-4", "from checkpoint-8")]
    waited = []
    plan = agreed(monkeypatch, recipe(), [("two/8/2.00", 1, False)], *others, sleep=waited.append)
    assert plan.checkpoint == trained / "checkpoint-8"
    assert waited == [5, 5]


def test_restarts_that_nothing_makes():
    of_two = {"TORCHELASTIC_MAX_RESTARTS": "2"}
    left = [restart.starts_again({**of_two, "TORCHELASTIC_RESTART_COUNT": str(count)}) for count in range(3)]
    assert (left, restart.starts_again({})) == ([True, True, False], False)
    one = load_recipe("quickstart/lora", ["distributed.max_restarts=2"])
    assert restart.restarts_remark(one, {}) == (
        "command line: distributed.max_restarts=2: distributed.max_restarts: has no effect, because nothing starts "
        "this process again: accelerate launches one process alone without torch's agent. Start with `hf-efficient "
        "train`, which does."
    )
    assert restart.restarts_remark(one, {"HF_EFFICIENT_STATUS_FILE": "x"}) is None
    assert restart.restarts_remark(one, {"TORCHELASTIC_RUN_ID": "none"}) is None  # DeepSpeed's one process has it too
    assert restart.restarts_remark(load_recipe("quickstart/lora", []), {}) is None


def test_processes_of_a_restart_meet_in_another_store():
    kept = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    kept.set("address/of/a/process/that/is/gone", "x")
    started = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(kept.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    started |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    first = {**started, "RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0"}
    meet_anew(first)
    assert first["MASTER_PORT"] == started["MASTER_PORT"]
    ranks = [{**started, "RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": "1"} for rank in (0, 1)]
    for rank in ranks:
        meet_anew(rank)
        assert rank["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    port = int(ranks[0]["MASTER_PORT"])
    assert port == int(ranks[1]["MASTER_PORT"]) != kept.port
    found = TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
    assert not found.check(["address/of/a/process/that/is/gone"])


def test_rank_0_opens_the_store_that_its_agent_did_not():
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    started = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    for rank in ("0", "1"):
        meet_anew({**started, "RANK": rank, "TORCHELASTIC_RUN_ID": "none"})
    again = TCPStore("127.0.0.1", port, None, True, wait_for_workers=False, multi_tenant=True)  # as torch does
    again.set("key", "value")


class Shelf(dict):
    """What ``TCPStore`` does, without a server."""

    def set(self, key, value):
        self[key] = value.encode()

    def get(self, key, default=None):
        return self[key]

    def check(self, keys):
        return all(key in self for key in keys)


@pytest.fixture
def now():
    """The time, in a list of one."""
    return [100.0]


@pytest.fixture
def machines(now):
    """Starts the watch of machine 0 or 1 of two."""
    shelf = Shelf()
    return lambda node: PeerWatch(shelf, node, 2, lambda: now[0])


def test_a_machine_that_no_longer_counts_is_named(monkeypatch, machines, now):
    monkeypatch.setattr("socket.gethostname", lambda: "beta")
    one, two = machines(0), machines(1)
    two.beat()
    one.beat()
    now[0] += SILENT_SECONDS
    one.beat()  # just long enough
    now[0] += 1
    with pytest.raises(Silence, match=r"machine 1 \(beta\) has not been heard of for 21 s"):
        one.beat()


def test_the_store_stays_until_all_others_have_ended():
    looks, shelf = [], Shelf()

    def now():
        looks.append(1)
        if len(looks) == 4:
            two.done()
        return 0.1 * len(looks)

    two = PeerWatch(shelf, 1, 3)
    one = PeerWatch(shelf, 0, 3, now)  # the third never began
    one.done()
    one.see_off(100.0, look_every=0.0)
    assert len(looks) == 4
    PeerWatch(shelf, 2, 3)
    one.see_off(0.5, look_every=0.0)  # but not for ever
    assert len(looks) > 5


def test_a_machine_that_has_not_begun_or_is_done_is_not_missed(machines, now):
    one, two = machines(0), machines(1)
    one.beat()
    now[0] += 1000
    two.beat()
    one.beat()
    two.done()
    two.beat()  # one under way when it ended
    now[0] += 1000
    one.beat()


def test_what_an_earlier_start_has_counted_is_not_taken_for_silence(machines, now):
    machines(1).beat()
    one = machines(0)  # both were started again, and machine 1 still imports
    now[0] += 1000
    one.beat()
    two = machines(1)
    one.beat()
    now[0] += SILENT_SECONDS + 1
    with pytest.raises(Silence, match="machine 1"):
        one.beat()
    two.beat()
    one.beat()


TWO = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize("environment", [{}, TWO, {**TWO, "WORLD_SIZE": "4", "LOCAL_RANK": "1"}])
def test_nobody_is_watched_on_one_machine_or_by_a_second_process(environment):
    restart.watch_peers(environment, pytest.fail)()
