"""The ledger is whole: every statement has a test or the reason why it has none."""

from __future__ import annotations

import tomllib

import pytest
from support.statements import FOLDER, VERSIONS, Statement, cited, not_applicable, statements, suite


@pytest.mark.parametrize(("version", "count"), [("mqtt5", 207), ("mqtt311", 112)])
def test_all_statements_that_bind_a_server_are_listed(version: str, count: int) -> None:
    assert sum(statement.binds in "SB" for statement in statements(version).values()) == count


@pytest.mark.parametrize("version", VERSIONS)
def test_every_statement_has_a_test_or_a_reason(version: str) -> None:
    shown = cited().keys() | not_applicable(version).keys()
    missing = [statement for each, statement in statements(version).items() if each not in shown]
    assert missing == []


@pytest.mark.parametrize("version", VERSIONS)
def test_no_statement_has_both(version: str) -> None:
    assert cited().keys() & not_applicable(version).keys() == set()


def test_what_is_cited_exists() -> None:
    known: dict[str, Statement] = statements("mqtt5") | statements("mqtt311")
    unknown = {each: tests for each, tests in cited().items() if each not in known}
    assert unknown == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_does_not_apply_exists_and_has_a_reason(version: str) -> None:
    reasons = not_applicable(version)
    assert reasons.keys() <= statements(version).keys()
    assert all(len(reason) > 20 for reason in reasons.values())


def test_every_test_of_the_suite_cites_a_statement() -> None:
    """A test that shows no statement belongs elsewhere."""
    assert [test for test, ids in suite().items() if not ids] == []


def test_the_reasons_for_failures_are_of_tests_that_exist() -> None:
    reasons = tomllib.loads((FOLDER / "differences.toml").read_text(encoding="utf-8"))
    assert {test for tests in reasons.values() for test in tests} <= suite().keys()
