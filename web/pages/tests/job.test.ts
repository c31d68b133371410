import assert from "node:assert/strict";
import { test } from "node:test";
import type { Status } from "../src/jobs.ts";
import {
  commands,
  commandText,
  definitionOf,
  formOf,
  groups,
  isCloneForm,
  keptForm,
  NotJson,
  otherProblems,
  pathsOf,
  problemsOf,
} from "../src/text/definition.ts";
import { boxes, curves, flameTree, frameAt, hottest, profileOf } from "../src/text/flame.ts";
import { newest } from "../src/text/job_status.ts";
import {
  imageType,
  kindOf,
  likelyAxis,
  MOST_COLUMNS,
  numericColumns,
  table,
  tablePlot,
} from "../src/text/preview.ts";
import { askedBy, efficiency, type UsageReply, usagePlots } from "../src/text/usage_plots.ts";

test("an answer that was under way takes back no news of the stream", () => {
  const status = (more: Partial<Status>): Status => ({
    ...{ state: "running", computeJid: "u-s-m", computeJobSerial: 5, position: 7 },
    ...more,
  });
  const progress = { percentComplete: 30 };
  const answer = status({ parallelStatus: null });
  assert.equal(newest(undefined, answer), answer);
  const over = status({ state: "completed", position: 9 });
  assert.equal(newest(over, answer), over);
  assert.equal(newest(answer, over), over);
  const news = status({ parallelStatus: progress });
  assert.deepEqual(newest(news, answer).parallelStatus, progress);
  assert.equal(
    newest(news, status({ computeJobSerial: 6, position: 8 })).parallelStatus,
    undefined,
  );
  assert.equal(newest(news, over), over);
});

const DEFINITION = {
  name: "train",
  roles: {
    main: { tasks: 1, command: "python train.py", cpu: 2, memory: 1024, env: { A: "1" } },
    worker: { tasks: 2, command: ["echo", "it's"], cpu: 4, memory: 100, gpu: 1, image: "img" },
  },
  env: { STEPS: "5", API_TOKEN: "@WITHHELD:API_TOKEN@" },
  timeLimit: 3600,
  after: [{ job: "u-s-command", on: "ok" }],
  odd: { new: [1] },
};
const REPLY = { definition: DEFINITION, app: false, notes: [], withheld: [] };

test("a definition is shown completely, without secrets", () => {
  const shown = groups(REPLY);
  const text = JSON.stringify(shown);
  assert.deepEqual(
    shown.map((g) => g.title),
    ["Role main", "Role worker", "Placement and policies", "Environment"],
  );
  for (const part of ["3,600 s", "1,024 MiB", "u-s-command (ok)", "new: [1]", "A (main)"])
    assert.ok(text.includes(part), part);
  assert.ok(!text.includes("WITHHELD") && text.includes("(not shown)"));
  assert.deepEqual(commands(REPLY), [
    ["main", "python train.py"],
    ["worker", `echo 'it'"'"'s'`],
  ]);
});

test("what is not edited stays as it was, and what is edited is sent as typed", () => {
  const form = formOf(DEFINITION, false);
  assert.deepEqual(definitionOf(DEFINITION, false, form), DEFINITION);
  const [main, worker] = form.roles;
  assert.ok(main && worker);
  const edited = definitionOf(DEFINITION, false, {
    ...form,
    name: "again",
    timeLimit: "",
    queue: "gpu",
    env: [
      ["STEPS", "6"],
      [" ", "x"],
    ],
    roles: [
      { ...main, memory: "2GB", cpu: "8" },
      { ...worker, command: "echo 2", gpu: "" },
    ],
  });
  const wanted = {
    ...DEFINITION,
    name: "again",
    timeLimit: undefined,
    queue: "gpu",
    env: { STEPS: "6" },
    roles: {
      main: { ...DEFINITION.roles.main, memory: "2GB", cpu: 8 },
      worker: { ...DEFINITION.roles.worker, command: "echo 2", gpu: undefined },
    },
  };
  assert.deepEqual(edited, JSON.parse(JSON.stringify(wanted)));
  assert.equal(DEFINITION.roles.main.cpu, 2);
  assert.equal(commandText(["a b", "c"]), "'a b' c");
  const text = definitionOf(DEFINITION, false, { ...form, text: '{"name":"x"}' });
  assert.deepEqual(text, { name: "x" });
  assert.throws(() => definitionOf(DEFINITION, false, { ...form, text: "[1]" }), NotJson);
});

