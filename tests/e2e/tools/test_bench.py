"""expertctl bench: its counts, detection of wrong answers, verdicts and exit codes. No test asserts a speed."""

import concurrent.futures
import contextlib
import csv
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import grpc
import pytest

from harness.daemon import CHANNEL_OPTIONS, Daemon, clean_environment, run_program
from harness.paths import BIN, SANITIZER, SLOW

LAYER, EXPERTS = 1, 8
HIDDEN = 256  # of synthetic:tiny
HELD, WORSE, INVALID, USAGE, DATA, UNREACHABLE, REFUSED, INTERRUPTED = 0, 1, 2, 64, 65, 69, 70, 130
DURATIONS = {"count", "mean", "p50", "p90", "p95", "p99", "p999", "max"}
MILLISECONDS = 700 if not SANITIZER else 350  # a sanitizer build spends this time computing
SHORT = ("--duration", f"{MILLISECONDS}ms", "--warmup", f"{MILLISECONDS // 4}ms", "--pool", 32)


def bench(address, *arguments, **options):
    return run_program("expertctl", "--address", address, "bench", "--quiet", *arguments, timeout=60 * SLOW, **options)


def report_of(done, *codes):
    assert done.returncode in codes, (done.returncode, done.stdout, done.stderr)
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def run(served):
    """run(*arguments) puts a short load on the module's daemon and returns the JSON report. On a busy machine the client may be late, so the
    verdict INVALID is accepted."""
    def load(*arguments, codes=(HELD, INVALID)):
        return report_of(bench(f"unix:{served.socket}", *SHORT, "--json", *arguments), *codes)
    return load


@pytest.mark.parametrize("routing", ["own", "uniform", "zipf:1.1", pytest.param("hot:5,100ms", marks=pytest.mark.threads), "one:2", "none"])
@pytest.mark.parametrize("stream", [False, True])
def test_no_answer_is_wrong_whatever_the_routing(run, routing, stream):
    report = run("--concurrency", 8, "--connections", 2, "--tokens", "list:1@4,7@2,90@1,0@1", "--routing", routing,
                 *["--stream"] * stream)
    assert report["wrong"] == 0 and report["failed"] == 0 and report["errors"] == []
    assert report["answers"] == report["calls"] > 0 and report["compared"] >= report["answers"]
    assert report["load"]["routing"] == routing and report["load"]["stream"] is stream


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dtype", [pytest.param("bf16", marks=pytest.mark.threads), "f8_e4m3"])
def test_answers_through_shared_memory_are_compared_too(served, run, stream, dtype):
    report = run("--region", "--concurrency", 6, "--processes", 2, "--connections", 4, "--tokens", "list:1@4,7@2,90@1,0@1",
                 "--routing", "uniform", "--dtype", dtype, *["--stream"] * stream)
    assert report["wrong"] == 0 and report["failed"] == 0 and report["errors"] == []
    assert report["answers"] == report["calls"] > 0 and report["compared"] >= report["answers"]
    assert report["load"]["region"] is True and report["load"]["dtype"] == dtype.upper()
    served.wait_metric("expertd_regions", 0)  # the regions are closed with the client processes


def test_an_open_loop_uses_shared_memory(run):
    report = run("--region", "--rate", 200, "--max-inflight", 64)
    assert report["wrong"] == 0 and report["failed"] == 0 and report["answers"] > 0


def test_lognormal_tokens_are_limited_by_the_size_of_a_call():
    daemon = Daemon("--max-message-bytes", "1MiB", "--max-region-bytes", "4MiB", model="synthetic:tiny")
    try:
        most = []
        for arguments in ((), ("--region",), ("--pool", 1, "--region", "--dtype", "f8_e4m3")):
            done = bench(f"unix:{daemon.socket}", *SHORT[:4], "--json", "--tokens", "lognormal:16,1", "--concurrency", 4, *arguments)
            report = report_of(done, HELD, INVALID)
            most.append(report["load"]["tokens_max"])
            assert report["failed"] == report["wrong"] == 0 and report["answers"] > 0
        assert (1 << 20) - 2048 <= most[0] * 2 * HIDDEN < 1 << 20
        assert most[1] * 2 * 2 * HIDDEN == 1 << 20 and most[1] < most[2] < 2 * most[1]  # space for rows and answers
        table = bench(f"unix:{daemon.socket}", *SHORT, "--tokens", "lognormal:16,1")
        assert f"tokens lognormal:16,1 up to {most[0]}," in table.stdout
    finally:
        daemon.stop()


