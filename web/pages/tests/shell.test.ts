import assert from "node:assert/strict";
import { test } from "node:test";
import { attemptText } from "../src/text/attempts.ts";
import {
  base64Of,
  bytesOf,
  enteredTask,
  type ShellState,
  stateText,
} from "../src/text/shell_text.ts";

// the modules below read facts of the site from the document
const window = { addEventListener: () => {}, removeEventListener: () => {} };
Object.assign(globalThis, { document: { querySelector: () => null }, window });
const { ShellSession } = await import("../src/shell.ts");

const encoded = (text: string): string => base64Of(new TextEncoder().encode(text));
const part = (offset: number, text: string, more: object = {}): string =>
  `event: shell\ndata: ${JSON.stringify({ offset, data: encoded(text), end: false, code: null, signal: null, detail: "", ...more })}\n\n`;

/** A site whose streams are given, and which accepts a few bytes of each input. */
class Site {
  typed = "";
  asked: string[] = [];
  streams: string[] = [];
  refusals = 0;

  answer = async (address: string, init: RequestInit): Promise<Response> => {
    this.asked.push(address);
    const { pathname } = new URL(address, "http://here");
    if (pathname === "/live-ticket") return Response.json({ ticket: "t", header: "X-Ticket" });
    if (pathname === "/live") {
      const text = this.streams.shift();
      if (text !== undefined) return new Response(text);
      return Response.json({ code: "notFound", error: "the shell has ended" }, { status: 404 });
    }
    if (pathname.endsWith("/shell-use")) {
      if (this.refusals-- > 0) return Response.json({ code: "x", retry: true }, { status: 503 });
      const { inputAt, input } = JSON.parse(String(init.body));
      const accepted = new TextDecoder().decode(bytesOf(input)).slice(0, 3);
      // a repetition of what has arrived types nothing
      this.typed += accepted.slice(Math.max(0, this.typed.length - inputAt));
      return Response.json({ inputAt: this.typed.length });
    }
    return Response.json({ state: "ok" });
  };
}

async function shown(
  work: (session: InstanceType<typeof ShellSession>) => void = () => {},
): Promise<[string, ShellState[]]> {
  const states: ShellState[] = [];
  let said = "";
  await new Promise<void>((resolve) => {
    const place = { jid: "AnnAnn01-sim00001-command", role: "main", index: 0, attempt: 1 };
    const session = new ShellSession(
      place,
      { rows: 24, cols: 80 },
      {
        onState: (state) => {
          states.push(state);
          if (["ended", "lost"].includes(state.name)) resolve();
        },
        onOutput: async (data) => {
          said += new TextDecoder().decode(data);
        },
      },
    );
    work(session);
  });
  return [said, states];
}

test("a shell goes on after a lost connection, and its exit is told", async (t) => {
  const site = new Site();
  t.mock.method(globalThis, "fetch", site.answer);
  site.streams = [
    part(0, "one ") + part(4, "two "),
    // of the second stream, the first part is known, and bytes are missing later
    part(4, "two three ") + part(20, "rest", { end: true, code: 3 }),
  ];
  const [said, states] = await shown();
  assert.equal(said, "one two three \r\n[6 bytes of output were lost with the connection]\r\nrest");
  assert.deepEqual(
    states.map((s) => s.name),
    ["open", "open", "resuming", "open", "ended"],
  );
  assert.ok(site.asked.filter((a) => a.startsWith("/live?"))[1]?.includes("offset=8"));
  const last = states.at(-1) as ShellState;
  assert.equal(stateText(last, "main/0"), "The shell has ended with exit status 3.");
});

test("input is typed once and in order, however often it is sent", async (t) => {
  const site = new Site();
  t.mock.method(globalThis, "fetch", site.answer);
  site.refusals = 1;
  let end = (): void => {};
  const ends = new Promise<string>((resolve) => {
    end = () => resolve(part(0, "", { end: true, code: 0 }));
  });
  t.mock.method(globalThis, "fetch", async (address: string, init: RequestInit) => {
    if (address.startsWith("/live?")) return new Response(await ends);
    const answer = await site.answer(address, init);
    if (site.typed === "echo typed") end();
    return answer;
  });
  await shown((session) => {
    for (const key of "echo typed") session.type(key);
  });
  assert.equal(site.typed, "echo typed");
});

test("a shell that the supervisor does not know any more is lost, with a sentence", async (t) => {
  const site = new Site();
  t.mock.method(globalThis, "fetch", site.answer);
  const [, states] = await shown();
  assert.match(stateText(states.at(-1) as ShellState, ""), /^The shell has ended\./);
});

test("the task that is entered is the named, held or failed one, or else the first", () => {
  const task = (role: string, state: string, heldUntil: number | null = null) => ({
    role,
    index: 0,
    state,
    heldUntil,
  });
  const tasks = [task("a", "succeeded"), task("b", "failed"), task("c", "held", 1)];
  assert.equal(enteredTask(tasks, "a", 0)?.role, "a");
  assert.equal(enteredTask(tasks, "", 0)?.role, "c");
  assert.equal(enteredTask(tasks.slice(0, 2), "", 0)?.role, "b");
  assert.equal(enteredTask([task("a", "running"), task("b", "running")], "", 0)?.role, "a");
  assert.equal(enteredTask([], "", 0), undefined);
});

test("an attempt has what decided it, and why another one followed or not", () => {
  const decided = { reason: "exit code 4", role: "main", index: 1 };
  const retry = { delaySecs: 60, reason: "exit code 4 is in retry.codes" };
  assert.equal(
    attemptText({ number: 1, decided, retry }),
    "Main/1: exit code 4. Retried after 1 min: exit code 4 is in retry.codes.",
  );
  assert.equal(
    attemptText({ number: 2, notRetried: "both retries are used" }),
    "Not retried: both retries are used.",
  );
  assert.equal(attemptText({ number: 1 }), "");
});
