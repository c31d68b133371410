import assert from "node:assert/strict";
import { test } from "node:test";
import { Asker, GATHER_MS } from "../src/asker.ts";
import { isAsking, linkAfter } from "../src/text/link_state.ts";

// the modules below read facts of the site from the document
const window = { addEventListener: () => {}, removeEventListener: () => {} };
Object.assign(globalThis, { document: { querySelector: () => null }, window });
const { ApiError, anyOf, post } = await import("../src/api.ts");
const { LiveStream, link } = await import("../src/live.ts");

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

test("reloads during a slow request become one after its answer", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const answers: ((data: number) => void)[] = [];
  const shown: number[] = [];
  const asker = new Asker<number>(
    (signal) =>
      new Promise((resolve, reject) => {
        signal.addEventListener("abort", reject);
        answers.push(resolve);
      }),
    { onAsk: () => {}, onData: (data) => shown.push(data), onError: () => false },
  );
  for (let n = 0; n < 5; n += 1) {
    asker.reload();
    t.mock.timers.tick(GATHER_MS);
  }
  assert.equal(answers.length, 1, "one at a time");
  answers[0]?.(1);
  await turn();
  assert.deepEqual(shown, [1], "a slow answer is used");
  t.mock.timers.tick(GATHER_MS);
  t.mock.timers.tick(GATHER_MS);
  assert.equal(answers.length, 2, "one more, as the data may have changed meanwhile");
  asker.close();
  answers[1]?.(2);
  asker.reload();
  await turn();
  t.mock.timers.tick(GATHER_MS);
  assert.deepEqual([shown, answers.length], [[1], 2], "nothing after the end");
});

test("a failed request is repeated only if it may succeed, however often it is wanted", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let asked = 0;
  let hope = true;
  const asker = new Asker<number>(
    () => {
      asked += 1;
      return Promise.reject(new Error("no"));
    },
    { onAsk: () => {}, onData: () => {}, onError: () => hope },
  );
  await turn();
  asker.reload();
  t.mock.timers.tick(499);
  assert.equal(asked, 1, "a reload does not shorten the pause");
  hope = false;
  t.mock.timers.tick(1);
  await turn();
  t.mock.timers.tick(60_000);
  assert.equal(asked, 2);
  asker.reload();
  t.mock.timers.tick(GATHER_MS);
  assert.equal(asked, 3);
  asker.close();
});

test("a signal of several is aborted with the first, also with one that was before", () => {
  const [a, b] = [new AbortController(), new AbortController()];
  const both = anyOf(a.signal, b.signal);
  assert.ok(!both.aborted);
  b.abort("late");
  a.abort("later");
  assert.equal(both.reason, "late");
  assert.equal(anyOf(new AbortController().signal, b.signal).reason, "late");
});

test("an answer that is not JSON is an error with a sentence, which is not repeated", async (t) => {
  t.mock.method(globalThis, "fetch", async () => new Response("<html>proxy</html>"));
  await assert.rejects(post("/x"), (error) => {
    assert.ok(error instanceof ApiError);
    assert.deepEqual([error.code, error.retry], ["unreadable", false]);
    return true;
  });
});

test("a stream that is refused says why", () => {
  assert.deepEqual([401, 429, 403, 404, 503, 0].map(linkAfter), [
    "signedOut",
    "full",
    "asking",
    "asking",
    "lost",
    "lost",
  ]);
  assert.ok(isAsking("full") && isAsking("signedOut") && !isAsking("lost"));
});

test("the page asks again when its stream has begun, as changes before it are not sent", async (t) => {
  const blocks = [
    "event: status\ndata: 1\n\n",
    "id: 5-x\n\n",
    "id: 6-x\nevent: status\ndata: 2\n\n",
  ];
  t.mock.method(globalThis, "fetch", async (address: string, init: RequestInit) => {
    if (address.startsWith("/live-ticket")) return Response.json({ ticket: "t", header: "X-T" });
    const text = new ReadableStream({
      start(controller) {
        init.signal?.addEventListener("abort", () => controller.error(new Error("closed")));
        for (const block of blocks) controller.enqueue(new TextEncoder().encode(block));
      },
    });
    return new Response(text);
  });
  const seen: unknown[] = [];
  await new Promise<void>((resolve) => {
    const stream = new LiveStream(
      "",
      (_, data) => {
        seen.push(data);
        if (data !== 2) return;
        stream.close();
        resolve();
      },
      () => seen.push("ask"),
      () => seen.push("open"),
    );
  });
  assert.deepEqual(seen, [1, "open", 2]);
  assert.equal(link.value, "live");
});
