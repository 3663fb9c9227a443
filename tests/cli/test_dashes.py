"""Topics whose names begin with a dash, which Kafka allows, wherever a topic, a log or a pattern is named."""

import pytest

from cleanerd.cli.ctl.parser import make_parser as ctl_parser
from cleanerd.cli.main import make_parser

COMMANDS = ("clean", "verify", "inspect", "forecast", "config show")
VERBS = (
    "log",
    "logs",
    "explain",
    "clean",
    "commit",
    "abort",
    "retry",
    "pause",
    "mute",
    "retention",
    "history",
    "forecast",
)


@pytest.mark.parametrize("name", ["-sales-eu", "--sales-eu", "-offsets", "-h-1", "-", "-1"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_topic_follows_its_option(command: str, name: str) -> None:
    found = make_parser().parse_args([*command.split(), "--topic", name, "-o", "json", "--topic", "other"])
    assert found.topic == [name, "other"]
    assert found.output == "json"


def test_the_key_of_a_topic() -> None:
    found = make_parser().parse_args(["clean", "--topic-set", "-sales-eu:cleanup.policy=compact", "--force"])
    assert found.topic_set == [("-sales-eu", "cleanup.policy", "compact")]
    assert found.force


@pytest.mark.parametrize("name", ["-sales-eu-0", "-offsets-0", "-orders*"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_log_is_an_argument_of_a_verb(verb: str, name: str) -> None:
    for words in ([verb, name, "-o", "json"], [verb, "-ojson", name], [verb, "-o=json", "--", name]):
        found = ctl_parser().parse_args(words)
        assert name in vars(found).values()
        assert found.output == "json"


def test_offsets_stay_in_their_place() -> None:
    found = ctl_parser().parse_args(["delete-records", "-sales-eu-0", "100", "--yes"])
    assert (found.topic_partition, found.offset, found.yes) == ("-sales-eu-0", 100, True)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["clean", "--forse", "orders"], "unknown option --forse; did you mean --force?"),
        (["clean", "-force", "orders"], "unknown option -force; did you mean --force?"),
        (["delete-records", "-yes", "orders-0", "100"], "unknown option -yes; did you mean --yes?"),
    ],
)
def test_what_looks_like_an_option_of_ours_is_none_of_these(
    words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        ctl_parser().parse_args(words)
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--force", "--dry-run"])
def test_an_option_is_not_taken_for_a_topic(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["clean", "--topic", word])
    assert "argument --topic: expected one argument" in capsys.readouterr().err
