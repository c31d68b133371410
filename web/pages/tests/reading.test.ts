import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { copyText } from "../src/text/copy_text.ts";
import {
  DocSearch,
  GROUPS,
  grouped,
  headings,
  linkOf,
  parseDocs,
  plainText,
  Slugs,
  snippet,
} from "../src/text/docs.ts";
import {
  codesOf,
  curl,
  example,
  matching,
  type OpenApi,
  objectOf,
  operations,
  typeText,
} from "../src/text/openapi.ts";

// the tests run in web/pages
const DOCS = path.resolve("../../docs");
const shipped = Object.fromEntries(
  readdirSync(DOCS)
    .filter((name) => name.endsWith(".md"))
    .map((name) => [name.slice(0, -3), readFileSync(path.join(DOCS, name), "utf8")]),
);
const docs = parseDocs(shipped);

test("the documentation has the groups and the order of the documentation site", () => {
  const nav = readFileSync(path.resolve("../../etc/docs/mkdocs.yml"), "utf8");
  const found: [string, string[]][] = [];
  for (const line of nav.split("nav:")[1]?.split("validation:")[0]?.split("\n") ?? []) {
    const group = /^ {2}- ([\w ]+):$/.exec(line)?.[1];
    if (group) found.push([group, []]);
    const page = /docs\/([\w-]+)\.md/.exec(line)?.[1];
    if (page) found.at(-1)?.[1].push(page);
  }
  assert.deepEqual(
    GROUPS,
    found.filter(([, pages]) => pages.length > 0),
  );
  assert.deepEqual(
    grouped(docs).flatMap(([, pages]) => pages.length),
    GROUPS.map(([, pages]) => pages.length),
    "no page is in no group",
  );
});

test("each link between pages leads to a page and an anchor", () => {
  const anchors = new Map(
    docs.map((d) => [d.name, new Set(headings(d.tokens).map((h) => h.anchor))]),
  );
  const wrong: string[] = [];
  for (const [name, text] of Object.entries(shipped)) {
    for (const [, href] of text.matchAll(/\]\(([^)\s]+)\)/g)) {
      const link = linkOf(href ?? "");
      const [page, anchor] = link.to.split("#");
      const target = link.kind === "here" ? name : page;
      const known = anchors.get(target ?? "");
      if (link.kind === "page" && !known) wrong.push(`${name}: ${href}`);
      if (link.kind !== "away" && anchor && !known?.has(anchor)) wrong.push(`${name}: ${href}`);
    }
  }
  assert.deepEqual(wrong, []);
  // ids of the frame
  for (const taken of ["main", "app"]) {
    assert.ok([...anchors.values()].every((names) => !names.has(taken)));
  }
});

test("anchors are those of GitHub", () => {
  const slugs = new Slugs();
  assert.equal(slugs.of("Run a `job`: why?"), "run-a-job-why");
  assert.equal(slugs.of("a_b - C"), "a_b---c");
  assert.equal(slugs.of("Ende"), "ende");
  assert.equal(slugs.of("Ende"), "ende-1");
  assert.deepEqual(linkOf("site.md#x"), { kind: "page", to: "site#x" });
  assert.deepEqual(linkOf("../README.md"), { kind: "none", to: "" });
  assert.deepEqual(linkOf("javascript:alert(1)"), { kind: "none", to: "" });
  assert.equal(linkOf("https://example.org").kind, "away");
});

test("a search finds sections by words, the headings first, and marks the words", () => {
  const search = new DocSearch(docs);
  const hits = search.find("rotate secrets");
  assert.equal(hits[0]?.heading, "Rotate secrets");
  assert.equal(hits[0]?.name, "site");
  assert.equal(hits[0]?.anchor, "rotate-secrets");
  assert.ok(
    search.find("quota").some((h) => h.snippet.some((p) => p.hit && /quota/i.test(p.text))),
  );
  assert.deepEqual(search.find("xyzzyplugh"), []);
  const far = `${"word ".repeat(100)}first second third`;
  assert.match(
    snippet(far, ["first", "second"])
      .map((p) => (p.hit ? `[${p.text}]` : p.text))
      .join(""),
    /^… .*\[first\] \[second\] third$/,
  );
});

