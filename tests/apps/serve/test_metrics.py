import re
from concurrent.futures import ThreadPoolExecutor

from bayesemble.apps.serve.metrics import Metrics

LINE = re.compile(r'[a-z_]+(\{([a-z_]+="([^"\\\n]|\\.)*",?)*\})? (-?[0-9.e+-]+|\+Inf)')


def test_counters_add_up_in_threads_and_the_text_is_that_of_prometheus():
    metrics = Metrics()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: metrics.add("bayesemble_rows_total", 2, model='a"b\\c\n'), range(500)))
    assert metrics.total("bayesemble_rows_total") == 1000
    text = metrics.text({("bayesemble_queue_rows", (("model", "m"),)): 7.0})
    assert 'bayesemble_rows_total{model="a\\"b\\\\c\\n"} 1000' in text
    assert 'bayesemble_queue_rows{model="m"} 7' in text
    assert text.endswith("\n")
    for line in text.splitlines():
        assert line.startswith("# ") or LINE.fullmatch(line), line


def test_buckets_are_cumulative():
    metrics = Metrics()
    for rows in (1, 1, 3, 5000):
        metrics.observe("bayesemble_batch_rows", rows, model="m")
    found = dict(re.findall(r'bayesemble_batch_rows_bucket\{model="m",le="(.*)"\} (\d+)', metrics.text({})))
    assert (found["1"], found["2"], found["4"], found["1024"], found["+Inf"]) == ("2", "2", "3", "3", "4")
    assert 'bayesemble_batch_rows_sum{model="m"} 5005' in metrics.text({})
    assert 'bayesemble_batch_rows_count{model="m"} 4' in metrics.text({})


def test_totals_by_label():
    metrics = Metrics()
    metrics.add("bayesemble_labels_total", model="a")
    metrics.add("bayesemble_labels_total", 4, model="b")
    assert metrics.total("bayesemble_labels_total", model="b") == 4
