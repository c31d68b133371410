import assert from "node:assert/strict";
import { test } from "node:test";
import { lineRange } from "../src/parts/editor.tsx";
import {
  formatFilters,
  NO_FILTERS,
  parseFilters,
  searchName,
  searchRequest,
} from "../src/text/filters.ts";
import { hints } from "../src/text/form_hints.ts";
import {
  byField,
  descriptionOf,
  EMPTY,
  type Form,
  fieldOf,
  type Options,
  suggestedName,
  variables,
  withoutRole,
  withRole,
} from "../src/text/job_form.ts";
import { withoutSecrets } from "../src/text/secrets.ts";

// the modules below read facts of the site from the document
const meta = (query: string): object | null =>
  query.includes("-user") ? { content: "annann01" } : null;
const window = { addEventListener: () => {}, removeEventListener: () => {} };
Object.assign(globalThis, { document: { querySelector: meta }, window });
const { ApiError, addressed, refusal } = await import("../src/api.ts");
const { loadDraft, NO_DRAFT, saveDraft } = await import("../src/draft.ts");
const { idFor, untilAnswered } = await import("../src/submission.ts");
const { readViews, removeView, saveView } = await import("../src/views.ts");

const OPTIONS: Options = {
  maxTextBytes: 1_048_576,
  maxTags: 32,
  maxRuns: 10_000,
  drivers: [
    {
      name: "local",
      containers: false,
      cluster: false,
      hosts: 1,
      largest: { cpu: 8, memory: 4096, gpu: 0 },
      gpuTypes: [],
    },
    { name: "sbatch", containers: false, cluster: true, hosts: 0, largest: null, gpuTypes: [] },
  ],
  queues: [{ name: "default", share: 1, borrow: true }],
  queue: "default",
  limits: { cores: 4, sequential: 3600 },
  timeLimit: null,
  queueLimit: null,
  clusters: [
    {
      cluster: "alpha",
      state: "up",
      partitions: [{ name: "short", default: true, timeLimitSecs: 600, coresPerNode: 64 }],
    },
  ],
};
const form = (fields: Partial<Form>): Form => ({ ...EMPTY, command: "make", ...fields });
const memory = (): Storage => {
  const held = new Map<string, string>();
  return {
    getItem: (k: string) => held.get(k) ?? null,
    setItem: (k: string, v: string) => void held.set(k, v),
    removeItem: (k: string) => void held.delete(k),
  } as Storage;
};

test("a form becomes a job file; values that are no numbers are left to the supervisor", () => {
  const none = { count: 0, platform: 0 };
  assert.deepEqual(descriptionOf(form({}), OPTIONS), {
    name: "make",
    retry: none,
    command: "make",
  });
  assert.deepEqual(
    descriptionOf(form({ cores: "2", memory: "2GB", gpus: "x", retries: "3" }), OPTIONS),
    {
      name: "make",
      retry: { count: 3 },
      roles: { main: { cpu: 2, memory: "2GB", gpu: "x", command: "make" } },
    },
  );
  const batch = form({
    driver: "sbatch",
    partition: "short",
    cores: "4",
    image: "left out",
    time: "1h",
  });
  assert.deepEqual(descriptionOf(batch, OPTIONS), {
    name: "make",
    driver: "sbatch",
    timeLimit: "1h",
    retry: none,
    batch: { partition: "short", cores: 4 },
    command: "make",
  });
  const more = descriptionOf(
    form({ name: "a", array: "0-9", env: "A=1=2\n\n B = x\nC" }),
    undefined,
  );
  assert.deepEqual([more.array, more.env], ["0-9", { A: "1=2", B: " x", C: "" }]);
  assert.deepEqual(variables(""), {});
  assert.equal(suggestedName("#!/bin/sh\n\n/opt/run me.sh"), "run");
  assert.equal(suggestedName("'"), "job");
});

