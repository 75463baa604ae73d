"""The coordinator: order, failures that block only what needs them, retries, and other coordinators."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.core.spec import Plain, digest
from leakscope.experiments.job import Job, Named
from leakscope.runners.estimate import Experience
from leakscope.runners.events import Event, EventLog, read_events
from leakscope.runners.guess import guessed
from leakscope.runners.live import Board
from leakscope.runners.runner import Outcome, Progress
from leakscope.runners.schedule import Limits, Schedule, run_jobs
from leakscope.store import Store


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Durability is the store's own test; here hundreds of entries are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        yield


def job(name: str, *needs: Job, stage: Any = "target", work: float = 1.0) -> Job:
    key = digest(name)
    named = Named("d", "m", "all", "c", name, 0)
    return Job(stage, key, ((f"{stage}s", key),), tuple(need.id for need in needs), {}, {}, named, work)


class Scripted:
    """Puts what a job makes into the store, unless told that it fails."""

    def __init__(self, store: Store, failing: dict[str, Outcome] | None = None, capacity: int = 2) -> None:
        self.capacity, self._store, self._failing = capacity, store, failing or {}
        self._todo: list[Plain] = []
        self.order: list[str] = []

    def submit(self, jobs: list[Plain]) -> None:
        self._todo += jobs
        assert len(self._todo) <= self.capacity

    def wait(self, seconds: float) -> list[Outcome | Progress]:
        del seconds
        done = Job.from_json(json.loads(json.dumps(self._todo.pop(0))))
        self.order.append(done.id)
        if done.id in self._failing:
            return [self._failing[done.id]]
        for kind, key in done.makes:
            self._store.put(kind, key, {})
        return [Outcome(done.id, seconds=2.0 * done.work, memory=100)]

    def cancel(self, job: str) -> None:
        raise AssertionError(job)

    def close(self) -> None:
        pass


@settings(max_examples=25)
@given(
    links=st.lists(st.sets(st.integers(0, 12), max_size=3), min_size=1, max_size=12),
    workers=st.integers(1, 4),
    data=st.data(),
)
def test_needs_come_first_and_nothing_runs_twice(
    links: list[set[int]], workers: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    jobs: list[Job] = []
    for number, wanted in enumerate(links):
        jobs.append(job(f"{number}", *(jobs[index] for index in sorted(wanted) if index < number)))
    failing = data.draw(st.sets(st.sampled_from([each.id for each in jobs]), max_size=2))
    runner = Scripted(store, {name: Outcome(name, "broken") for name in failing}, workers)
    counts = run_jobs(Schedule.of(jobs, store), runner, store)
    places = {name: place for place, name in enumerate(runner.order)}
    assert len(places) == len(runner.order)
    doomed: set[str] = set()
    for each in jobs:
        if each.id in failing or doomed & set(each.needs):
            doomed.add(each.id)
        else:
            assert all(places[need] < places[each.id] for need in each.needs)
    assert counts.get("done", 0) == len(jobs) - len(doomed)
    assert counts.get("failed", 0) + counts.get("blocked", 0) == len(doomed)


def test_a_failure_is_recorded_kept_and_retried_when_asked(tmp_path: Path) -> None:
    store = Store(tmp_path)
    target, other = job("a"), job("b")
    attack = job("attack", target, stage="attack")
    jobs = [target, other, attack]
    bad = Outcome(target.id, "ValueError: no", "Traceback …\nValueError: no")
    run_jobs(Schedule.of(jobs, store), Scripted(store, {target.id: bad}), store)
    record = store.find(target.key).record
    assert record["error"] == "ValueError: no"
    assert record["traceback"].startswith("Traceback")
    again = Scripted(store)
    assert run_jobs(Schedule.of(jobs, store), again, store) == {"failed": 1, "blocked": 1, "done": 1}
    assert again.order == [], "failed jobs wait until they are asked for"
    assert run_jobs(Schedule.of(jobs, store, retry=True), again, store) == {"done": 3}
    assert store.get("failure", target.key) is None


def test_what_is_in_the_store_is_done_whatever_became_of_its_process(tmp_path: Path) -> None:
    store = Store(tmp_path)
    late = job("late")
    schedule = Schedule.of([late], store)
    store.put(*late.makes[0], {})
    assert run_jobs(schedule, Scripted(store, {late.id: Outcome(late.id, "killed")}), store) == {"done": 1}


def test_preparation_for_finished_attacks_is_not_repeated(tmp_path: Path) -> None:
    store = Store(tmp_path)
    prepare = job("prepare", stage="prepare")
    attack = job("attack", prepare, stage="attack")
    store.put(*attack.makes[0], {})
    assert Schedule.of([prepare, attack], store).counts == {"unneeded": 1, "done": 1}


def made(name: str, stage: Any, kinds: tuple[str, ...], *needs: Job) -> Job:
    """A job that makes several things, the last of which is what reports read."""
    return replace(job(name, *needs, stage=stage), makes=tuple((kind, digest([name, kind])) for kind in kinds))


def test_scores_are_enough_and_weights_of_finished_attacks_are_not_trained_again(tmp_path: Path) -> None:
    """A store that scores came to alone: neither weights, nor what was learnt, nor reconstructions are there."""
    store = Store(tmp_path)
    judge = made("judge", "judge", ("judge",))
    target = made("target", "target", ("trained", "target"))
    prepare = made("prepare", "prepare", ("prepared",), target)
    attack = made("attack", "attack", ("attack", "result"), target, prepare, judge)
    facts = made("facts", "facts", ("bound", "blocks"), attack)
    jobs = [judge, target, prepare, attack, facts]
    for own in (target, attack, facts):
        for kind, key in own.makes:
            if kind not in {"trained", "attack"}:
                store.put(kind, key, {})
    schedule = Schedule.of(jobs, store)
    assert schedule.states == {
        judge.id: "unneeded", target.id: "unneeded", prepare.id: "unneeded", attack.id: "done", facts.id: "done",
    }  # fmt: skip
    assert schedule.finished
    # Another attack on it needs the weights and the judge, and is the only one that runs.
    other = made("other", "attack", ("attack", "result"), target, judge)
    runner = Scripted(store)
    counts = run_jobs(Schedule.of([*jobs, other], store), runner, store)
    assert set(runner.order) == {judge.id, target.id, other.id}
    assert runner.order[-1] == other.id
    assert counts == {"done": 5, "unneeded": 1}
    assert attack.done(store)


def test_a_target_without_its_record_is_not_spared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    target = made("target", "target", ("trained", "target"))
    store.put(*target.makes[0], {})
    assert Schedule.of([target], store).counts == {"waiting": 1}
    facts = made("facts", "facts", ("bound", "blocks"))
    store.put(*facts.makes[0], {})
    assert Schedule.of([facts], store).counts == {"waiting": 1}


def test_a_full_disk_stops_the_grid_and_keeps_what_is_done(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second, third = job("1"), job("2"), job("3")
    full = Outcome(second.id, "OSError", errno=errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        run_jobs(Schedule.of([first, second, third], store), Scripted(store, {second.id: full}, 1), store)
    assert Schedule.of([first, second, third], store).counts == {"done": 1, "waiting": 2}


def test_no_job_starts_after_the_budget(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert run_jobs(Schedule.of([job("1")], store), Scripted(store), store, limits=Limits(until=0.0)) == {"waiting": 1}


def test_estimates_are_learnt_from_events(tmp_path: Path) -> None:
    store = Store(tmp_path)
    jobs = [job("a", work=3.0), job("b", work=5.0)]
    run_jobs(Schedule.of(jobs, store), Scripted(store), store, [EventLog(tmp_path)])
    with next((tmp_path / "events").glob("*.jsonl")).open("a") as file:
        file.write('{"event": "do')  # a crash in the middle of a line
    experience = Experience(read_events(tmp_path))
    twin = experience.of(job("a", work=10.0))
    assert twin.seconds == pytest.approx(20.0)
    assert twin.memory == 100
    assert not twin.rough
    # An attack was never run: it is guessed, at the pace at which the first jobs differed from their guess.
    strange = job("x", stage="attack")
    guess = experience.of(strange)
    assert guess.rough
    assert guess.seconds == pytest.approx(guessed(strange) * 16.0 / (guessed(jobs[0]) + guessed(jobs[1])))
    assert strange.id not in experience.seconds([strange])


def test_time_left_is_told_from_the_first_job_on(tmp_path: Path) -> None:
    store = Store(tmp_path)
    jobs = [job("a"), job("b", stage="attack")]
    schedule = Schedule.of(jobs, store)
    board = Board(schedule, workers=1)
    assert board.seconds_left() == pytest.approx(guessed(jobs[0]) + guessed(jobs[1]))
    board.tell(Event("start", job=jobs[0].id, title="a"))
    schedule.finish(jobs[0].id)
    board.tell(Event("done", job=jobs[0].id, stage="target", seconds=10 * guessed(jobs[0])))
    assert board.seconds_left() == pytest.approx(10 * guessed(jobs[1]))


def test_long_jobs_start_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    jobs = [job("short"), job("long")]
    runner = Scripted(store, capacity=1)
    run_jobs(Schedule.of(jobs, store, {jobs[0].id: 1.0, jobs[1].id: 9.0}), runner, store)
    assert runner.order == [jobs[1].id, jobs[0].id]


def test_what_begins_the_longest_chain_starts_first(tmp_path: Path) -> None:
    """A short job that long ones wait for goes before a longer one that nothing waits for."""
    store = Store(tmp_path)
    alone, first = job("alone"), job("first")
    then = job("then", first, stage="prepare")
    last = job("last", then, stage="attack")
    jobs = [alone, first, then, last]
    runner = Scripted(store, capacity=1)
    run_jobs(Schedule.of(jobs, store, {alone.id: 6.0, first.id: 1.0, then.id: 4.0, last.id: 4.0}), runner, store)
    assert runner.order == [first.id, then.id, alone.id, last.id]
