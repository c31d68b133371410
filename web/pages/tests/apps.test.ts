/** The pure parts of the pages of apps. */

import assert from "node:assert/strict";
import test from "node:test";
import type { AppStatus, Cluster, Model } from "../src/apps.ts";
import { ticks, tickTexts, valueText } from "../src/picture/ticks.ts";
import {
  answered,
  fromStream,
  heard,
  progressed,
  progressText,
  sentenceOf,
} from "../src/text/app_status.ts";
import { pictureCsv, plotOf } from "../src/text/curves.ts";
import { faultsOf, textsOf, valuesFrom } from "../src/text/form.ts";
import {
  areEqual,
  boundsText,
  completed,
  formatSimulationView,
  mergedWith,
  namedField,
  parseSimulation,
  parseSimulationView,
} from "../src/text/simulation.ts";
import { labelText, parseLabel, unitText } from "../src/text/units.ts";

const MODEL: Model = {
  name: "heat",
  title: "Heat",
  kind: "parallel",
  reports: [],
  fields: [
    { name: "size", title: "Cells", default: 100, minimum: 10, maximum: 1000 },
    { name: "edge", title: "Edge", default: "cold", choices: ["cold", "warm"] },
    { name: "fast", title: "Fast", default: false },
  ],
};

const CLUSTER: Cluster = {
  cluster: "alpha",
  limits: { nodes: 8 },
  partitions: [
    { name: "debug", default: true, up: true, maxNodes: 2, timeLimitSecs: 1800 },
    { name: "long", up: true },
    { name: "old", up: false },
  ],
};

const status = (more: Partial<AppStatus>): AppStatus => ({
  state: "running",
  computeJid: "u-s-m",
  computeJobSerial: 5,
  ...more,
});

test("news that are late take nothing back", () => {
  const running = status({ computeJobPosition: 7, frameCount: 3 });
  const over = status({ state: "completed", computeJobPosition: 9 });
  const next = status({ state: "pending", computeJobSerial: 6 });
  assert.equal(heard(running, status({ computeJobPosition: 6, state: "pending" }), true), running);
  assert.equal(heard(over, running, true).state, "completed");
  assert.equal(heard(next, over, false), next);
  assert.equal(heard(over, next, false), next);
  // a status without a report keeps the last report, but not of another run
  assert.equal(heard(running, status({ computeJobPosition: 8 }), false).frameCount, 3);
  assert.equal(heard(running, next, false).frameCount, undefined);
  assert.equal(progressed(over, 5, { frameCount: 9 }), over);
  assert.equal(progressed(running, 4, { frameCount: 9 }), running);
  assert.equal(progressed(running, 5, { frameCount: 9 }).frameCount, 9);
});

test("an answer that was under way takes nothing back", async () => {
  const latest = { current: status({ state: "pending", computeJobPosition: 6 }) };
  let answer = (_: AppStatus): void => {};
  const asked = answered(latest, new Promise<AppStatus>((resolve) => (answer = resolve)));
  latest.current = status({ computeJobPosition: 7 });
  latest.current = progressed(latest.current, 5, { percentComplete: 30 });
  answer(status({ computeJobPosition: 7 }));
  assert.equal((await asked).percentComplete, 30);
  assert.equal(latest.current.percentComplete, 30);
  const over = status({ state: "completed", computeJobPosition: 9 });
  const late = answered(latest, Promise.resolve(status({ computeJobPosition: 8 })));
  latest.current = over;
  assert.equal(await late, over);
});

test("a run does not change what only the system knows", () => {
  const report = { frameCount: 4, state: "error", error: "a lie", computeJobSerial: 1 };
  const said = fromStream({
    state: "running",
    computeJid: "u-s-m",
    computeJobSerial: 5,
    position: 8,
    parallelStatus: report,
    reason: null,
  });
  assert.deepEqual(said, {
    ...{ frameCount: 4, state: "running", computeJid: "u-s-m" },
    ...{ computeJobSerial: 5, computeJobPosition: 8 },
  });
  assert.equal(progressed(status({}), 5, report).state, "running");
});