test("roles become roles of the job file, and their problems go to their fields", () => {
  const one = form({ cores: "2", retries: "1", platform: "5" });
  const roles = withRole(one);
  assert.deepEqual(
    roles.map(({ name, command, cores }) => [name, command, cores]),
    [
      ["main", "make", "2"],
      ["worker", "", ""],
    ],
  );
  const [main, worker] = roles;
  assert.ok(main && worker);
  const typed = { ...worker, command: "work", tasks: "4", failed: "Never", succeeded: "3" };
  const both = form({ roles: [main, typed, { ...worker, command: "again" }], platform: "5" });
  assert.deepEqual(descriptionOf(both, OPTIONS), {
    name: "make",
    retry: { count: 0, platform: 5 },
    roles: {
      main: { cpu: 2, command: "make" },
      worker: { tasks: 4, minFailed: null, minSucceeded: 3, command: "work" },
      "worker~3": { command: "again" },
    },
  });
  assert.deepEqual(descriptionOf(one, OPTIONS).retry, { count: 1, platform: 5 });
  const batch = form({ roles, driver: "sbatch", partition: "short" });
  assert.deepEqual(descriptionOf(batch, OPTIONS).batch, { partition: "short" });
  const paths = [
    "roles.worker.minFailed",
    "roles.main",
    "roles.worker~3",
    "roles.main.cpu",
    "roles",
  ];
  assert.deepEqual(
    paths.map((path) => fieldOf({ path, problem: "", right: "" }, both.roles)),
    ["1 failed", "0 name", "2 name", "0 cores", "0 name"],
  );
  assert.deepEqual(withoutRole({ ...one, roles: [main] }, 0), {
    roles: [],
    command: "make",
    cores: "2",
    memory: "",
    gpus: "",
    image: "",
  });
  const store = memory();
  const draft = { ...NO_DRAFT, form: both };
  assert.equal(saveDraft(store, draft), false);
  assert.deepEqual(loadDraft(store), draft);
});

test("problems stand beside their fields", () => {
  const paths = [
    "roles.main.cpu",
    "batch.cores",
    "env.A",
    "batch",
    "roles.main.command",
    "queue",
    "",
  ];
  const fields = ["cores", "cores", "env", "partition", "command", "queue", undefined];
  const problems = paths.map((path) => ({ path, problem: path, right: "" }));
  assert.deepEqual(
    problems.map((problem) => fieldOf(problem)),
    fields,
  );
  assert.equal(byField(problems).get("cores")?.length, 2);
});

test("limits of user, host and partition are beside the fields", () => {
  const local = hints(form({}), OPTIONS);
  assert.match(local.cores ?? "", /At most 4\./);
  assert.match(local.memory ?? "", /At most 4\.0 GiB/);
  assert.match(local.gpus ?? "", /no GPUs/);
  assert.match(local.time ?? "", /Default: 1 h\. At most 1 h\./);
  const batch = hints(form({ driver: "sbatch" }), OPTIONS);
  assert.match(batch.time ?? "", /At most 10 min\./);
  assert.equal(batch.partition, "Default: short.");
  assert.deepEqual(hints(form({}), undefined), {});
});

test("a browser keeps no secrets and everything else", () => {
  const text = [
    "name: x",
    "password: hunter2",
    '{"api_key": "abc", "cpu": 2}',
    "command: run --token abc123 --steps 5",
    '{"token": "@WITHHELD:A@"}',
    "url: https://ann:pw@example.org/data",
    "secrets:",
    "  registry: abc",
    "  other: def",
    "env: {STEPS: 100}",
    "export DB_PASSWORD='a b' && go",
  ].join("\n");
  assert.equal(
    withoutSecrets(text),
    [
      "name: x",
      "password: ",
      '{"api_key": "", "cpu": 2}',
      "command: run --token  --steps 5",
      '{"token": "@WITHHELD:A@"}',
      "url: https://example.org/data",
      "secrets:",
      "  ",
      "  ",
      "env: {STEPS: 100}",
      "export DB_PASSWORD= && go",
    ].join("\n"),
  );
  const long = `${"token ".repeat(50_000)}\n${"a-".repeat(100_000)}`;
  const begun = Date.now();
  withoutSecrets(long);
  assert.ok(Date.now() - begun < 5_000, "no text takes minutes");
});

test("a draft comes back, without what may not be kept", () => {
  const store = memory();
  assert.deepEqual(loadDraft(store), NO_DRAFT);
  const draft = {
    ...NO_DRAFT,
    form: form({ cores: "2" }),
    text: "name: x",
    sent: { content: "c", reqId: "r" },
  };
  assert.equal(saveDraft(store, draft), false);
  assert.deepEqual(loadDraft(store), draft);
  assert.equal(saveDraft(store, { ...draft, text: "password: abc" }), true);
  assert.deepEqual(loadDraft(store), { ...draft, text: "password: ", sent: null });
  for (const odd of ["{", "3", '{"form": 7, "text": [], "sent": {}}']) {
    const broken = { ...memory(), getItem: () => odd };
    assert.deepEqual(loadDraft(broken), NO_DRAFT);
  }
  const full = {
    ...memory(),
    setItem: () => {
      throw new Error("full");
    },
  };
  assert.equal(saveDraft(full, draft), true);
});