def test_a_refused_region_is_reported_as_the_daemons_refusal():
    daemon = Daemon("--max-regions", 1, model="synthetic:tiny")
    try:
        done = bench(f"unix:{daemon.socket}", *SHORT, "--json", "--region", "--processes", 2, "--concurrency", 2)
        assert done.returncode == REFUSED and "the daemon refuses with QUEUE_FULL" in done.stderr, (done.returncode, done.stderr)
        assert json.loads(done.stdout)["error"]["reason"] == "QUEUE_FULL"
    finally:
        daemon.stop()


@pytest.mark.parametrize("dtype", ["f8_e4m3", "f8_e5m2"])
@pytest.mark.parametrize("routing", ["own", "uniform"])
def test_hidden_states_in_f8_have_a_scale_per_row(run, dtype, routing):
    report = run("--concurrency", 4, "--tokens", "uniform:1-40", "--dtype", dtype, "--routing", routing)
    assert report["wrong"] == 0 and report["failed"] == 0 and report["compared"] >= report["answers"] > 0


def test_shared_memory_needs_a_daemon_on_the_same_host(served):
    done = bench(served.tcp, *SHORT, "--region", "--concurrency", 1)
    assert done.returncode == USAGE and "Unix socket" in done.stderr, (done.returncode, done.stderr)
    daemon = Daemon("--max-region-bytes", 0, model="synthetic:tiny")
    try:
        done = bench(f"unix:{daemon.socket}", *SHORT, "--region", "--concurrency", 1)
        assert done.returncode == USAGE and "--max-region-bytes" in done.stderr
    finally:
        daemon.stop()


def test_the_report_has_every_key(run):
    report = run("--concurrency", 2, codes=(HELD,))
    assert set(report) == {"bench", "address", "model", "server_version", "numerics_id", "load", "verdict", "interrupted", "calls",
                           "answers", "failed", "failed_share", "compared", "wrong", "calls_per_s", "tokens_per_s", "span_s",
                           "response_us", "service_us", "lag_us", "errors", "client", "find_max"}
    assert set(report["load"]) == {"mode", "rate", "concurrency", "trace", "arrivals", "tokens", "routing", "layers", "dtype",
                                   "stream", "region", "tokens_max", "connections", "processes", "max_inflight", "seed", "pool_rows", "check_every",
                                   "warmup_s", "duration_s", "timeout_s"}
    assert set(report["response_us"]) == set(report["service_us"]) == set(report["lag_us"]) == DURATIONS
    assert set(report["client"]) == {"cpus", "busiest_thread", "slots_waited", "unsent"}
    assert report["verdict"] == {"valid": True, "outcome": "valid", "why": ""} and report["load"]["mode"] == "closed"
    assert 0 < report["response_us"]["p50"] <= report["response_us"]["p99"] <= report["response_us"]["max"]


def test_an_open_loop_sends_at_its_rate(run):
    for arrivals in ("constant", "poisson"):
        report = run("--rate", 200, "--arrivals", arrivals, "--processes", 2)
        asked = report["calls"] + report["client"]["unsent"]
        assert abs(asked - 200 * MILLISECONDS / 1000) <= (2 if arrivals == "constant" else 60) + 0.05 * report["client"]["unsent"]
        assert report["wrong"] == 0 and report["failed"] == 0
        assert report["lag_us"]["count"] == report["calls"] == report["response_us"]["count"]
        assert report["response_us"]["mean"] >= report["service_us"]["mean"] - 1


def test_processes_and_connections_share_the_load(run):
    report = run("--concurrency", 6, "--processes", 3, "--connections", 6, "--dtype", "f32", "--tokens", "uniform:1-16")
    assert report["wrong"] == 0 and report["failed"] == 0 and report["answers"] > 0
    assert report["load"]["processes"] == 3 and report["load"]["dtype"] == "F32"


def test_all_layers_are_called():
    daemon = Daemon(model="synthetic:tiny")
    try:
        report = report_of(bench(f"unix:{daemon.socket}", *SHORT, "--json", "--layers", "all", "--concurrency", 4), HELD, INVALID)
        assert len(report["load"]["layers"]) > 1 and report["wrong"] == 0 and report["failed"] == 0
        assert len(daemon.client().describe().models[0].layers) == len(report["load"]["layers"])
    finally:
        daemon.stop()


def test_checking_may_be_sampled_or_left_out(run):
    sampled = run("--concurrency", 4, "--check", "sample=10")
    assert sampled["wrong"] == 0 and 0 < sampled["compared"] <= sampled["answers"] / 2
    assert run("--concurrency", 4, "--check", "off")["compared"] == 0


