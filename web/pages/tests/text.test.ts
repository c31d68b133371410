import assert from "node:assert/strict";
import { test } from "node:test";
import {
  formatFilters,
  furtherSearch,
  isFiltered,
  NO_FILTERS,
  parseFilters,
  searchRequest,
} from "../src/text/filters.ts";
import { ago, bytes, duration, localTimes, moment, sentence } from "../src/text/format.ts";
import { formatView, liveQuery, parseView } from "../src/text/job_view.ts";
import { isOther, isRepeated, NO_PLACE, placeAfter } from "../src/text/log_place.ts";
import { measures } from "../src/text/measures.ts";
import { eventParser, type ServerEvent } from "../src/text/server_events.ts";
import { plainCommand } from "../src/text/shown_command.ts";
import { BLOCK_CHARS, KEPT_CHARS, TerminalText } from "../src/text/terminal.ts";
import { spans } from "../src/text/timeline.ts";

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

test("times of the supervisor are local", () => {
  const text = localTimes("running since 2026-11-27 13:00:59 UTC as pid 7");
  assert.equal(text, `running since ${moment(Date.UTC(2026, 10, 27, 13, 0, 59) / 1000)} as pid 7`);
});

test("an address of a job and its view are the same", () => {
  const task = { stream: "stderr", attempt: 2, role: "worker", index: 3 } as const;
  const view = { tab: "tasks", ...task, edit: false, file: "" } as const;
  const query = formatView(view);
  assert.equal(query, "?tab=tasks&stream=stderr&attempt=2&role=worker&index=3");
  assert.deepEqual(parseView(query), view);
  for (const more of ["tab=parameters&edit=1", "tab=files&file=a%2Fb.csv", "tab=debug&file=p"])
    assert.equal(formatView(parseView(`?${more}`)), `?${more}`);
  assert.equal(formatView(parseView("?edit=1&file=a")), "");
  assert.equal(formatView(parseView("?tab=odd&stream=x&attempt=-1&index=1e3")), "");
  assert.equal(liveQuery("J", parseView(""), 5), "?computeJid=J&logs=J&tail=5");
  assert.equal(liveQuery("J", parseView("?tab=files"), 5), "?computeJid=J");
});

test("output is the same in pieces of any size, and old output is dropped", () => {
  const raw = "\x1b[32mok\x1b[0m <b>1</b>\n10 %\r20 %\r30 %\nend";
  for (const size of [1, 3, 1000]) {
    const text = new TerminalText();
    for (let at = 0; at < raw.length; at += size) text.append(raw.slice(at, at + size));
    assert.deepEqual(text.blocks[0]?.pieces[0], ["ok", "t-2"]);
    assert.deepEqual(text.find(""), ["ok <b>1</b>", "30 %", "end"]);
    assert.deepEqual(text.find("END"), ["end"]);
  }
  const long = new TerminalText();
  const line = `${"x".repeat(99)}\n`;
  for (let n = 0; n < 30; n += 1) long.append(line.repeat(1000));
  assert.ok(long.dropped > 0 && long.dropped + KEPT_CHARS >= 3_000_000 - 64_000);
  assert.equal(long.find("x").length, 30_000 - long.dropped / 100);
});

test("long lines take no longer than short ones", { timeout: 60_000 }, () => {
  const text = new TerminalText();
  // searching again from each character would take minutes
  for (let n = 0; n < 200; n += 1) text.append(`${"x".repeat(9_999)}\n`);
  assert.equal(text.find("x").length, 200);
});

test("a line without end is cut, and what it overwrites is not kept", () => {
  const text = new TerminalText();
  for (let n = 0; n < 2000; n += 1) text.append(`\r${String(n).padStart(5)} ${"#".repeat(40)}`);
  assert.ok(text.blocks.length <= 2 && text.blocks.every((b) => b.length <= BLOCK_CHARS));
  assert.deepEqual(text.find("#"), [` 1999 ${"#".repeat(40)}`]);
  const raw = `first\n${"x".repeat(BLOCK_CHARS - 3)}\x1b[31m${"😀".repeat(BLOCK_CHARS)}\nlast`;
  for (const size of [1000, raw.length]) {
    const line = new TerminalText();
    for (let at = 0; at < raw.length; at += size) line.append(raw.slice(at, at + size));
    assert.ok(line.blocks.every((b) => b.length <= BLOCK_CHARS));
    assert.equal(line.blocks.map((b) => b.text).join(""), raw);
    const ends = line.blocks.map((b) => JSON.stringify(b.text.slice(-8)));
    assert.ok(
      ends.every((end) => !/\\ud8|\\u001b/.test(end)),
      ends.join(),
    );
    assert.deepEqual([line.find("first"), line.find("last")], [["first"], ["last"]]);
  }
});

