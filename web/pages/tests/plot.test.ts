import assert from "node:assert/strict";
import { test } from "node:test";
import {
  amount,
  axisLabel,
  csv,
  fileName,
  hasValues,
  linearRange,
  logTick,
  type PlotData,
  rows,
  scaled,
  sinceScale,
  sinceSteps,
  splitLines,
  ticks,
  timeTicks,
  widened,
} from "../src/text/plot_data.ts";

const PLOT: PlotData = {
  title: "Memory",
  x: { name: "Time", unit: "s", values: [1000, 1060], time: true, start: 1000 },
  y: { name: "Memory", unit: "B" },
  series: [
    { name: "main/0", values: [1024, null] },
    { name: '=cmd,"x"', values: [2048, 3072] },
  ],
};

test("units get the prefixes that people use", () => {
  const shown = [
    amount(1536, "B"),
    amount(3 * 2 ** 30, "B/s"),
    amount(0.0042, "V"),
    amount(12_500, "Hz"),
    amount(250e-6, "s"),
    amount(7200, "s"),
    amount(3.2e8, "cm⁻³"),
    amount(95.123, "%"),
    amount(0, "B"),
    amount(1234567, ""),
  ];
  assert.deepEqual(shown, [
    "1.5 KiB",
    "3 GiB/s",
    "4.2 mV",
    "12.5 kHz",
    "250 µs",
    "7,200 s",
    "320 ×10⁶ cm⁻³",
    "95.12 %",
    "0 B",
    "1.235 ×10⁶",
  ]);
});

test("ticks of one axis have one unit and the same number of decimals", () => {
  assert.deepEqual(ticks([0, 0.25, 0.5, 1], 0.25, scaled(1, "")), ["0.00", "0.25", "0.50", "1.00"]);
  assert.deepEqual(ticks([0, 2 ** 29, 2 ** 30], 2 ** 29, scaled(2 ** 30, "B")), [
    "0.0",
    "0.5",
    "1.0",
  ]);
  assert.deepEqual(ticks([-1e-17, 5e6], 5e6, scaled(5e6, "cm²/s")), ["0", "5"]);
  assert.equal(axisLabel("Rate", scaled(5e6, "cm²/s").unit), "Rate (×10⁶ cm²/s)");
  assert.deepEqual(
    [1e-3, 0.1, 100, 1e5, 2e6].map((v) => logTick(v, "")),
    ["10⁻³", "0.1", "100", "10⁵", "2×10⁶"],
  );
  assert.equal(logTick(65_536, "B"), "64 KiB");
});

test("times are local with their day, or since the start in a round unit", () => {
  const midnight = new Date(2026, 2, 2).getTime() / 1000;
  assert.deepEqual(timeTicks([midnight - 60, midnight, midnight + 60], 60), [
    "23:59\n1 Mar",
    "00:00\n2 Mar",
    "00:01",
  ]);
  assert.deepEqual(timeTicks([midnight, midnight + 10], 10), ["00:00:00", "00:00:10"]);
  assert.deepEqual(
    [59, 600, 20_000, 9e5].map((s) => sinceScale(s).unit),
    ["s", "min", "h", "d"],
  );
  for (const secs of [59, 600, 20_000, 9e5]) {
    const steps = sinceSteps(sinceScale(secs));
    assert.deepEqual(
      steps,
      [...steps].sort((a, b) => a - b),
    );
  }
});

test("ranges include zero if it is near, and are never empty", () => {
  assert.deepEqual(widened([5], 5, 86400005, 60), [-25, 35]);
  assert.deepEqual(widened([5, 6], 5, 6, 60), [5, 6]);
  assert.deepEqual(widened([5], 2, 3, 60), [2, 3]);
  assert.deepEqual(linearRange(2, 10)[0], 0);
  assert.ok(linearRange(100, 101)[0] > 99);
  assert.deepEqual(linearRange(0, 0), [0, 1]);
  assert.ok(linearRange(5, 5)[0] < 5 && linearRange(5, 5)[1] > 5);
  assert.deepEqual(linearRange(Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY), [0, 1]);
});

test("a limit far above the values does not make them flat", () => {
  const lines = [
    { name: "limit", value: 4096 },
    { name: "host", value: 2 ** 40 },
  ];
  const { near, far } = splitLines({ ...PLOT, lines });
  assert.deepEqual([near, far].flat(), lines);
  assert.deepEqual([near.length, far.length], [1, 1]);
});

test("CSV has units, exact values and no formulas, and the table has the same values", () => {
  assert.equal(
    csv(PLOT),
    'Time (UTC),Time since start (s),main/0 (B),"\'=cmd,""x"" (B)"\r\n' +
      "1970-01-01T00:16:40.000Z,0,1024,2048\r\n1970-01-01T00:17:40.000Z,60,,3072\r\n",
  );
  assert.deepEqual(rows(PLOT, 10, true), [
    ["0 s", "1 KiB", "2 KiB"],
    ["60 s", "–", "3 KiB"],
  ]);
  assert.equal(rows(PLOT, 1).length, 1);
  assert.equal(fileName("../../Memory & more", "csv"), "..-..-memory-more.csv");
  assert.ok(hasValues(PLOT));
  assert.ok(!hasValues({ ...PLOT, series: [{ name: "a", values: [null, Number.NaN] }] }));
});