test("where to sign in is kept while it may be needed", () => {
  const last = status({ state: "pending", signIn: { cluster: "alpha" }, queueState: "sign_in" });
  const waits = status({ state: "pending", queueState: "sign_in" });
  assert.deepEqual(heard(last, waits, false).signIn, { cluster: "alpha" });
  assert.equal(heard(last, waits, true).signIn, undefined);
  assert.equal(heard(last, status({ queueState: "slurm" }), false).signIn, undefined);
  assert.match(sentenceOf(status({ known: false })), /cannot be asked.*goes on/);
});

test("progress is a number of frames, or a share", () => {
  assert.equal(progressText(status({ frameCount: 2, frameTotal: 60 })), "2 of 60 frames");
  assert.equal(progressText(status({ frameCount: 2, percentComplete: 3.4 })), "2 frames, 3 %");
  assert.equal(progressText(status({ percentComplete: 30 })), "30 %");
  assert.equal(progressText(status({ state: "completed", percentComplete: 100 })), "");
});

test("values of another tab are merged, unless both tabs changed the same ones", () => {
  const heat = { size: 5, edge: "cold", fast: false };
  const base = { name: "n", model: "heat", models: { heat } };
  const mine = { ...heat, size: 7 };
  const renamed = { ...base, name: "new", models: { heat, other: { a: 1 } } };
  assert.deepEqual(mergedWith(renamed, base, MODEL, mine), {
    name: "new",
    model: MODEL.name,
    models: { ...renamed.models, [MODEL.name]: mine },
  });
  const theirs = { ...base, models: { [MODEL.name]: { ...heat, size: 9 } } };
  const mineBase = { ...base, models: { [MODEL.name]: heat } };
  assert.equal(mergedWith(theirs, mineBase, MODEL, mine), undefined);
  assert.ok(mergedWith(theirs, mineBase, MODEL, { ...heat, size: 9 }), "both typed the same");
  assert.equal(mergedWith(undefined, mineBase, MODEL, mine), undefined, "it was deleted");
});

test("a stored simulation of any form can be read", () => {
  const none = { name: "", model: "", models: {} };
  for (const bad of [null, 3, "x", [], { models: 3, name: {} }])
    assert.deepEqual(parseSimulation(bad), none);
  const models = { heat: { size: 5, odd: { a: 1 }, edge: null } };
  assert.deepEqual(parseSimulation({ name: "n", model: "heat", models }).models, {
    heat: { size: 5 },
  });
  assert.deepEqual(completed(MODEL, { size: "7", extra: 1 }), {
    size: 100,
    edge: "cold",
    fast: false,
    extra: 1,
  });
  assert.ok(areEqual({ a: 1, b: "" }, { a: 1 }) && !areEqual({ a: 1 }, { a: 2 }));
});

test("an address of a simulation and its view are the same", () => {
  for (const query of ["", "?frame=1", "?model=m&tab=library&stream=stderr&frame=12"]) {
    assert.equal(formatSimulationView(parseSimulationView(query)), query);
  }
  assert.equal(formatSimulationView(parseSimulationView("?tab=x&frame=-1&model=<b>")), "");
});

test("values are numbers within their bounds", () => {
  const fault = (size: string): string | undefined =>
    faultsOf(MODEL, [], { ...textsOf(MODEL, {}), size }).get("size");
  for (const right of ["10", "1e2", " 1000 ", "10.5"]) assert.equal(fault(right), undefined, right);
  for (const wrong of ["", "9", "1001", "x", "NaN", "1e999"]) {
    assert.equal(fault(wrong), "This must be a number: 10 to 1000.", wrong);
  }
  assert.equal(boundsText({ name: "a", title: "a", default: 1, minimum: 0 }), "at least 0");
  assert.deepEqual(valuesFrom(MODEL, [], { size: "12", edge: "warm", fast: true }), {
    ...{ size: 12, edge: "warm", fast: true },
  });
  assert.deepEqual(namedField("models.heat.size (Cells) must be int"), [
    "size",
    "Cells must be int",
  ]);
  assert.equal(namedField("no field"), undefined);
});

