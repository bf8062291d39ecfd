"""The bits of an output row depend only on the row, its routes, the weights and the dtypes: not on other rows, shards, threads or kernels."""

import concurrent.futures
import json

import numpy as np
import pytest

from harness.daemon import Daemon
from harness.protos import pb
from harness.tensors import F8_VALUES, bf16_values, rows_of, tensor, values_of

MODELS = ("deepseek_v3", "gpt_oss", "llama4", "qwen2_moe")
TOKENS = 48


AMX = {"amx_tile", "amx_int8", "amx_bf16"}


def cpu_flags():
    for line in open("/proc/cpuinfo"):
        if line.startswith("flags"):
            return set(line.split())
    return set()


def usable_kernels():
    needs = {"scalar": set(), "avx2": {"avx2", "fma"}, "avx512": {"avx512f", "avx512vl", "avx512bw", "avx512dq", "fma"}}
    needs["avx512vnni"] = needs["avx512"] | {"avx512_vnni"}
    needs["avx512bf16"] = needs["avx512vnni"] | {"avx512_bf16"}
    needs["amxint8"] = needs["avx512vnni"] | AMX
    return [name for name, flags in needs.items() if flags <= cpu_flags()]


KERNELS = usable_kernels()
OTHER_OPTIONS = [("--shards", 2), ("--shards", 3), ("--threads", 1), ("--threads", 5), ("--shards", 2, "--threads", 3),
                 *(("--kernels", name) for name in KERNELS)]


class Problem:
    """A model's layer, input rows, and requests with a choice of these rows."""

    def __init__(self, golden, seed=3):
        random = np.random.default_rng(seed)
        self.golden, self.layer = golden, golden.layers[-1]
        hidden = golden.get(self.layer, "input").shape[1]
        experts = golden.router_logits(self.layer).shape[1]
        # Rows of the golden case, then rows of many magnitudes, some with subnormal products.
        own = golden.get(self.layer, "input")[:16]
        wild = random.standard_normal((TOKENS - len(own), hidden)) * 2.0 ** random.integers(-70, 30, (TOKENS - len(own), 1))
        self.rows = np.concatenate([own, wild.astype(np.float32)])
        self.ids = random.integers(-1, experts, (len(self.rows), 3)).astype(np.int32)
        self.ids[5] = -1
        self.ids[6] = 1
        self.weights = random.standard_normal(self.ids.shape).astype(np.float32)

    def request(self, rows, routed=False, values=None, dtype="F32", **fields):
        if routed:
            fields["routes"] = pb.Routes(ids=tensor(self.ids[rows], "I32"), weights=tensor(self.weights[rows]))
        values = self.rows[rows] if values is None else values
        return pb.ForwardRequest(layer=self.layer, hidden=tensor(values, dtype), output_dtype=pb.F32, **fields)

    def outputs(self, client):
        every = list(range(len(self.rows)))
        return [rows_of(client.forward(self.request(every, routed)).output) for routed in (False, True)]


@pytest.fixture(scope="module", params=[(name, dtype) for name in MODELS for dtype in ("bf16", "f32")],
                ids=lambda p: f"{p[0]}-{p[1]}")
def setup(request, case):
    name, dtype = request.param
    problem = Problem(case(name))
    daemon = Daemon("--compute-dtype", dtype, "--shards", 1, "--threads", 2, model=case(name).folder)
    with daemon.client() as client:
        yield problem, dtype, client, problem.outputs(client)
    daemon.stop()


@pytest.mark.parametrize("routed", [False, True], ids=["own_router", "routes"])
def test_each_row_alone_has_the_bits_it_has_in_a_batch(setup, routed):
    problem, _, client, expected = setup
    for row in range(TOKENS):
        assert rows_of(client.forward(problem.request([row], routed)).output) == [expected[routed][row]]


@pytest.mark.parametrize("routed", [False, True], ids=["own_router", "routes"])
def test_any_order_and_any_split_keeps_each_row(setup, routed, random):
    problem, _, client, expected = setup
    for _ in range(4):
        order = random.permutation(TOKENS)
        for part in np.array_split(order, random.integers(1, 7)):
            assert rows_of(client.forward(problem.request(part, routed)).output) == [expected[routed][i] for i in part]


@pytest.mark.parametrize("routed", [False, True], ids=["own_router", "routes"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3e38])
def test_poisoned_rows_touch_no_other_row(setup, routed, poison):
    problem, _, client, expected = setup
    values = problem.rows.copy()
    values[3::7] = poison
    values[20, 5] = poison
    touched = set(range(3, TOKENS, 7)) | {20}
    got = rows_of(client.forward(problem.request(range(TOKENS), routed, values)).output)
    assert all(got[i] == expected[routed][i] for i in range(TOKENS) if i not in touched)
    if np.isnan(poison) and not routed:
        assert np.isnan(np.frombuffer(got[3], np.float32)).any(), "the output of a NaN row has no NaN"


def test_the_same_row_many_times_is_the_same_each_time(setup):
    problem, _, client, expected = setup
    assert set(rows_of(client.forward(problem.request([17] * 100)).output)) == {expected[False][17]}


