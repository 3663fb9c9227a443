"""What a reload may change: rules 2.8, 7.18 to 7.22, cases C147, C148, C150, C154, D20."""

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cleanerd.config.keys import BROKER_KEYS
from cleanerd.config.load import Configuration
from cleanerd.config.model import ClusterMetadata
from cleanerd.config.reload import CLEANER_KEYS, ReloadPlan, plan_reload
from cleanerd.config.settings import Scope
from cleanerd.errors import BadConfiguration
from tests.config.test_load import configured, kraft

Texts = Mapping[str, str]
SEVEN = {  # C150: a cluster-wide update of all seven keys
    "log.cleaner.threads": "2",
    "log.cleaner.dedupe.buffer.size": "20000000",
    "log.cleaner.io.buffer.load.factor": "0.8",
    "log.cleaner.io.buffer.size": "1000000",
    "log.cleaner.io.max.bytes.per.second": "50000000",
    "log.cleaner.backoff.ms": "6000",
}


def planned(old: Texts, new: Texts) -> ReloadPlan:
    return plan_reload(configured(old), configured(new))


def refusals(old: Configuration, new: Configuration) -> list[str]:
    with pytest.raises(BadConfiguration) as caught:
        plan_reload(old, new)
    return caught.value.problems


def test_nothing_changed_is_an_empty_plan() -> None:
    """Whatever is in force; another origin of the same value is no change."""
    for old, new in [({}, {}), (SEVEN, SEVEN), ({}, {"log.retention.hours": "168"})]:
        plan = planned(old, new)
        assert plan.is_empty
        assert (plan.touches("log.cleaner.io.max.bytes.per.second"), plan.needs_workers) == (False, False)


@given(st.integers(1, 60), st.integers(1, 60))
@example(3, 1)  # half of three is one
def test_d20_thread_count_at_most_doubles_and_at_least_halves(current: int, wanted: int) -> None:
    """Rule 7.19: Kafka's two comparisons, as they stand in its validation."""
    old, new = (configured({"log.cleaner.threads": str(threads)}) for threads in (current, wanted))
    if current // 2 <= wanted <= 2 * current:
        assert plan_reload(old, new).needs_workers == (current != wanted)
    else:
        (problem,) = refusals(old, new)
        bounds = f"expected {max(1, current // 2)} to {2 * current} while it is {current}"
        assert problem.startswith(f"log.cleaner.threads: {bounds}, found {wanted}")


def test_d20_is_for_numbers_that_somebody_chose() -> None:
    """Where cleanerd takes the machine's cores there is no number to double; choosing one is a change."""
    unset, set_to_8, set_to_1 = configured(), *(configured({"log.cleaner.threads": n}) for n in "81")
    assert plan_reload(unset, set_to_8).needs_workers
    assert plan_reload(set_to_8, unset).needs_workers
    (change,) = plan_reload(unset, set_to_1).changes
    assert str(change) == "log.cleaner.threads: 1 (default) -> 1 (command line: --set log.cleaner.threads)"


def test_d20_counts_that_the_cluster_accepted_are_adopted() -> None:
    """Several accepted steps may be seen as one; refusing it would also hold up every topic's changes."""
    counts = [configured(metadata=kraft(brokers={"": {"log.cleaner.threads": n}})) for n in ("1", "8")]
    assert plan_reload(*counts).new.broker.log_cleaner_threads == 8


def test_c150_all_seven_keys_apply_together() -> None:
    """DBRT.testLogCleanerConfig: one plan; workers start anew; a restart finds the same values."""
    before, after = configured(metadata=kraft()), configured(metadata=kraft(brokers={"": SEVEN}))
    plan = plan_reload(before, after)
    assert {change.key for change in plan.changes} == SEVEN.keys() == set(CLEANER_KEYS)
    assert plan.needs_workers
    assert plan.touches("log.cleaner.io.max.bytes.per.second")
    settings = plan.new.broker_settings
    assert [settings[key].value for key in SEVEN] == [
        BROKER_KEYS[key].type.parse(text) for key, text in SEVEN.items()
    ]
    assert configured(metadata=kraft(brokers={"": SEVEN})).broker == plan.new.broker


@pytest.mark.parametrize(
    "key", [*SEVEN, "cleanerd.io.max.read.bytes.per.second", "cleanerd.io.max.write.bytes.per.second"]
)
def test_c147_c148_c150_which_changes_start_the_workers_anew(key: str) -> None:
    """7.18: changing the back-off revives dead threads, as any of the others does."""
    plan = planned({}, {key: SEVEN.get(key, "20000000")})
    assert plan.touches(key)
    assert plan.needs_workers == (key in CLEANER_KEYS)


def test_c150_consecutive_changes_keep_topic_overrides() -> None:
    """DBRT.testConsecutiveConfigChange, 7.20: defaults change twice, an override survives both."""
    ratio, override = "log.cleaner.min.cleanable.ratio", {"t": {"min.cleanable.dirty.ratio": "0.3"}}
    first, second, third = (configured({ratio: text}, override) for text in ("0.5", "0.1", "0.9"))
    for old, new in ((first, second), (second, third)):
        plan = plan_reload(old, new)
        assert old.topic_settings("t") == new.topic_settings("t")
        assert new.topic("t").min_cleanable_dirty_ratio == 0.3
        assert not plan.topics
        before, after = old.topic_settings("other"), new.topic_settings("other")
        assert [key for key in after if before[key] != after[key]] == ["min.cleanable.dirty.ratio"]
    removed = plan_reload(third, configured({ratio: "0.9"}))
    assert [change.new.value for change in removed.topics["t"] if change.new] == [0.9]