test("what is asked of a cluster is within its limits", () => {
  const texts = { ...textsOf(MODEL, {}), sbatchCluster: "alpha" };
  const fault = (more: object): unknown => [...faultsOf(MODEL, [CLUSTER], { ...texts, ...more })];
  assert.deepEqual(fault({ sbatchNodes: "3" }), [["sbatchNodes", "This may be at most 2 here."]]);
  assert.deepEqual(fault({ sbatchNodes: "8", sbatchQueue: "long" }), []);
  assert.match(String(fault({ sbatchNodes: "0" })), /whole number of at least 1/);
  assert.deepEqual(
    valuesFrom(MODEL, [CLUSTER], { ...texts, sbatchHours: "0.5", sbatchNodes: "" }),
    {
      ...{ size: 100, edge: "cold", fast: false },
      ...{ jobRunMode: "sbatch", sbatchCluster: "alpha", sbatchQueue: "debug", sbatchHours: 0.5 },
    },
  );
});

test("units are printed as people write them", () => {
  assert.deepEqual(["cm2/s", "degC", "1/sigma2", "m", "um"].map(unitText), [
    "cm²/s",
    "°C",
    "1/sigma²",
    "m",
    "µm",
  ]);
  assert.deepEqual(parseLabel("Time [s]"), { name: "Time", unit: "s" });
  assert.equal(labelText("Temperature [degC]"), "Temperature (°C)");
  assert.deepEqual(parseLabel(undefined), { name: "", unit: "" });
});

test("curves become a plot: one unit for the axis, ascending x", () => {
  const plots = [
    { label: "Mean [degC]", points: [3, 1, 2] },
    { label: "Highest [degC]", points: [30, 10, 20] },
  ];
  const plot = plotOf({ title: "T", xLabel: "Time [s]", x: [2, 0, 1], plots }, "R");
  assert.deepEqual(plot.x, { name: "Time", unit: "s", values: [0, 1, 2] });
  assert.deepEqual(plot.y, { name: "Value", unit: "°C" });
  assert.deepEqual(
    plot.series.map((s) => [s.name, ...s.values]),
    [
      ["Mean", 1, 2, 3],
      ["Highest", 10, 20, 30],
    ],
  );
  const mixed = plotOf(
    {
      plots: [
        { label: "h [cm]", points: [1] },
        { label: "w [kg]", points: [2] },
      ],
    },
    "R",
  );
  assert.deepEqual(
    [mixed.title, mixed.y.unit, ...mixed.series.map((s) => s.name)],
    ["R", "", "h (cm)", "w (kg)"],
  );
  const matrix = { xLabel: "x", yLabel: "=y", xRange: [0, 2], yRange: [0, 1], zMatrix: [[5, 6]] };
  assert.equal(pictureCsv(matrix), "'=y \\ x,0.5,1.5\r\n0.5,5,6\r\n");
});

test("ticks are round, and their texts have one form", () => {
  assert.deepEqual(ticks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(tickTexts(ticks(0, 1e7, 5)), ["0", "2e6", "4e6", "6e6", "8e6", "10e6"]);
  for (const [low, high] of [
    [0, 1e5],
    [1e9, 1e9 + 500],
    [-1e-5, 5e-5],
    [1e17, 1e17 + 32],
    [0, 1e300],
    [-3e7, 0],
  ] as const) {
    const shown = ticks(low, high, 6);
    assert.ok(shown.length >= 1 && shown.length <= 14, String(shown));
    const texts = tickTexts(shown).filter((t) => t !== "0" && t !== "");
    assert.equal(new Set(texts.map((t) => t.split("e")[1])).size <= 1, true, String(texts));
  }
  assert.deepEqual([0.00012345, 123456, Number.NaN, -1.5].map(valueText), [
    "1.234e-4",
    "123500",
    "–",
    "−1.5",
  ]);
});
