"""`explain-exit` knows each word that `job why` prints."""

import pytest

from jobscribe.diagnosis import why_words
from jobscribe.diagnosis.causes import BY_REASON, BY_STOP, CAUSES
from jobscribe.diagnosis.exit_table import BUILT_IN
from jobscribe.protocol.jobs.exit_info import FAULTS
from jobscribe.protocol.jobs.status import CANCELED, COMPLETED, ERROR, PENDING, RUNNING


@pytest.mark.parametrize("word", [*CAUSES, *BY_REASON, *BY_STOP, "job_run_purged"])
def test_causes_and_reasons(word):
    assert why_words.cause_word(word.upper()) in CAUSES


@pytest.mark.parametrize(
    "word", [*FAULTS, "scheduler", "certain", "likely", "possible", "unknown", PENDING, ERROR]
)
def test_faults_states_and_confidences(word):
    assert len(why_words.sentence(word).split()) > 4


def test_other_words():
    for state in (CANCELED, COMPLETED, RUNNING):
        assert why_words.cause_word(state) in CAUSES
    assert why_words.row_of("Out of Memory", BUILT_IN).code == 2001
    assert why_words.sentence("nosuchword") is why_words.cause_word("nosuchword") is None