def test_a_trace_is_replayed_call_by_call(run, tmp_path):
    lines = [f"{i / 100} {LAYER} {i % 5}" for i in range(40)]
    (tmp_path / "trace").write_text("# seconds layer tokens\n" + "\n".join(lines) + "\n")
    report = report_of(run_program("expertctl", "--address", run("--concurrency", 1)["address"], "bench", "--quiet", "--json",
                                   "--trace", tmp_path / "trace", "--processes", 2, timeout=60 * SLOW), HELD, INVALID)
    assert report["calls"] == report["answers"] == report["compared"] == 40 and report["wrong"] == 0
    assert abs(report["tokens_per_s"] * report["span_s"] - 80) < 1e-6


def test_an_overloaded_daemons_refusals_are_counted_by_code_and_reason():
    daemon = Daemon("--max-queue", 1, model="synthetic:tiny")
    try:
        done = bench(f"unix:{daemon.socket}", *SHORT, "--json", "--concurrency", 32, "--tokens", 64)
        report = report_of(done, WORSE)
        refused = [error for error in report["errors"] if error["code"] == "RESOURCE_EXHAUSTED"]
        assert refused and refused[0]["reason"] == "QUEUE_FULL" and refused[0]["grpc_code"] == 8 and refused[0]["count"] > 0
        assert sum(error["count"] for error in report["errors"]) == report["failed"] == report["calls"] - report["answers"]
        assert report["wrong"] == 0 and report["answers"] > 0 and report["response_us"]["count"] == report["answers"]
        assert report["verdict"]["valid"] is False and report["verdict"]["outcome"] == "failed"
        assert f"{report['failed']} of {report['calls']} calls failed" in report["verdict"]["why"]
        assert "with RESOURCE_EXHAUSTED" in report["verdict"]["why"]
        table = bench(f"unix:{daemon.socket}", *SHORT, "--concurrency", 32, "--tokens", 64)
        assert table.returncode == WORSE and "verdict: FAILED: " in table.stdout and "response " in table.stdout
        assert "RESOURCE_EXHAUSTED" in table.stdout and "QUEUE_FULL" in table.stdout
    finally:
        daemon.stop()


def test_an_unreachable_rate_is_attributed_to_the_client(served):
    done = bench(f"unix:{served.socket}", *SHORT, "--rate", "5000k", "--max-inflight", 2, "--save", "/dev/null")
    assert done.returncode == INVALID, (done.stdout, done.stderr)
    assert "verdict: INVALID" in done.stdout and "--max-inflight" in done.stdout


class FlippingServer:
    """A proxy that flips one bit of the last row in every tenth answer, after the first `spared` answers."""

    def __init__(self, daemon, spared):
        self.channel = grpc.insecure_channel(f"unix:{daemon.socket}", options=CHANNEL_OPTIONS)
        self.lock, self.answers, self.flipped, self.spared = threading.Lock(), 0, 0, spared
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        raw = {name: self.channel.unary_unary(f"/expertd.v1.Experts/{name}") for name in ("Describe", "Forward")}
        handlers = {"Describe": grpc.unary_unary_rpc_method_handler(lambda request, _: raw["Describe"](request, timeout=20)),
                    "Forward": grpc.unary_unary_rpc_method_handler(lambda request, _: self.flip(raw["Forward"](request, timeout=20)))}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("expertd.v1.Experts", handlers),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def flip(self, answer):
        with self.lock:
            self.answers += 1
            if self.answers <= self.spared or self.answers % 10:
                return answer
            self.flipped += 1
        return answer[:-1] + bytes([answer[-1] ^ 1])  # the output's data are the end of the message

    def stop(self):
        self.server.stop(None).wait()
        self.channel.close()


def test_one_flipped_bit_is_a_wrong_answer(served):
    server = FlippingServer(served, spared=32)
    try:
        done = bench(f"127.0.0.1:{server.port}", *SHORT, "--json", "--concurrency", 2, "--tokens", 5)
        report = report_of(done, WORSE)
        assert report["wrong"] == server.flipped > 0 and report["failed"] == 0
        assert report["compared"] == server.answers - server.spared
    finally:
        server.stop()


@pytest.mark.parametrize("stream", [False, True])
def test_a_killed_daemon_does_not_end_the_run(stream):
    daemon = Daemon(model="synthetic:tiny")
    arguments = [str(BIN / "expertctl"), "--address", f"unix:{daemon.socket}", "--timeout", "2", "bench", "--quiet", "--json",
                 "--rate", "100", "--duration", "2s", "--warmup", "0", "--pool", "8", *["--stream"] * stream]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment())
    try:
        while daemon.metric("expertd_tokens_total") < 8 + 20:  # all of the pool, and some of the load
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
    finally:
        daemon.process.kill()
        daemon.kill()
    out, err = process.communicate(timeout=30 * SLOW)
    assert process.returncode == WORSE, err
    report = json.loads(out)
    assert report["verdict"]["outcome"] == "failed" and "with UNAVAILABLE" in report["verdict"]["why"]
    assert {error["code"] for error in report["errors"]} == {"UNAVAILABLE"} and report["wrong"] == 0
    assert report["calls"] == report["answers"] + report["failed"]


