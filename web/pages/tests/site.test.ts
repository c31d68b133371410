import assert from "node:assert/strict";
import { test } from "node:test";
import { turn } from "../src/every.ts";
import { auditPlace, following } from "../src/text/paging.ts";
import { isSeveral, type SupervisorRow, shardRows } from "../src/text/shards.ts";
import {
  brief,
  coreTime,
  curve,
  isUsable,
  type Load,
  limitAmount,
  limitName,
  megabytes,
  nodeWord,
  partitionWords,
  partOf,
  perSecond,
  phaseState,
  phaseWord,
  rates,
  waitWord,
} from "../src/text/site.ts";

const load = (mono: number, events: number, finished: number, submitted = finished): Load => ({
  at: 1000 + mono,
  mono,
  events,
  submitted,
  finished,
  active: 0,
  queued: 0,
  tasks: 0,
  agents: 0,
  storeBytes: 0,
  disks: [],
  loop: null,
  process: null,
  live: null,
});

test("nodes that take no jobs are told apart, with Slurm's marks in words", () => {
  const states = ["idle", "mixed", "allocated", "drained", "draining", "down*", "idle*", "mixed$"];
  assert.deepEqual(states.filter(isUsable), ["idle", "mixed", "allocated"]);
  assert.equal(nodeWord("down*"), "down, not responding");
  assert.equal(nodeWord("idle~"), "idle, powered off");
  assert.deepEqual(partitionWords("DRAIN"), ["drained", "It takes no new jobs."]);
  assert.deepEqual(partitionWords("DOWN"), ["down", "No job starts there."]);
});

test("rates are those between two answers of the same process", () => {
  assert.equal(rates(undefined, load(5, 10, 1)), null);
  assert.deepEqual(rates(load(5, 10, 1), load(10, 60, 2, 6)), {
    at: 1010,
    events: 10,
    finished: 0.2,
    submitted: 1,
  });
  // a restarted supervisor counts from 0, and two equal answers have no time between them
  assert.equal(rates(load(5, 10, 4), load(10, 60, 0)), null);
  assert.equal(rates(load(5, 10, 4), load(5, 10, 4)), null);
  assert.deepEqual([0, 0.25, 1234.4].map(perSecond), ["0/s", "0.3/s", "1,234/s"]);
});

test("limits have the unit that people use", () => {
  assert.deepEqual(
    [
      limitAmount("running", 12000),
      limitAmount("sequential", 7200),
      limitAmount("totalMemory", 1536),
      limitAmount("gpuHours", 0.25),
      limitAmount("later", 3),
    ],
    ["12,000", "2 h", "1.5 GB", "0.3 h", "3"],
  );
  assert.deepEqual([limitName("queued"), limitName("later")], ["Waiting runs", "later"]);
  assert.deepEqual([512, 2 ** 20 * 3].map(megabytes), ["512 MB", "3.0 TB"]);
  assert.deepEqual([36, 5400, 36_000].map(coreTime), ["36 s", "1.5 h", "10 h"]);
  assert.deepEqual([0.0042, 75].map(brief), ["4 ms", "1 min 15 s"]);
});

test("unknown states have words, too", () => {
  assert.deepEqual(["cpu_slot", "new_state", null].map(waitWord), [
    "a slot",
    "its start",
    "its start",
  ]);
  assert.deepEqual(["up", "newer"].map(phaseWord), ["connected", "newer"]);
  assert.deepEqual(["up", "away", "starting", "absent"].map(phaseState), [
    "completed",
    "error",
    "pending",
    "canceled",
  ]);
});

test("a bar is never longer than its whole", () => {
  assert.deepEqual([partOf(3, 2), partOf(1, 4), partOf(0, 0), partOf(5, null)], [1, 0.25, 0, 0]);
  assert.equal(curve([1]), "");
  assert.equal(curve([0, 2]), "0.0,23.0 100.0,1.0");
});

test("every other request is for the first data, and the others take turns", () => {
  assert.deepEqual(
    [0, 1, 2, 3, 4, 5, 6, 7].map((count) => turn(["a", "b", "c"], count)),
    ["a", "b", "a", "c", "a", "b", "a", "c"],
  );
  assert.equal(turn(["a"], 3), "a");
});

test("pages of a site with shards continue at a text, because numbers lose digits", () => {
  // as a router answers for two shards
  const answer = '{"next":5192296858534827628530496329220181,"cursor":"[85,12]"}';
  const page: { next: number; cursor: string } = JSON.parse(answer);
  assert.notEqual(BigInt(page.next), 5192296858534827628530496329220181n);
  assert.equal(following(page), "[85,12]");
  assert.deepEqual(auditPlace("[85,12]"), { before: 0, cursor: "[85,12]" });
  assert.deepEqual(auditPlace(""), { before: 0 });
  assert.equal(following({ next: 7, cursor: null }), null);
  // supervisors of the previous version have a number alone
  assert.equal(following({ next: 7 }), "7");
  assert.equal(following({ next: null }), null);
});

test("each shard has a row, also one that nobody serves", () => {
  const seen = (name: string, role: string, secs: number, epoch?: number): SupervisorRow => ({
    name,
    role,
    seenSecsAgo: secs,
    clockAheadSecs: 0,
    epoch: epoch ?? null,
    leaseEndsInSecs: epoch === undefined ? null : 5.5,
  });
  const first = [
    seen("a:1", "serving", 0.1, 7),
    seen("b:2", "standby", 0.4),
    seen("b:3", "standby", 2),
  ];
  const rows = shardRows({
    name: "a:1",
    supervisors: first,
    shards: {
      "0": { name: "a:1", supervisors: first },
      "2": { name: "c:4", supervisors: [seen("d:5", "away", 90)] },
    },
    missing: [1],
  });
  assert.deepEqual(
    rows.map((r) => [r.shard, r.owner, r.epoch, r.standbys, r.away, r.lag]),
    [
      [0, "a:1", 7, ["b:2", "b:3"], [], 2],
      [1, null, null, [], [], null],
      [2, "c:4", null, [], ["d:5"], null],
    ],
  );
  // a site without shards
  assert.deepEqual(
    shardRows({ name: "a:1", supervisors: first }).map((r) => [r.shard, r.owner, r.lag]),
    [[null, "a:1", 2]],
  );
  assert.deepEqual(
    [isSeveral({ name: "a:1", supervisors: first }), isSeveral({ name: "a:1", supervisors: [] })],
    [true, false],
  );
});