test("what is typed in a form is kept, without what looks like a secret", () => {
  const form = formOf(DEFINITION, false);
  assert.ok(isCloneForm(form) && isCloneForm(JSON.parse(JSON.stringify(form))));
  const env: [string, string][] = [
    ["STEPS", "6"],
    ["API_TOKEN", "@WITHHELD:API_TOKEN@"],
    ["PASSWORD", "hunter2"],
  ];
  const kept = keptForm({ ...form, env, text: '{"password": "hunter2"}' });
  assert.deepEqual(kept.env, [...env.slice(0, 2), ["PASSWORD", ""]]);
  assert.equal(kept.text, '{"password": ""}');
  assert.deepEqual(keptForm(form).roles, form.roles);
  for (const odd of [null, {}, { ...form, env: [["a"]] }, { ...form, roles: [{ role: "a" }] }])
    assert.ok(!isCloneForm(odd), JSON.stringify(odd));
});

test("an app's run is edited by its inputs", () => {
  const app = { simName: "run", data: { models: { a: 1 } }, timeLimitSecs: 5 };
  const form = formOf(app, true);
  assert.deepEqual(definitionOf(app, true, form), app);
  const edited = definitionOf(app, true, { ...form, data: '{"models":{"a":2}}', name: "b" });
  assert.deepEqual(edited, { ...app, simName: "b", data: { models: { a: 2 } } });
  assert.throws(() => definitionOf(app, true, { ...form, data: "{" }), NotJson);
});

test("each problem is beside its field, or above the form", () => {
  const problem = (path: string) => ({ path, problem: "bad", right: "" });
  const all = ["roles.main.cpu", "env.API_TOKEN", "after[0].job", "", "roles.worker.ports"].map(
    problem,
  );
  const paths = pathsOf(formOf(DEFINITION, false), false);
  assert.equal(problemsOf(all, "roles.main.cpu").length, 1);
  assert.equal(problemsOf(all, "env").length, 1);
  assert.deepEqual(
    otherProblems(all, paths).map((p) => p.path),
    ["after[0].job", "", "roles.worker.ports"],
  );
});

const FIELDS = [
  "at",
  "cpuSecs",
  "readBytes",
  "writtenBytes",
  "cpuPercent",
  "memoryBytes",
  "gpuPercent",
];
const point = (at: number, read: number, memory: number) => [at, 1, read, 0, 50, memory, null];
const USAGE: UsageReply = {
  attempt: 1,
  seriesFields: FIELDS,
  job: {
    cpuSecs: { sum: 120, max: 60, known: 3, of: 3 },
    peakMemoryBytes: { sum: 0, max: 100 * 2 ** 20, known: 3, of: 3 },
  },
  tasks: [
    { role: "main", index: 0, series: [point(100, 0, 5), point(110, 1000, 6), point(120, 500, 7)] },
    { role: "worker", index: 0, series: [point(103, 0, 1), point(113, 2000, 2)] },
    { role: "worker", index: 1, series: [] },
  ],
};
const LIVED = [
  { role: "main", index: 0, startedAt: 95, endedAt: 195 },
  { role: "worker", index: 0, startedAt: 95, endedAt: 130, exit: { outOfMemory: true } },
  { role: "worker", index: 1, startedAt: 95, endedAt: 195 },
];