def started(address, *arguments, timeout=300, warmup="0", stdout=subprocess.PIPE, prefix=()):
    """Starts a load that runs until a signal and prints a line per second."""
    words = [*prefix, str(BIN / "expertctl"), "--address", address, "--timeout", str(timeout), "bench", "--warmup", warmup, "--pool", "8",
             *arguments]
    return subprocess.Popen(words, stdout=stdout, stderr=subprocess.PIPE, text=True, env=clean_environment())


def wait_line(process, *wanted):
    """Reads standard error up to a line that contains all texts. Returns the lines."""
    lines = []
    for _, line in zip(range(100 * SLOW), process.stderr):
        lines.append(line)
        if all(text in line for text in wanted):
            return lines
    raise AssertionError((lines, process.communicate()))


def children_of(process):
    return pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()


def answered(lines):
    """The number of answers in the progress lines."""
    return sum(int(line.split("s", 1)[1].split()[0]) for line in lines if "calls/s" in line and "answered/s" not in line)


def interrupted_report(process, *codes):
    out, err = process.communicate(timeout=60 * SLOW)
    report = json.loads(out)
    assert report["interrupted"] is True and process.returncode in codes, (process.returncode, out, err)
    return report


def test_ctrl_c_reports_what_was_measured(served):
    process = started(f"unix:{served.socket}", "--json", "--duration", "1h")
    wait_line(process, "calls/s")
    process.send_signal(signal.SIGINT)
    report = interrupted_report(process, HELD, INVALID)
    assert report["answers"] > 0 and report["span_s"] < 1000


def test_answers_after_ctrl_c_do_not_count_for_the_rate():
    """The daemon is suspended before the signal, so that all calls in flight are answered after it."""
    daemon, in_flight = Daemon(model="synthetic:tiny"), 64
    process = started(f"unix:{daemon.socket}", "--json", "--duration", "1h", "--concurrency", str(in_flight), "--tokens", "128")
    try:
        lines = wait_line(process, "calls/s")
        daemon.signal(signal.SIGSTOP)
        lines += wait_line(process, "  0 calls/s", f" {in_flight} in flight")
        process.send_signal(signal.SIGINT)
        for _ in range(2):  # more than a second, so that the client sees the signal
            lines += wait_line(process, "  0 calls/s", f" {in_flight} in flight")
        daemon.signal(signal.SIGCONT)
        report = interrupted_report(process, HELD, INVALID)
        assert report["answers"] == report["calls"] and round(report["calls_per_s"] * report["span_s"]) <= answered(lines)
    finally:
        daemon.signal(signal.SIGCONT)
        process.kill()
        process.communicate()
        daemon.stop()


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_after_the_timeout_does_not_count(stream):
    """The daemon is suspended for longer than the timeout, and then answers the requests that it finds."""
    daemon, timeout = Daemon(model="synthetic:tiny"), 2 * SLOW
    process = started(f"unix:{daemon.socket}", "--json", "--duration", "1h", "--concurrency", "8", *["--stream"] * stream,
                      timeout=timeout)
    try:
        lines = []
        while answered(lines) < 2 * 8:  # then the calls in flight belong to the measured time
            lines += wait_line(process, "calls/s")
        daemon.signal(signal.SIGSTOP)
        time.sleep(timeout + 1)
        daemon.signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        report = interrupted_report(process, HELD, WORSE, INVALID)
        assert report["failed"] >= 8 and {error["code"] for error in report["errors"]} == {"DEADLINE_EXCEEDED"}
        assert report["calls"] == report["answers"] + report["failed"] and report["wrong"] == 0
        assert not stream or report["service_us"]["max"] <= timeout * 1e6
    finally:
        daemon.signal(signal.SIGCONT)
        process.kill()
        process.communicate()
        daemon.stop()


def test_a_second_ctrl_c_does_not_wait_for_answers():
    daemon = Daemon(model="synthetic:tiny")
    process = started(f"unix:{daemon.socket}", "--json", "--duration", "1h")
    try:
        wait_line(process, "calls/s")
        daemon.signal(signal.SIGSTOP)
        wait_line(process, "  0 calls/s", " 1 in flight")
        process.send_signal(signal.SIGINT)
        for _ in range(2):  # more than a second, so that the client sees the signal
            wait_line(process, "  0 calls/s", " 1 in flight")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60 * SLOW)
        assert process.returncode == INTERRUPTED and "interrupted" in err, (process.returncode, out, err)
        assert json.loads(out)["error"]["reason"] == "CANCELLED"
    finally:
        daemon.signal(signal.SIGCONT)
        process.kill()
        process.communicate()
        daemon.stop()