test("text of pages is text, and of a terminal session the commands are copied", () => {
  const [doc] = parseDocs({ a: "# A `b` *c*\n\n<img src=x onerror=alert(1)> and <b>bold</b>\n" });
  assert.equal(doc?.title, "A b c");
  assert.ok(!plainText(doc?.tokens).includes("onerror"));
  assert.equal(copyText("$ one --x\noutput\n$ two"), "one --x\ntwo");
  assert.equal(copyText("a = 1\nb = 2"), "a = 1\nb = 2");
});

const API: OpenApi = {
  info: { title: "x", version: "1" },
  paths: {
    "/api/job-search": {
      post: {
        summary: "Search jobs",
        requestBody: {
          content: { "application/json": { schema: { $ref: "#/components/schemas/S" } } },
        },
        responses: { "404": { description: "notFound or notHere" } },
      },
    },
    "/api/jobs": {
      get: { summary: "All", parameters: [{ name: "uid", in: "query", required: true }] },
    },
    "/livez": { get: {} },
    "/api/v2/jobs": { get: {} },
    "/api/v1/jobs": { get: {} },
  },
  components: {
    schemas: {
      S: {
        type: "object",
        required: ["name", "inner"],
        properties: {
          name: { type: "string", minLength: 1, maxLength: 64 },
          inner: { anyOf: [{ $ref: "#/components/schemas/T" }, { type: "null" }] },
          many: { type: "array", items: { enum: ["a", "b"] }, maxItems: 8 },
          other: { type: ["integer", "null"], exclusiveMinimum: 0, maximum: 9 },
        },
      },
      T: {
        type: "object",
        required: ["again"],
        properties: { again: { $ref: "#/components/schemas/T" } },
      },
    },
  },
};

test("operations are in groups, and found by words", () => {
  const all = operations(API);
  assert.deepEqual(
    all.map((o) => [o.group, o.id]),
    [
      ["job", "post /api/job-search"],
      ["job", "get /api/jobs"],
      ["OpenPAI", "get /api/v1/jobs"],
      ["OpenPAI", "get /api/v2/jobs"],
      ["Others", "get /livez"],
    ],
  );
  assert.deepEqual(
    matching(all, "SEARCH post").map((o) => o.path),
    ["/api/job-search"],
  );
  assert.deepEqual(codesOf({ description: "notFound or notHere" }), ["notFound", "notHere"]);
});

test("schemas are words, also those that contain themselves", () => {
  const fields = API.components?.schemas?.S?.properties ?? {};
  const words = Object.fromEntries(
    Object.entries(fields).map(([name, schema]) => [name, typeText(API, schema)]),
  );
  assert.deepEqual(words, {
    name: "string, 1 to 64 characters",
    inner: "T or null",
    many: 'array of "a" or "b", at most 8 items',
    other: "integer or null, above 0 and at most 9",
  });
  assert.equal(objectOf(API, fields.inner ?? {})?.name, "T");
  assert.equal(objectOf(API, fields.name ?? {}), null);
  assert.equal(
    JSON.stringify(example(API, { $ref: "#/components/schemas/S" })),
    '{"name":"…","inner":{"again":{"again":{"again":{}}}}}',
  );
});

test("an example is a command line whose token is not in it", () => {
  const all = operations(API);
  const [search, list] = all;
  assert.ok(search && list);
  assert.equal(
    curl(API, list, "https://x"),
    "curl -sS 'https://x/api/jobs?uid=…' \\\n  -H \"Authorization: Bearer $TOKEN\"",
  );
  assert.match(
    curl(API, search, "https://x"),
    /-X POST 'https:\/\/x\/api\/job-search'.*\n.*\n.*json/,
  );
});
