// Load from k6, a gRPC client in Go: unary calls and streams at a constant rate, independent of the answers (open loop). The schema is
// fetched by reflection. CASE is a JSON file with requests and the expected bytes of each answer; see test_k6.py.
//   k6 run --no-usage-report -e ADDRESS=HOST:PORT -e CASE=FILE -e RATE=100 -e SECONDS=4 k6_forward.js
import grpc from 'k6/net/grpc';
import { check } from 'k6';

const cases = JSON.parse(open(__ENV.CASE)); // [{request, output: {dtype, shape, data}}]
const rate = Number(__ENV.RATE);
const scenario = (exec, perSecond) => ({ executor: 'constant-arrival-rate', exec, rate: perSecond, timeUnit: '1s',
  duration: `${__ENV.SECONDS}s`, preAllocatedVUs: 4, maxVUs: 40, gracefulStop: '30s' });
export const options = {
  scenarios: { unary: scenario('unary', rate), streamed: scenario('streamed', Math.ceil(rate / 10)) },
  thresholds: { checks: ['rate==1'] },
};

const client = new grpc.Client();
let connected = false; // each virtual user has one connection
const connect = () => {
  if (!connected) {
    client.connect(__ENV.ADDRESS, { plaintext: true, reflect: true });
    connected = true;
  }
};

const isAnswer = (message, id, expected) => message !== null && Number(message.id) === id
  && message.output.dtype === expected.dtype && message.output.shape.map(Number).join() === expected.shape.join()
  && message.output.data === expected.data;

export function unary() {
  connect();
  const id = __VU * 100000 + __ITER + 1, one = cases[__ITER % cases.length];
  const answer = client.invoke('expertd.v1.Experts/Forward', { ...one.request, id }, { timeout: '30s' });
  check(answer, { 'unary: OK': (a) => a.status === grpc.StatusOK, 'unary: bytes': (a) => isAnswer(a.message, id, one.output) });
}

// All cases on one stream. Each must be answered once, in any order.
export function streamed() {
  connect();
  const stream = new grpc.Stream(client, 'expertd.v1.Experts/Stream');
  const waiting = new Set(cases.keys());
  let wrong = 0;
  stream.on('data', (message) => {
    const index = Number(message.id) - 1;
    wrong += waiting.delete(index) && isAnswer(message, index + 1, cases[index].output) ? 0 : 1;
  });
  stream.on('error', () => { wrong += 1; });
  stream.on('end', () => check(null, { 'stream: every answer once, its bytes': () => wrong === 0 && waiting.size === 0 }));
  cases.forEach((one, index) => stream.write({ ...one.request, id: index + 1 }));
  stream.end();
}