def test_ctrl_c_counts_the_time_after_the_last_call_too(served):
    process = started(f"unix:{served.socket}", "--json", "--rate", "0.01", "--arrivals", "constant", "--duration", "50s")
    wait_line(process, "2 s ")
    process.send_signal(signal.SIGINT)
    report = interrupted_report(process, HELD, INVALID)
    assert report["calls"] == 1 and 1.9 < report["span_s"] < 50


@pytest.mark.parametrize("end", (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
def test_a_signal_in_the_warm_up_reports_nothing_and_keeps_the_saved_file(served, tmp_path, end):
    kept = tmp_path / "kept.json"
    kept.write_text("old")
    process = started(f"unix:{served.socket}", "--json", "--duration", "60s", "--save", str(kept), warmup="60s")
    wait_line(process, "1 s warm")
    process.send_signal(end)
    out, err = process.communicate(timeout=60 * SLOW)
    assert process.returncode == INTERRUPTED and json.loads(out)["error"]["reason"] == "CANCELLED", (process.returncode, out, err)
    assert list(tmp_path.iterdir()) == [kept] and kept.read_text() == "old"


def test_an_ignored_sighup_does_not_end_the_run(served, tmp_path):
    process = started(f"unix:{served.socket}", "--json", "--duration", "2s", warmup="0", prefix=("nohup",))
    wait_line(process, "1 s ")
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=60 * SLOW)
    assert process.returncode in (HELD, INVALID) and json.loads(out)["span_s"] > 1.9, (process.returncode, out, err)


def test_find_max_shows_each_step_and_its_rate_holds(served, tmp_path):
    done = run_program("expertctl", "--address", f"unix:{served.socket}", "bench", "--find-max", "--slo", "p50=1s", "--rate", 400,
                       "--duration", "200ms", "--warmup", "50ms", "--pool", 8, "--max-inflight", 64, "--json", "--csv",
                       tmp_path / "steps.csv", timeout=120 * SLOW)
    report = report_of(done, HELD, INVALID)
    steps = report["find_max"]["steps"]
    assert report["find_max"]["slo"] == "p50=1s" and len(steps) >= 2 and steps[0]["rate"] == 400
    held = [step["rate"] for step in steps if step["outcome"] == "held"]
    assert report["find_max"]["rate"] == report["load"]["rate"] == max(held)
    assert any(step["outcome"] != "held" for step in steps)
    assert done.stderr.count("answered/s") == len(steps) == len(list(csv.DictReader(open(tmp_path / "steps.csv"))))


def test_find_max_reports_that_no_rate_held(served):
    done = bench(f"unix:{served.socket}", "--find-max", "--slo", "p50=1us", "--rate", 1, "--duration", "50ms", "--warmup", "0",
                 "--pool", 8)
    assert done.returncode in (WORSE, INVALID) and "no rate held p50=1us" in done.stdout, (done.stdout, done.stderr)


def test_find_max_ends_at_a_step_without_calls_which_does_not_blame_the_client(served):
    """With --lag-limit 100% no lag counts against the client. On a busy machine it may still fail to send calls."""
    done = bench(f"unix:{served.socket}", "--find-max", "--slo", "p50=1us", "--rate", 200, "--duration", "100ms", "--warmup", "0",
                 "--pool", 8, "--lag-limit", "100%", "--json")
    report = report_of(done, WORSE, INVALID)
    *judged, last = report["find_max"]["steps"]
    assert last["outcome"] == "none_due" and judged and {step["outcome"] for step in judged} <= {"failed", "client"}
    by_client = judged[-1]["outcome"] == "client"
    assert report["find_max"]["rate"] == 0 and report["find_max"]["client_limited"] is by_client
    assert done.returncode == (INVALID if by_client else WORSE)


SEARCH = ("--find-max", "--slo", "p50=30s", "--rate", "20", "--duration", "3s")


def test_an_interrupted_search_reports_the_best_rate_that_held(served):
    process = started(f"unix:{served.socket}", "--json", *SEARCH)
    wait_line(process, "held")
    wait_line(process, "1 s ")  # a line of the next step
    process.send_signal(signal.SIGINT)
    report = interrupted_report(process, INVALID)
    best = report["find_max"]["steps"][-1]
    assert best["outcome"] == "held" and report["find_max"]["rate"] == report["load"]["rate"] == best["rate"]
    assert report["calls_per_s"] == best["calls_per_s"] and report["span_s"] == 3
    assert "interrupted" in report["verdict"]["why"]


def test_a_search_interrupted_in_its_first_step_has_no_steps(served):
    process = started(f"unix:{served.socket}", "--json", *SEARCH)
    wait_line(process, "1 s ")
    process.send_signal(signal.SIGINT)
    report = interrupted_report(process, INVALID)
    assert report["find_max"]["steps"] == [] and report["find_max"]["rate"] == 0 and report["verdict"]["valid"] is False
    assert "interrupted before a rate held" in report["verdict"]["why"]


# ---- comparison


@pytest.fixture(scope="module")
def saved(served, tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "before.json"
    csv_path = path.with_suffix(".csv")
    done = bench(f"unix:{served.socket}", *SHORT, "--concurrency", 2, "--save", path, "--csv", csv_path)
    assert done.returncode == HELD, (done.stdout, done.stderr)
    (row,) = csv.DictReader(open(csv_path))
    assert row["outcome"] == "valid" and row["wrong"] == "0" and float(row["calls_per_s"]) > 0
    return path


def changed(report, changes):
    for path, change in changes.items():
        *outer, last = path.split("__")
        inner = report
        for key in outer:
            inner = inner[key]
        inner[last] = change(inner[last]) if callable(change) else change
    return report


@pytest.fixture
def compared(saved, tmp_path):
    """compare(*arguments, before, **changes) compares the saved run with a changed copy. `before` changes both; `changes` only the second."""
    def compare(*arguments, before={}, **changes):
        report = changed(json.loads(saved.read_text()), before)
        (tmp_path / "before.json").write_text(json.dumps(report))
        (tmp_path / "after.json").write_text(json.dumps(changed(report, changes)))
        return run_program("expertctl", "bench", "--compare", tmp_path / "before.json", tmp_path / "after.json", *arguments)
    return compare


def test_the_exit_status_of_a_comparison_tells_regressions(compared):
    assert compared().returncode == HELD
    assert compared(calls_per_s=lambda x: 0.97 * x).returncode == HELD
    slower = compared(calls_per_s=lambda x: 0.9 * x)
    assert slower.returncode == WORSE and "regression" in slower.stdout and "-10.0 %" in slower.stdout
    assert compared("--tolerance", "15%", calls_per_s=lambda x: 0.9 * x).returncode == HELD
    assert compared(response_us__p99=lambda x: 2 * x).returncode == WORSE
    assert compared(response_us__p99=lambda x: x / 2, calls_per_s=lambda x: 2 * x).returncode == HELD
    assert compared("--tolerance", "100%", wrong=1).returncode == WORSE
    assert compared(verdict__valid=False, verdict__outcome="invalid").returncode == INVALID
    rows = json.loads(compared("--json", failed_share=0.049, verdict={"valid": False, "outcome": "failed", "why": "…"}).stdout)
    assert rows["outcome"] == "regression"
    assert [row["name"] for row in rows["measures"] if row["regression"]] == ["failed_share"]


NOTHING = {"answers": 0, "calls_per_s": 0, "tokens_per_s": 0, "response_us": dict.fromkeys(DURATIONS, 0),
           "service_us": dict.fromkeys(DURATIONS, 0)}


def test_a_run_that_answered_nothing_has_no_latencies_to_compare(compared, saved):
    report = json.loads(saved.read_text())
    better = compared("--json", before=NOTHING, **{key: report[key] for key in NOTHING})
    assert better.returncode == HELD, better.stdout
    rows = {row["name"]: row for row in json.loads(better.stdout)["measures"]}
    assert rows["calls_per_s"]["improvement"] is True and rows["calls_per_s"]["change"] is None
    assert "response_us.p99" not in rows and "wrong" in rows
    assert compared("--tolerance", "100%", **NOTHING).returncode == WORSE


def test_searches_are_compared_by_the_rates_that_held(compared):
    search = {"find_max": {"slo": "p99=20ms", "rate": 1000.0, "client_limited": False, "steps": [{"wrong": 0}]}, "load__mode": "open"}
    slower = {"response_us__p99": lambda x: 3 * x, "load__rate": 7}
    better = compared("--json", before=search, find_max__rate=2000.0, **slower)
    assert better.returncode == HELD, better.stdout
    assert [row["name"] for row in json.loads(better.stdout)["measures"]] == ["find_max.rate", "wrong"]
    assert compared(before=search, find_max__rate=900.0, calls_per_s=lambda x: 2 * x).returncode == WORSE
    assert compared(before=search, find_max__steps=[{"wrong": 0}, {"wrong": 1}]).returncode == WORSE
    for change, cause in (({"find_max__slo": "p99=10ms"}, "find_max.slo differs"), ({"find_max": None}, "one is a search")):
        other = compared(before=search, **change)
        assert other.returncode == DATA and cause in other.stderr, (other.returncode, other.stderr)


def test_different_loads_and_invalid_files_are_not_compared(compared, saved, tmp_path):
    other = compared(load__tokens="7")
    assert other.returncode == DATA and "load.tokens differs" in other.stderr
    assert compared(load__seed=99).returncode == HELD
    for change, cause in (({"model": "another"}, "model differs"), ({"numerics_id": "another"}, "numerics_id differs"),
                          ({"interrupted": True}, "after.json: it was interrupted")):
        other = compared(**change)
        assert other.returncode == DATA and cause in other.stderr, (change, other.returncode, other.stderr)
    missing = run_program("expertctl", "bench", "--compare", saved, tmp_path / "absent.json")
    assert missing.returncode == DATA and "absent.json" in missing.stderr
    for text in ("", "[1]", '{"bench": 2}', '{"bench": 1}', '{"bench": 1, "verdict": {"valid": true}, "calls_per_s": -1}'):
        (tmp_path / "bad.json").write_text(text)
        done = run_program("expertctl", "bench", "--compare", saved, tmp_path / "bad.json")
        assert done.returncode == DATA and "bad.json" in done.stderr, text


# ---- files


def test_a_full_disk_does_not_lose_the_report(run):
    report = run("--concurrency", 1, "--save", "/dev/full", codes=(DATA,))
    assert report["answers"] > 0
    report = run("--concurrency", 1, "--csv", "/dev/full", codes=(DATA,))
    assert report["answers"] > 0


def test_files_are_replaced_atomically(served, tmp_path):
    """The daemon is suspended, so that the run is interrupted before its first call."""
    daemon, kept = Daemon(model="synthetic:tiny"), tmp_path / "kept.json"
    kept.write_text("old")
    daemon.signal(signal.SIGSTOP)
    process = started(f"unix:{daemon.socket}", "--json", "--save", str(kept), "--csv", str(tmp_path / "new.csv"))
    try:
        deadline = time.monotonic() + 60 * SLOW
        while not children_of(process):  # the client processes have started
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        assert len(list(tmp_path.iterdir())) == 3  # the old file and two temporary files
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60 * SLOW)
        assert process.returncode == INTERRUPTED and json.loads(out)["error"]["reason"] == "CANCELLED", (process.returncode, out, err)
        assert list(tmp_path.iterdir()) == [kept] and kept.read_text() == "old"
    finally:
        daemon.signal(signal.SIGCONT)
        process.kill()
        process.communicate()
        daemon.stop()


def test_a_closed_pipe_on_standard_output_does_not_lose_the_files(served, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    kept, steps = tmp_path / "kept.json", tmp_path / "steps.csv"
    done = subprocess.run([*map(str, (BIN / "expertctl", "--address", f"unix:{served.socket}", "bench", *SHORT)),
                           "--save", str(kept), "--csv", str(steps)],
                          env=clean_environment(), stdout=writer, stderr=writer, timeout=60 * SLOW, check=False)
    os.close(writer)
    assert done.returncode == DATA
    assert sorted(tmp_path.iterdir()) == [kept, steps]
    assert json.loads(kept.read_text())["answers"] > 0 and len(list(csv.DictReader(open(steps)))) == 1


def test_files_are_written_before_output_to_a_full_pipe(served, tmp_path):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    process = started(f"unix:{served.socket}", "--duration", "200ms", "--save", str(tmp_path / "kept.json"),
                      "--csv", str(tmp_path / "steps.csv"), stdout=writer)
    try:
        deadline = time.monotonic() + 30 * SLOW
        while sorted(path.name for path in tmp_path.iterdir()) != ["kept.json", "steps.csv"]:
            assert time.monotonic() < deadline and process.poll() is None, list(tmp_path.iterdir())
            time.sleep(0.02)
        for _ in range(6):  # the first may still find the handler of the measurement, which waits for its end
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5 * SLOW)
                break
        assert process.poll() in (-signal.SIGINT, INTERRUPTED)
        assert json.loads((tmp_path / "kept.json").read_text())["answers"] > 0 and len(list(tmp_path.iterdir())) == 2
    finally:
        process.kill()
        process.communicate()
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("closed", ("1>&-", "2>&-", "0<&- 1>&- 2>&-"))
def test_closed_standard_streams_do_not_redirect_output_into_files(closed, served, tmp_path):
    script = f'"$@" --warmup 0 --duration 1500ms --pool 8 --save {tmp_path}/kept.json --csv {tmp_path}/steps.csv {closed}'
    done = subprocess.run(["sh", "-c", script, "sh", str(BIN / "expertctl"), "--address", f"unix:{served.socket}", "bench"],
                          env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60 * SLOW, check=False)
    assert done.returncode in ((DATA,) if "1>" in closed else (HELD, INVALID))
    assert json.loads((tmp_path / "kept.json").read_text())["answers"] > 0
    assert [row["wrong"] for row in csv.DictReader(open(tmp_path / "steps.csv"))] == ["0"]


def test_saving_to_standard_output_appends_the_report_to_the_table(served, tmp_path):
    """The file's earlier content stays."""
    log = tmp_path / "log"
    for path in ("/dev/stdout", log):
        log.write_text("before\n")
        with open(log, "a") as file:
            done = subprocess.run([*map(str, (BIN / "expertctl", "--address", f"unix:{served.socket}", "bench", *SHORT)),
                                   "--quiet", "--save", str(path)],
                                  env=clean_environment(), stdout=file, stderr=subprocess.PIPE, timeout=60 * SLOW, check=False)
        before, report = log.read_text().split("{", 1)
        assert done.returncode in (HELD, INVALID), done.stderr
        assert before.startswith("before\n") and "verdict: " in before and json.loads("{" + report)["answers"] > 0
        assert list(tmp_path.iterdir()) == [log]


def test_a_fifo_without_a_reader_blocks_before_any_file_is_written(served, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = started(f"unix:{served.socket}", "--csv", str(tmp_path / "steps.csv"), "--save", str(pipe))
    try:
        asleep, deadline = 0, time.monotonic() + 60 * SLOW
        while asleep < 10:
            assert time.monotonic() < deadline and process.poll() is None
            asleep = asleep + 1 if f"{process.pid} (expertctl) S" in pathlib.Path(f"/proc/{process.pid}/stat").read_text() else 0
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60 * SLOW)
        assert process.returncode == -signal.SIGINT and list(tmp_path.iterdir()) == [pipe]
    finally:
        process.kill()
        process.communicate()


def test_a_search_reports_its_steps_after_the_daemon_is_killed(tmp_path):
    daemon = Daemon(model="synthetic:tiny")
    process = started(f"unix:{daemon.socket}", "--json", *SEARCH, "--csv", str(tmp_path / "steps.csv"))
    try:
        wait_line(process, "held")
    finally:
        daemon.kill()
    out, err = process.communicate(timeout=60 * SLOW)
    assert process.returncode == UNREACHABLE and daemon.socket in err, (process.returncode, out, err)
    report, steps = json.loads(out), list(csv.DictReader(open(tmp_path / "steps.csv")))
    assert report["find_max"]["rate"] == 20 and report["verdict"]["outcome"] == "invalid"
    assert "broke off" in report["verdict"]["why"] and daemon.socket in report["verdict"]["why"]
    assert len(steps) == len(report["find_max"]["steps"]) >= 1 and steps[0]["outcome"] == "held"


# ---- refused options


def test_invalid_options_are_refused_before_the_load(served, tmp_path):
    address = f"unix:{served.socket}"
    (tmp_path / "trace").write_text(f"0 {LAYER} 1\n0.1 99 1\n")
    for arguments, code, cause in (
            (("--layers", 77), USAGE, "--layers: layer 77 is not served"),
            (("--layers", "77-78"), USAGE, "--layers: no layer from 77 to 78"),
            (("--layers", "1-"), USAGE, "--layers: "),
            (("--trace", tmp_path / "trace"), USAGE, "--trace: layer 99 is not served"),
            (("--tokens", 10 ** 8), USAGE, "--tokens"),
            (("--routing", f"one:{EXPERTS}"), USAGE, "--routing"),
            (("--region", "--rate", 10, "--tokens", 1000), USAGE, "--max-inflight"),
            (("--dtype", "i32"), USAGE, "f8_e4m3"),
            (("--save", tmp_path / "x", "--csv", tmp_path / "x"), USAGE, "--csv and --save both name"),
            (("--trace", "/nonexistent"), DATA, "/nonexistent"),
            (("--save", "/nonexistent/x", "--duration", "1h"), DATA, "--save /nonexistent/x"),
            (("--csv", "/nonexistent/x", "--duration", "1h"), DATA, "--csv /nonexistent/x")):
        calls = served.metric("expertd_calls_total", 'method="Forward"')
        done = bench(address, *arguments)
        assert done.returncode == code and cause in done.stderr, (arguments, done.returncode, done.stderr)
        assert served.metric("expertd_calls_total", 'method="Forward"') == calls, arguments
    done = bench("unix:/tmp/there-is-no-such.sock", "--pool", 8)
    assert done.returncode == UNREACHABLE and "/tmp/there-is-no-such.sock" in done.stderr