def test_c154_static_keys_refuse_the_whole_update_by_name() -> None:
    """DBCT.testConfigUpdateWithSomeInvalidConfigs, 7.21: every one of them, and the refused thread count."""
    old = configured({"log.dirs": "/a", "log.cleaner.threads": "2"})
    new = configured(
        {
            "log.dirs": "/b",
            "log.cleaner.threads": "5",
            "log.cleaner.backoff.ms": "1",
            "log.retention.hours": "1",
            "cleanerd.state.dir": "/s",
        }
    )
    problems = refusals(old, new)
    static = ["cleanerd.state.dir", "log.dirs", "log.retention.hours"]
    assert [problem.split(":")[0] for problem in problems] == [*static, "log.cleaner.threads"]
    assert all("cannot be updated dynamically" in problem for problem in problems[:3])
    assert "found ('/b',) (command line: --set log.dirs)" in problems[1]


@pytest.mark.parametrize("name", [name for name, key in BROKER_KEYS.items() if key.scope is Scope.STATIC])
def test_c154_every_static_key_is_refused(name: str) -> None:
    """Also one that was not set and one that no longer is."""
    texts = {"boolean": "false", "paths": "/x", "string": "/x", "list": "x", "int": "7", "long": "7"}
    text = {"cleanerd.metrics.listen": "", "cleanerd.log.format": "json"}.get(name)
    other = configured({name: texts[BROKER_KEYS[name].type.value] if text is None else text})
    for old, new in ((configured(), other), (other, configured())):
        assert f"{name}: cannot be updated dynamically" in "\n".join(refusals(old, new))


@pytest.mark.parametrize(
    ("own_before", "own_after", "default", "is_removed"),
    [
        ("compact", "delete", ("delete", "delete"), True),
        ("compact,delete", "delete", ("delete", "delete"), True),
        ("compact", "", ("delete", "delete"), True),
        ("compact", None, ("delete", "delete"), True),  # the override is taken away
        (None, "delete", ("compact", "compact"), True),
        ("compact", None, ("compact", "compact"), False),
        ("delete", "compact", ("delete", "delete"), False),
        ("compact", "compact,delete", ("delete", "delete"), False),
        ("compact", "compact", ("compact", "delete"), False),
        (None, None, ("compact", "delete"), False),  # a changed default aborts nothing
    ],
)
def test_2_8_compact_removed_by_an_update_of_the_topic(
    own_before: str | None, own_after: str | None, default: tuple[str, str], is_removed: bool
) -> None:
    """Rule 2.8: their cleanings are aborted."""
    old, new = (
        configured(
            {"log.cleanup.policy": policy}, {"t": {} if own is None else {"cleanup.policy": own}, "u": {}}
        )
        for own, policy in zip((own_before, own_after), default, strict=True)
    )
    assert plan_reload(old, new).compact_removed == ({"t"} if is_removed else set())


def test_topics_come_and_go_with_the_metadata_log() -> None:
    """A removed topic takes its overrides along (F4); one created anew under its name has another id."""
    one, two, three = UUID(int=1), UUID(int=2), UUID(int=3)
    policy = {"cleanup.policy": "compact"}
    old = configured(metadata=kraft({"a": policy, "b": policy}, ids={"a": one, "b": two}))
    new = configured(metadata=kraft({"b": policy}, ids={"b": three}))
    plan = plan_reload(old, new)
    assert plan.topic_ids == {"a", "b"}
    assert plan.topics.keys() == plan.compact_removed == {"a"}
    assert not plan.is_empty
    assert plan_reload(new, new).is_empty


def test_a_vanished_metadata_log_is_refused() -> None:
    """Its topics would all fall back to the policy delete, and retention would eat compacted logs."""
    old = configured(metadata=kraft({"t": {"cleanup.policy": "compact"}}))
    (problem,) = refusals(old, configured())
    assert problem == "/m: expected the cluster's metadata log, found none"
    assert plan_reload(configured(), old).topics.keys() == {"t"}
    answer = ClusterMetadata({"t": None}, {"t": {"cleanup.policy": "compact"}}, {}, is_whole=False)
    assert refusals(old, configured(metadata=answer)) == [problem]


def test_an_answer_that_holds_no_longer_is_taken_back() -> None:
    """Its topics are left alone then; what was being compacted is stopped."""
    own = {"t": {"cleanup.policy": "compact"}}
    old = configured(metadata=ClusterMetadata({"t": UUID(int=1)}, own, {}, is_whole=False))
    plan = plan_reload(old, configured(metadata=ClusterMetadata({}, {}, {}, is_whole=False)))
    assert (plan.compact_removed, plan.topic_ids) == ({"t"}, {"t"})


def test_with_metadata_keeps_the_other_layers() -> None:
    """What the reload of the metadata log alone is made of."""
    override = {"t": {"retention.ms": "1"}}
    old = configured({"log.cleaner.backoff.ms": "7"}, override)
    new = old.with_metadata(kraft({"t": {"retention.ms": "2"}, "u": {"retention.ms": "3"}}))
    assert (new.broker, new.topic("t")) == (old.broker, old.topic("t"))
    assert new.topic("u").retention_ms == 3
    assert new.topics == {"t", "u"}
    with pytest.raises(BadConfiguration):
        old.with_metadata(kraft(brokers={"": {"log.cleaner.delete.retention.ms": "x"}}))


def test_a_value_of_one_topic_that_is_not_valid_changes_that_topic_alone() -> None:
    """Also where what holds instead is what held before: its logs have to be judged again."""
    old = configured(metadata=kraft({"t": {}, "u": {"retention.ms": "3"}}))
    bad = old.with_metadata(kraft({"t": {"retention.ms": "x"}, "u": {"retention.ms": "3"}}))
    assert plan_reload(old, bad).topics.keys() == plan_reload(bad, old).topics.keys() == {"t"}
