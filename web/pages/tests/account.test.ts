import assert from "node:assert/strict";
import { test } from "node:test";
import { signInSentence } from "../src/text/cluster_sign_in.ts";
import {
  daysOf,
  monthBefore,
  parseMeasure,
  parseMonth,
  type UsageRow,
  valueText,
} from "../src/text/usage.ts";

const row = (fields: Partial<UsageRow>): UsageRow => ({
  runs: 0,
  cpuSecs: 0,
  gpuSecs: 0,
  wallSecs: 0,
  cpuUnknown: 0,
  wallUnknown: 0,
  ...fields,
});
const NOW = Date.UTC(2026, 0, 31, 23) / 1000;

test("months are UTC months, and other texts are the present one", () => {
  assert.equal(parseMonth(undefined, NOW), "2026-01");
  assert.equal(parseMonth("2025-12", NOW), "2025-12");
  for (const text of ["2025-13", "2025", "x", "2025-12-01"]) {
    assert.equal(parseMonth(text, NOW), "2026-01");
  }
  assert.equal(monthBefore("2026-01", 0), "2026-01");
  assert.equal(monthBefore("2026-01", 1), "2025-12");
  assert.equal(monthBefore("2026-01", 13), "2024-12");
});

test("each day of a month has its place, also without usage", () => {
  const days = daysOf("2024-02", [row({ day: "2024-02-29", runs: 3 })]);
  assert.equal(days.length, 29);
  assert.equal(days[28]?.row?.runs, 3);
  assert.equal(days[0]?.row, undefined);
  // of older usage only the month is known
  assert.ok(daysOf("2024-02", [row({ day: "2024-02", runs: 3 })]).every((d) => !d.row));
});

test("a sum that does not have everything is a lower bound", () => {
  assert.equal(valueText(row({ cpuSecs: 7200, cpuUnknown: 1 }), "cpu"), "2 h+");
  assert.equal(valueText(row({ gpuSecs: 90 }), "gpu"), "1 min 30 s");
  assert.equal(valueText(row({ wallSecs: 0, wallUnknown: 2 }), "wall"), "0 s+");
  assert.equal(valueText(row({ runs: 4, cpuUnknown: 1 }), "jobs"), "4");
  assert.equal(parseMeasure("gpu"), "gpu");
  assert.equal(parseMeasure("none"), "jobs");
});

test("the dialog of a cluster says what the other side answers", () => {
  assert.equal(signInSentence({ cluster: "alpha" }), "");
  assert.equal(signInSentence({ reason: "no-creds", sentence: "sign in first" }), "");
  const refused = { reason: "invalid-creds", sentence: "alpha refused it", advice: "wait" };
  assert.equal(signInSentence(refused, true), "Alpha refused it. Wait.");
  assert.match(signInSentence({ reason: "invalid-creds" }, true), /refused this/);
  assert.equal(signInSentence({}, true), "This did not work.");
});
