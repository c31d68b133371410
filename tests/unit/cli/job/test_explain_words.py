"""`explain-exit` knows each word that `job why` prints."""

import pytest

from jobscribe.cli import explain_words
from jobscribe.diagnosis.causes import BY_REASON, BY_STOP, CAUSES
from jobscribe.diagnosis.exit_table import BUILT_IN
from jobscribe.protocol.jobs.exit_info import FAULTS
from jobscribe.protocol.jobs.status import CANCELED, COMPLETED, ERROR, PENDING, RUNNING


@pytest.mark.parametrize("word", [*CAUSES, *BY_REASON, *BY_STOP, "job_run_purged"])
def test_causes_and_reasons(word):
    assert explain_words.cause_word(word.upper()) in CAUSES


@pytest.mark.parametrize(
    "word", [*FAULTS, "scheduler", "certain", "likely", "possible", "unknown", PENDING, ERROR]
)
def test_faults_states_and_confidences(word):
    assert len(explain_words.sentence(word).split()) > 4


def test_other_words():
    for state in (CANCELED, COMPLETED, RUNNING):
        assert explain_words.cause_word(state) in CAUSES
    assert explain_words.row_of("Out of Memory", BUILT_IN).code == 2001
    assert explain_words.sentence("nosuchword") is explain_words.cause_word("nosuchword") is None
