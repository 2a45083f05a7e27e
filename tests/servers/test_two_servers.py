"""An arm of two servers behind one port, in a real sweep: both are ready, both work, both count, and both end."""

from collections import Counter

from fake_study import cells, failed, starts

from serving_study.measure import sweep


def test_two_servers_share_a_load_and_count_together(study):
    done = sweep.run(study.plan([study.arm("one"), study.arm("two", replicas=2, tensor_parallel_size=1)], prompts=8))
    servers = {event["pid"]: event for event in study.events("server") if event["arm"] == "two"}
    assert len(servers) == 2 and len({event["port"] for event in servers.values()}) == 2
    probed = Counter(event["pid"] for event in study.events("probe") if event["pid"] in servers)
    streamed = Counter(event["pid"] for event in study.events("stream") if event["pid"] in servers)
    assert (
        all(count >= 2 for count in probed.values()) and len(probed) == 2
    )  # when they got ready, and when the load had ended
    assert max(streamed.values()) - min(streamed.values()) <= 1 and sum(streamed.values()) == 8 + 2
    cell = cells(done)["two", 2, 0]
    assert (cell["certificate"]["verdict"], failed(cell)) == ("pass", []) and cell["model"] == "fake"
    assert (
        cell["ranks"]["wanted"] == 2
        and cell["ranks"]["copies"] == 2
        and [row["name"] for row in cell["ranks"]["processes"]] == ["VLLM::Worker_TP0"] * 2
    )
    assert "front.py" not in " ".join(starts(done)["two"]["command"])
    logs = {file.name for file in done.store.folder.glob("*/arms/two/*.log")}
    assert logs == {"server.log", "server-2.log", "front.log"}
    study.assert_nothing_left()


def test_when_one_of_two_dies_the_arm_has_failed(study):
    done = sweep.run(
        study.plan([study.arm("two", replicas=2, fault="dies-after", after=2), study.arm("next")], prompts=8)
    )
    record = starts(done)["two"]
    assert (
        record["outcome"] == "failed" and "illegal memory access" in record["reason"] and len(record["lost_cells"]) <= 1
    )
    assert starts(done)["next"]["outcome"] == "ok"
    study.assert_nothing_left()


def test_one_that_does_not_start_takes_the_other_with_it(study):
    done = sweep.run(study.plan([study.arm("two", replicas=2, fault="oom", lives=1)]))
    assert starts(done)["two"]["reason"] == "out of memory: tried to allocate 270.00 MiB, 127.44 MiB free of 22.06 GiB"
    study.assert_nothing_left()