@pytest.mark.threads
@pytest.mark.share(2)
def test_callers_at_the_same_time_keep_their_rows(setup):
    problem, _, client, expected = setup

    def call(seed):
        random = np.random.default_rng(seed)
        routed = bool(random.integers(2))
        rows = random.integers(0, TOKENS, random.integers(1, 40))
        answer = client.forward(problem.request(rows, routed, id=seed))
        return answer.id == seed and rows_of(answer.output) == [expected[routed][i] for i in rows]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(200)))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.share(3)
def test_shards_threads_and_kernels_change_no_bit(case, dtype, model, start_daemon):
    problem = Problem(case(model))
    outputs = {}
    for options in [("--shards", 1, "--threads", 2), *OTHER_OPTIONS]:
        daemon = start_daemon("--compute-dtype", dtype, *options, model=problem.golden.folder)
        with daemon.client() as client:
            described = client.describe().models[0].layers[-1]
            outputs[options] = (problem.outputs(client), described.weights_id, described.numerics_id)
        daemon.stop()
    first = next(iter(outputs.values()))
    different = [options for options, found in outputs.items() if found != first]
    assert not different, f"different bits, weights_id or numerics_id with {different}"


@pytest.mark.parametrize("model", MODELS)
def test_balanced_placements_and_replicas_change_no_bit(case, model, start_daemon, tmp_path, random):
    problem = Problem(case(model))
    experts = problem.golden.router_logits(problem.layer).shape[1]
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps({"layers": {str(layer): random.integers(0, 1000, experts).tolist()
                                             for layer in problem.golden.layers}}))
    outputs = []
    for options in [("--shards", 1), *((("--shards", shards, "--replicas", replicas, "--placement", "balanced",
                                         "--placement-counts", counts)) for shards, replicas in ((2, 0), (3, 2), (3, experts)))]:
        daemon = start_daemon(*options, model=problem.golden.folder)
        with daemon.client() as client:
            outputs.append(problem.outputs(client))
        daemon.stop()
    assert all(found == outputs[0] for found in outputs)


def test_f8_hidden_states_are_value_times_scale(setup, random):
    problem, _, client, _ = setup
    hidden = problem.rows.shape[1]
    groups = -(-hidden // 128)
    for dtype in ("F8_E4M3", "F8_E5M2"):
        codes = random.integers(0, 256, (6, hidden)).astype(np.uint8)
        codes[~np.isfinite(F8_VALUES[dtype][codes])] = 0x22
        for shape in ((1,), (6, 1), (6, groups)):
            scale = random.uniform(0.01, 2, shape).astype(np.float32)
            per_value = np.repeat(scale, 128, axis=1)[:, :hidden] if shape == (6, groups) and groups > 1 else scale
            values = (F8_VALUES[dtype][codes] * per_value).astype(np.float32)
            got = client.forward(problem.request([0] * 6, values=codes, dtype=dtype, hidden_scale=tensor(scale)))
            wanted = client.forward(problem.request([0] * 6, values=values))
            assert rows_of(got.output) == rows_of(wanted.output), (dtype, shape)


def test_output_dtypes_are_one_rounding_of_the_f32_output(setup):
    problem, _, client, expected = setup
    rows = range(16)
    exact = np.stack([np.frombuffer(expected[False][i], np.float32) for i in rows])
    for dtype in ("BF16", "F16"):
        request = problem.request(rows)
        request.output_dtype = pb.DType.Value(dtype)
        with np.errstate(over="ignore"):
            wanted = values_of(tensor(exact, dtype))
        assert np.array_equal(values_of(client.forward(request).output), wanted, equal_nan=True)


def test_f16_hidden_states_are_widened(setup):
    problem, _, client, expected = setup
    values = problem.rows[:16].astype(np.float16)
    narrow = client.forward(problem.request(range(16), values=values, dtype="F16"))
    wide = client.forward(problem.request(range(16), values=values.astype(np.float32)))
    assert rows_of(narrow.output) == rows_of(wide.output)


def test_a_request_without_tokens_has_an_answer_without_rows(setup):
    problem, _, client, _ = setup
    for routed in (False, True):
        output = client.forward(problem.request([], routed)).output
        assert list(output.shape) == [0, problem.rows.shape[1]] and output.data == b""


def test_a_row_of_dropped_slots_is_zero(setup):
    problem, _, client, expected = setup
    assert problem.ids[5].max() < 0
    assert not any(expected[True][5]), "a row without experts must be +0 in every element"


def test_hidden_states_are_rounded_once_to_the_compute_dtype(setup):
    """With bf16 compute, f32 rows give the same bits as these rows rounded to bf16. With f32 compute nothing is rounded."""
    problem, dtype, client, expected = setup
    rounded = bf16_values(np.frombuffer(tensor(problem.rows, "BF16").data, np.uint16)).reshape(problem.rows.shape)
    got = rows_of(client.forward(problem.request(range(TOKENS), values=rounded)).output)
    assert (got == expected[False]) == (dtype == "bf16")
    assert got[:16] == expected[False][:16], "golden rows are exact in bf16, so rounding must not change their answers"