test("what containers sent is drawn, and memory that ran out unmeasured is told", () => {
  const reply: UsageReply = {
    attempt: 1,
    seriesFields: ["at", "receivedBytes", "sentBytes"],
    job: {},
    tasks: [
      {
        role: "main",
        index: 0,
        series: [
          [100, 0, null],
          [110, 1000, null],
        ],
      },
    ],
  };
  const lived = [
    { role: "main", index: 0, startedAt: 95, endedAt: 99, exit: { outOfMemory: true } },
  ];
  const asked = { main: { cores: 1, memory: 64 * 2 ** 20, gpus: null, isLimit: true } };
  const network = usagePlots(reply, () => true, lived, asked).find((p) => p.title === "Network");
  assert.deepEqual(
    network?.series.map((s) => s.values.at(-1)),
    [100, null],
  );
  assert.deepEqual(efficiency(reply, lived, asked, 200), [
    {
      name: "Memory",
      share: null,
      text: "the peak was not measured; the limit is 64.0 MiB",
      advice: "Memory ran out. Request more.",
    },
  ]);
});

test("usage over time has what was requested and where memory ran out", () => {
  const asked = askedBy(DEFINITION);
  const plots = usagePlots(USAGE, () => true, LIVED, asked);
  assert.deepEqual(
    plots.map((p) => p.title),
    ["CPU (100 % is one core)", "Memory", "Disk"],
  );
  const [cpu, memory, disk] = plots;
  assert.deepEqual(
    cpu?.series.map((s) => s.name),
    ["main/0", "worker/0"],
  );
  assert.deepEqual(
    cpu?.lines?.map((l) => l.value),
    [200, 400],
  );
  assert.deepEqual(
    cpu?.lines?.map((l) => l.name),
    ["requested of main", "limit of worker"],
  );
  assert.deepEqual(memory?.x.values, [100, 110, 120, 130]);
  assert.deepEqual(memory?.series[0]?.values, [5, 6, 7, null]);
  assert.deepEqual(memory?.marks, [{ at: 130, text: "Out of memory" }]);
  assert.equal(memory?.x.start, 95);
  // the counters of all tasks; one that falls has begun again
  assert.deepEqual(disk?.series[0]?.values, [null, 300, null, null]);
  const [one] = usagePlots(USAGE, (t) => t.role === "worker" && t.index === 0, LIVED, asked);
  assert.deepEqual(one?.x.values, [103, 113, 130]);
  assert.deepEqual(usagePlots({ ...USAGE, tasks: [] }, () => true, [], {})[0]?.x.values, []);
});

test("efficiency is said in words, with an advice when it is far off", () => {
  const asked = askedBy({ roles: { main: { cpu: 4, memory: 2048 } } });
  const lived = [{ role: "main", index: 0, startedAt: 1000, endedAt: 1100 }];
  const [cpu, memory] = efficiency(USAGE, lived, asked, 0);
  assert.equal(cpu?.text, "30 % of 4 cores over 1 min 40 s");
  assert.match(cpu?.advice ?? "", /It used 1.2 cores on average. Request 2 cores/);
  assert.equal(memory?.text, "5 % of 2.0 GiB: at most 100 MiB");
  assert.equal(memory?.advice, "Request about 128 MiB.");
  const [, out] = efficiency(USAGE, LIVED, askedBy(DEFINITION), 0);
  assert.equal(out?.advice, "Memory ran out. Request more.");
  const plain = efficiency(USAGE, lived, {}, 0);
  assert.deepEqual(
    plain.map((e) => [e.share, e.advice]),
    [
      [null, ""],
      [null, ""],
    ],
  );
  assert.deepEqual(efficiency({ ...USAGE, job: {} }, [], {}, 0), []);
  const cluster = askedBy({ batch: { nodes: 2, tasks: 4, cores: 2, memory: 100 } });
  assert.deepEqual(cluster.main, { cores: 8, memory: 200 * 2 ** 20, gpus: null, isLimit: true });
});

test("only bytes of pictures are pictures", () => {
  const bytes = (text: string) => new TextEncoder().encode(text);
  const png = new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0]);
  assert.equal(imageType(png), "image/png");
  assert.equal(kindOf(png), "image");
  for (const text of ["<svg xmlns='x'><script>1</script></svg>", "<!doctype html>", "BM a text"])
    assert.equal(kindOf(bytes(text)), "text");
  assert.equal(kindOf(bytes("GIF89a")), "image");
  assert.equal(kindOf(new Uint8Array([1, 2, 0, 3])), "binary");
  assert.equal(kindOf(new Uint8Array(200).fill(0xff)), "binary");
  assert.equal(kindOf(bytes("Größe €").subarray(0, 9)), "text");
});