test("the output of another run or attempt begins anew, and a repeated piece is left out", () => {
  const piece = (computeJobSerial: number, attempt: number, nextOffset: number, end = false) => ({
    computeJobSerial,
    attempt,
    nextOffset,
    end,
    offset: 0,
    dropped: 0,
    text: "",
  });
  const place = placeAfter(piece(7, 1, 20));
  assert.ok(!isOther(place, piece(7, 1, 30)) && !isRepeated(place, piece(7, 1, 30)));
  assert.ok(isRepeated(place, piece(7, 1, 20)) && !isRepeated(place, piece(7, 1, 20, true)));
  assert.ok(isOther(place, piece(7, 2, 5)) && !isRepeated(place, piece(7, 2, 5)));
  assert.ok(isOther(place, piece(8, 1, 5)) && isOther(NO_PLACE, piece(7, 1, 5)));
});

test("a search that ended early can go on in the order of changes", () => {
  const filters = {
    ...NO_FILTERS,
    text: "x",
    sort: "ended",
    ascending: true,
    cursor: "1:J",
  } as const;
  assert.equal(furtherSearch(filters, { searchedUntil: null }), null);
  assert.equal(furtherSearch(filters, { searchedUntil: 70 }), "?text=x&cursor=70");
});

test("phases and gaps are on one axis", () => {
  const found = spans(
    {
      phases: [
        { name: "queued", component: "supervisor", track: "run", since: 100, until: 110 },
        { name: "running", component: "command", track: "main/0", since: 110, until: null },
      ],
      waits: [{ since: 100, until: 109, secs: 9, text: "9.0 s for a slot", known: true }],
    },
    120,
  );
  assert.deepEqual(
    found.map((s) => [s.name, s.secs, s.left, s.width, s.open, s.gap]),
    [
      ["queued", 10, 0, 0.5, false, false],
      ["for a slot", 9, 0, 0.45, false, true],
      ["running", 10, 0.5, 0.5, true, false],
    ],
  );
  assert.deepEqual(spans({ phases: [], waits: [] }, 1), []);
  // phases that begin at the same moment are in the order in which they happened
  const phase = { component: "", track: "" };
  const placed = spans(
    {
      phases: [
        { ...phase, name: "start on its way", since: 100, until: 101 },
        { ...phase, name: "queued", since: 100, until: 100 },
        { ...phase, name: "image pull", since: 101, until: null },
      ],
      waits: [],
    },
    110,
  );
  assert.deepEqual(
    placed.map((s) => s.name),
    ["queued", "start on its way", "image pull"],
  );
});

test("usage that is known is listed with its units", () => {
  const none = { sum: null, max: null, known: 0, of: 2 };
  const found = measures({
    job: {
      tasks: 2,
      memoryBytes: { sum: 2 ** 21, max: 2 ** 20, known: 1, of: 2 },
      peakMemoryBytes: { sum: 3, max: 2 ** 30, known: 2, of: 2 },
      gpuPercent: none,
      cpuSecs: { sum: 61, max: 60, known: 2, of: 2 },
    },
  });
  assert.deepEqual(
    found.map((m) => [m.name, m.now?.text, m.now?.note, m.total?.text, m.largest?.text]),
    [
      ["CPU (100 % is one core)", undefined, undefined, "1 min 1 s", undefined],
      ["Memory", "2.0 MiB", "(1 of 2 tasks)", undefined, "1.0 GiB"],
    ],
  );
});

test("a command is shown as people write it", () => {
  const within = `'"'"'`;
  for (const [command, shown] of [
    ["echo hello", "echo hello"],
    [`sh -c 'echo ${within}a b${within}'`, `sh -c "echo 'a b'"`],
    [`sh -c 'echo ${within}$x${within}' 'y z'`, "sh -c 'echo '$x'' 'y z'"],
    [`echo 'a b' 'it${within}s' end`, `echo 'a b' "it's" end`],
  ] as const)
    assert.equal(plainCommand(command), shown);
});
