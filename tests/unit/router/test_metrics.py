"""Metrics of a router: each request counts once, with its shard and what the client got."""

import re

import pytest

from jobscribe.router.metrics import ALL, NONE, RESULTS, RouterMetrics, result_of


def value(metrics: RouterMetrics, sample: str) -> float:
    found = re.search(rf"^jobscribe_{re.escape(sample)} (\S+)$", metrics.text({}), re.MULTILINE)
    assert found is not None, sample
    return float(found[1])


def test_all_series_exist_from_the_start() -> None:
    metrics = RouterMetrics(2)
    for shard in ("0", "1", ALL, NONE):
        for result in RESULTS:
            assert (
                value(metrics, f'router_requests_total{{result="{result}",shard="{shard}"}}') == 0
            )
    assert "_created" not in metrics.text({})


def test_a_stream_has_no_duration() -> None:
    metrics = RouterMetrics(2)
    metrics.stream("1", 1)
    assert value(metrics, 'router_streams{shard="1"}') == 1
    metrics.answered("1", "ok", None)
    metrics.stream("1", -1)
    metrics.answered("1", "ok", 0.3)
    assert value(metrics, 'router_requests_total{result="ok",shard="1"}') == 2
    assert value(metrics, 'router_request_duration_seconds_count{shard="1"}') == 1
    assert value(metrics, 'router_streams{shard="1"}') == 0


def test_a_shard_that_does_not_answer_is_down() -> None:
    text = RouterMetrics(2).text({0: True, 1: False})
    assert 'jobscribe_shard_up{shard="0"} 1.0\n' in text
    assert 'jobscribe_shard_up{shard="1"} 0.0\n' in text


@pytest.mark.parametrize(
    "code, result", ((200, "ok"), (303, "ok"), (404, "refused"), (500, "failed"), (503, "failed"))
)
def test_results_are_those_of_the_status(code: int, result: str) -> None:
    assert result_of(code) == result