test("a table is found in CSV of any form, and its numbers become a plot", () => {
  const text = 'step;loss (eV);note\r\n1;0,5;"a;""b"""\r\n2;0.25;\n\n3;1e-3;c\n4;9';
  const whole = table(text, false, 100);
  assert.deepEqual(whole.head, ["step", "loss (eV)", "note"]);
  assert.deepEqual(whole.rows[0], ["1", "0,5", 'a;"b"']);
  assert.deepEqual(whole.rows.at(-1), ["4", "9"]);
  assert.deepEqual(table(text, true, 100).rows.at(-1), ["3", "1e-3", "c"]);
  assert.equal(table(text, false, 2).rows.length, 2);
  const found = table("t (s),a (V),b (V),b (V),word\n1,2,3,4,x\n2,nan,5,6,y\n", false, 100);
  assert.deepEqual(numericColumns(found), [0, 1, 2, 3]);
  assert.equal(likelyAxis(found), 0);
  const plot = tablePlot(found, 0, "file");
  assert.deepEqual([plot?.x.name, plot?.x.unit, plot?.y.unit], ["t", "s", "V"]);
  assert.deepEqual(
    plot?.series.map((s) => [s.name, s.values]),
    [
      ["a", [2, null]],
      ["b", [3, 5]],
      ["b 2", [4, 6]],
    ],
  );
  assert.equal(tablePlot(table("a,b\nx,y\n", false, 9), -1, "file"), null);
  assert.deepEqual(table("", false, 9), { head: [], rows: [] });
  // a page cannot show a cell for each of a million
  const wide = table(`${"h,".repeat(5000)}\n${"1,".repeat(5000)}\n2\n`, false, 9);
  assert.equal(wide.head.length, MOST_COLUMNS);
  assert.deepEqual(
    wide.rows.map((row) => row.length),
    [MOST_COLUMNS, 1],
  );
});

test("stacks become boxes, hot functions and curves", () => {
  const root = flameTree("main;a;b 6\nmain;a 2\nmain;c;c 2\nodd line\n<b>;x nan\n");
  assert.equal(root.total, 10);
  assert.deepEqual(
    boxes(root, []).map((b) => [b.frame.name, b.depth, b.left, b.width]),
    [
      ["all", 0, 0, 1],
      ["main", 1, 0, 1],
      ["a", 2, 0, 0.8],
      ["c", 2, 0.8, 0.2],
      ["b", 3, 0, 0.6],
      ["c", 3, 0.8, 0.2],
    ],
  );
  assert.equal(boxes(root, ["main", "a"])[1]?.width, 0.75);
  assert.equal(frameAt(root, ["gone"]), root);
  assert.deepEqual(hottest(root, 2), [
    { name: "b", self: 6, total: 6 },
    { name: "a", self: 2, total: 8 },
  ]);
  const drawn = curves("CMDLINE x\nMEM 2.0 10\nMEM 1.0 9\nGPU 50 3 1\n");
  assert.deepEqual(
    drawn.map((p) => p.title),
    ["Memory", "GPU", "GPU memory"],
  );
  assert.deepEqual(drawn[0]?.series[0]?.values, [2 ** 20, 2 ** 21]);
  const name = "jobscribe-profiles/17-2-worker-1/cpu-sampler-4242-99-python3.11.collapsed";
  assert.deepEqual(profileOf({ name, size: 5 }), {
    name,
    task: "worker/1",
    attempt: 2,
    tool: "cpu sampler",
    program: "python3.11",
    pid: "4242",
    ending: "collapsed",
    size: 5,
  });
  assert.equal(profileOf({ name: "other/17-2-worker-1/cpu-sampler.dat", size: 5 }), null);
  assert.equal(profileOf({ name: name.replace("cpu-", "unavailable-cpu-"), size: 5 }), null);
});