test("the same job is sent with the same id until it is answered", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const order = { text: "name: x", noImage: false, tags: [] };
  const first = idFor(order, null);
  assert.equal(idFor(order, first).reqId, first.reqId);
  assert.notEqual(idFor({ ...order, text: "name: y" }, first).reqId, first.reqId);
  let tries = 0;
  const waits: number[] = [];
  const away = new ApiError("unreachable", "away", "", 0, true);
  const answer = untilAnswered(
    async () => {
      tries += 1;
      if (tries < 3) throw away;
      return "done";
    },
    new AbortController().signal,
    (_, n) => {
      waits.push(n);
      setImmediate(() => t.mock.timers.tick(10_000));
    },
  );
  assert.equal(await answer, "done");
  assert.deepEqual(waits, [1, 2]);
  const abort = new AbortController();
  const stopped = untilAnswered(
    () => Promise.reject(away),
    abort.signal,
    () => abort.abort(),
  );
  await assert.rejects(stopped);
  const no = new ApiError("forbidden", "no", "", 403, false);
  await assert.rejects(
    untilAnswered(
      () => Promise.reject(no),
      new AbortController().signal,
      () => {},
    ),
    no,
  );
});

test("a request about another user's job names this user", () => {
  const own = { computeJid: "annann01-abcdefgh-command" };
  const other = { computeJid: "bobbob01-abcdefgh-command", reqId: "r" };
  assert.deepEqual(addressed("/page-data/run-cancel", own), ["/page-data/run-cancel", own]);
  assert.deepEqual(addressed("/page-data/run-cancel", other), [
    "/page-data/site/run-cancel",
    { ...other, uid: "bobbob01" },
  ]);
  assert.equal(addressed("/page-data/trace", { id: other.computeJid })[0], "/page-data/site/trace");
  const given = { ...other, uid: "x" };
  assert.deepEqual(addressed("/page-data/site/run-status", given), [
    "/page-data/site/run-status",
    given,
  ]);
  assert.equal(addressed("/live-ticket", {})[0], "/live-ticket");
});

test("a refusal keeps the problems of a text", async () => {
  const problems = [{ line: 3, problem: "p", right: "r" }];
  const body = { code: "badRequest", error: "not valid", problems };
  const error = await refusal(Response.json(body, { status: 400 }));
  assert.deepEqual([error.problems, error.retry], [problems, false]);
});

test("whose jobs are shown is in the address; a user only beyond one's own", () => {
  const all = parseFilters("?scope=all&user=bobbob01&state=error");
  assert.deepEqual([all.scope, all.user, searchName(all)], ["all", "bobbob01", "site/job-search"]);
  assert.equal(searchRequest(all, 50).uid, "bobbob01");
  assert.equal(formatFilters(all), "?scope=all&state=error&user=bobbob01");
  const mine = parseFilters("?user=bobbob01");
  assert.deepEqual([mine.user, searchName(mine)], ["", "job-search"]);
  assert.equal(parseFilters("?scope=odd").scope, "mine");
  assert.equal(formatFilters(NO_FILTERS), "");
});

test("views of two tabs are both kept", () => {
  const store = memory();
  saveView({ name: "a", query: "?state=error" }, store);
  saveView({ name: "b", query: "?state=running" }, store);
  saveView({ name: "a", query: "?state=pending" }, store);
  assert.deepEqual(
    readViews(store).map((v) => v.name),
    ["b", "a"],
  );
  removeView("b", store);
  assert.deepEqual(readViews(store), [{ name: "a", query: "?state=pending" }]);
  for (const odd of ["{", "7", '[{"name": 1}, {"name": "x", "query": "javascript:1"}]']) {
    assert.deepEqual(readViews({ ...memory(), getItem: () => odd }), []);
  }
});

test("a line is found by its number", () => {
  assert.deepEqual(lineRange("a\nbc\nd", 2), [2, 4]);
  assert.deepEqual(lineRange("a\nbc", 9), [2, 4]);
});
