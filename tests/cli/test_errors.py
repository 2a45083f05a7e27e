"""Errors say what happened, the value, what is allowed and the next command."""

import pytest

from serving_study import errors
from serving_study.errors import ParameterError, ServerError, StudyError


def test_message_is_word_for_word():
    error = ParameterError("unknown section", value=13, allowed="2, 3", next="make help")
    assert str(error) == "unknown section: 13\n  allowed: 2, 3\n  next:    make help"
    assert (error.what, error.value, error.allowed, error.next) == ("unknown section", 13, "2, 3", "make help")


def test_what_is_not_known_is_left_out():
    assert str(StudyError("the disk is full")) == "the disk is full"
    assert str(StudyError("none wanted", value=0)) == "none wanted: 0"


def test_a_dead_server_shows_code_reason_and_last_lines():
    error = ServerError(
        "draft-k3: the server ended",
        reason="out of memory",
        log="/x/server.log",
        last_lines=["one", "two"],
        exit_code=1,
    )
    assert (
        str(error) == "draft-k3: the server ended (exit code 1): out of memory\n    | one\n    | two\n  next:    less "
        "/x/server.log"
    )
    assert error.last_lines == ("one", "two") and error.reason == "out of memory"
    assert str(ServerError("x", reason="y")) == "x: y"


@pytest.mark.parametrize(
    "kind", [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
)
def test_every_error_is_one_that_the_command_line_catches(kind):
    assert issubclass(kind, StudyError) and kind.__doc__
