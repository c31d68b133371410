import assert from "node:assert/strict";
import { test } from "node:test";
import {
  formatFilters,
  isFiltered,
  NO_FILTERS,
  parseFilters,
  searchRequest,
} from "../src/text/filters.ts";
import { ago, bytes, duration, sentence } from "../src/text/format.ts";
import { eventParser, type ServerEvent } from "../src/text/server_events.ts";

test("an address and its filters are the same", () => {
  const query = "?state=error,running&queue=gpu&text=a+b&since=2026-01-31&sort=ended&order=asc";
  const filters = parseFilters(query);
  assert.deepEqual(filters.states, ["error", "running"]);
  assert.equal(filters.text, "a b");
  assert.deepEqual(parseFilters(formatFilters(filters)), filters);
  assert.ok(isFiltered(filters));
});

test("an invalid address has no filters", () => {
  const filters = parseFilters(
    "?state=odd&sort=name&order=x&since=yesterday&until=2026-1-1&queue=,,",
  );
  assert.deepEqual(filters, NO_FILTERS);
  assert.equal(formatFilters(filters), "");
  assert.ok(!isFiltered({ ...NO_FILTERS, sort: "ended", ascending: true, cursor: "7" }));
});

test("a search ends with the last moment of its last day", () => {
  const request = searchRequest({ ...NO_FILTERS, since: "2026-03-01", until: "2026-03-01" }, 50);
  assert.equal(request.since, new Date(2026, 2, 1).getTime() / 1000);
  assert.equal(request.until, new Date(2026, 2, 2).getTime() / 1000);
});

test("times and sizes have the unit that people use", () => {
  assert.deepEqual([0.04, 9.96, 59.6, 61, 3600, 7325, 90_000, -1].map(duration), [
    "0.0 s",
    "10.0 s",
    "1 min",
    "1 min 1 s",
    "1 h",
    "2 h 2 min",
    "1 d 1 h",
    "–",
  ]);
  assert.deepEqual(
    [99, 95, 40].map((at) => ago(at, 100)),
    ["just now", "5 s ago", "1 min ago"],
  );
  assert.deepEqual([0, 1023, 1536, 2 ** 20 * 250].map(bytes), [
    "0 B",
    "1023 B",
    "1.5 KiB",
    "250 MiB",
  ]);
  assert.deepEqual(["it waits", "Done.", " "].map(sentence), ["It waits.", "Done.", ""]);
});

test("events are read from pieces of any size", () => {
  const stream =
    ": hello\n\nid: 7-a\n\nevent: status\nid: 8-b\ndata: {\ndata: }\r\n\r\nnothing\n\n";
  for (const size of [1, 2, 3, 1000]) {
    const events: ServerEvent[] = [];
    const parse = eventParser((e) => events.push(e));
    for (let at = 0; at < stream.length; at += size) parse(stream.slice(at, at + size));
    assert.deepEqual(events, [
      { name: "message", data: "", id: "7-a" },
      { name: "status", data: "{\n}", id: "8-b" },
    ]);
  }
});
