/** The documentation: pages, sections, anchors, links and search hits. Pure. */

import { lexer, type Token, type Tokens, type TokensList } from "marked";
import MiniSearch from "minisearch";

export interface Doc {
  /** Name of the file without `.md`, as in addresses. */
  name: string;
  title: string;
  tokens: TokensList;
}

/** The order and the groups of etc/docs/mkdocs.yml; a test compares them. Others come last. */
export const GROUPS: [string, string[]][] = [
  ["Start", ["index", "cli"]],
  [
    "Run jobs",
    [
      "jobs",
      "roles",
      "queues",
      "arrays",
      "functions",
      "snakemake",
      "openpai",
      "exits",
      "metrics",
      "usage",
    ],
  ],
  ["Build a web application", ["front-end", "apps", "http", "python-api", "notifications"]],
  ["Clusters and containers", ["sbatch", "docker", "docker-image", "agent-install"]],
  [
    "Operate",
    [
      "operations",
      "site-setup",
      "site",
      "monitoring",
      "store",
      "scale",
      "compatibility",
      "debugging-the-system",
      "debugging",
      "profiles",
    ],
  ],
];

export function parseDocs(pages: Record<string, string>): Doc[] {
  return Object.entries(pages).map(([name, text]) => {
    const tokens = lexer(text);
    const first = tokens.find((t): t is Tokens.Heading => t.type === "heading");
    return { name, title: first ? plainText(first.tokens) : name, tokens };
  });
}

/** Return the groups with the pages that exist, and the remaining pages as a last group. */
export function grouped(docs: Doc[]): [string, Doc[]][] {
  const named = new Set(GROUPS.flatMap(([, names]) => names));
  const found = GROUPS.map(([group, names]): [string, Doc[]] => [
    group,
    names.flatMap((name) => docs.filter((d) => d.name === name)),
  ]);
  const others = docs.filter((d) => !named.has(d.name));
  return [...found, ["Other", others] as [string, Doc[]]].filter(([, pages]) => pages.length > 0);
}

/** Return the text of tokens without marks. */
export function plainText(tokens: Token[] | undefined): string {
  return (tokens ?? []).map(textOf).join("");
}

function textOf(token: Token): string {
  switch (token.type) {
    case "html":
      return "";
    case "space":
    case "hr":
    case "br":
      return " ";
    case "table": {
      const table = token as Tokens.Table;
      return [table.header, ...table.rows]
        .map((row) => row.map((cell) => plainText(cell.tokens)).join(" "))
        .join(" ");
    }
    case "list":
      return (token as Tokens.List).items.map((item) => plainText(item.tokens)).join(" ");
    default:
      return "tokens" in token && token.tokens ? plainText(token.tokens) : token.raw && text(token);
  }
}

const text = (token: Token): string => ("text" in token ? String(token.text) : token.raw);

/** Names of anchors as on GitHub: the second of the same name has the suffix -1. */
export class Slugs {
  readonly #seen = new Map<string, number>();

  of(heading: string): string {
    const slug = heading
      .trim()
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{M}\p{N}\p{Pc}\- ]/gu, "")
      .replaceAll(" ", "-");
    const count = this.#seen.get(slug) ?? 0;
    this.#seen.set(slug, count + 1);
    return count ? `${slug}-${count}` : slug;
  }
}

export interface Heading {
  depth: number;
  text: string;
  anchor: string;
}

/** Return the headings of a page with their anchors, in order. */
export function headings(tokens: Token[]): Heading[] {
  const slugs = new Slugs();
  return tokens
    .filter((t): t is Tokens.Heading => t.type === "heading")
    .map(({ depth, tokens: inner }) => {
      const shown = plainText(inner);
      return { depth, text: shown, anchor: slugs.of(shown) };
    });
}

export interface Link {
  /** page: another page or a part of it. here: a part of this page. away: another site. none: a
   * file of the repository, which is not in these pages. */
  kind: "page" | "here" | "away" | "none";
  to: string;
}

/** Return where a link of a page leads. */
export function linkOf(href: string): Link {
  if (href.startsWith("#")) return { kind: "here", to: href };
  if (/^https?:\/\//.test(href)) return { kind: "away", to: href };
  const found = /^(?:\.\/)?([\w-]+)\.md(#.*)?$/.exec(href);
  return found ? { kind: "page", to: `${found[1]}${found[2] ?? ""}` } : { kind: "none", to: "" };
}

interface Section {
  id: number;
  name: string;
  page: string;
  heading: string;
  anchor: string;
  body: string;
}

export interface Hit {
  name: string;
  page: string;
  heading: string;
  anchor: string;
  snippet: Piece[];
}

export interface Piece {
  text: string;
  hit: boolean;
}

const SNIPPET = 180;
const MOST_HITS = 40;

/** A search over the sections of all pages. */
export class DocSearch {
  readonly #sections: Section[];
  readonly #index: MiniSearch<Section>;

  constructor(docs: Doc[]) {
    this.#sections = docs.flatMap(sectionsOf).map((section, id) => ({ ...section, id }));
    this.#index = new MiniSearch<Section>({
      fields: ["heading", "page", "body"],
      tokenize: words,
      searchOptions: {
        prefix: (term) => term.length > 2,
        combineWith: "AND",
        boost: { heading: 4, page: 2 },
        fuzzy: (term) => (term.length > 5 ? 0.15 : false),
      },
    });
    this.#index.addAll(this.#sections);
  }

  /** Return the sections that have all words, the best first. */
  find(query: string): Hit[] {
    return this.#index
      .search(query)
      .slice(0, MOST_HITS)
      .flatMap(({ id, terms }) => {
        const section = this.#sections[id as number];
        return section ? [{ ...section, snippet: snippet(section.body, terms) }] : [];
      });
  }
}

const words = (shown: string): string[] => shown.split(/[^\p{L}\p{M}\p{N}_]+/u).filter(Boolean);

function sectionsOf(doc: Doc): Omit<Section, "id">[] {
  const slugs = new Slugs();
  const found = [{ name: doc.name, page: doc.title, heading: doc.title, anchor: "", body: "" }];
  for (const token of doc.tokens) {
    if (token.type === "heading") {
      const heading = plainText(token.tokens);
      const anchor = slugs.of(heading);
      if (token.depth > 1)
        found.push({ name: doc.name, page: doc.title, heading, anchor, body: "" });
    } else {
      const last = found[found.length - 1];
      if (last) last.body += `${textOf(token)} `;
    }
  }
  for (const section of found) section.body = section.body.replaceAll(/\s+/g, " ").trim();
  return found;
}

/** Return a pattern of these words, or null without words. */
export function wordsPattern(terms: string[]): RegExp | null {
  const escaped = terms
    .filter((w) => w.length > 1)
    .sort((a, b) => b.length - a.length)
    .map((w) => w.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return escaped.length ? new RegExp(`(${escaped.join("|")})`, "giu") : null;
}

/** Return a text in pieces, those that match apart. */
export function pieces(shown: string, pattern: RegExp | null): Piece[] {
  if (!pattern) return [{ text: shown, hit: false }];
  return shown
    .split(pattern)
    .map((piece, n) => ({ text: piece, hit: n % 2 === 1 }))
    .filter((piece) => piece.text !== "");
}

/** Return the part of a text with most of the words, in pieces. */
export function snippet(body: string, terms: string[]): Piece[] {
  const pattern = wordsPattern(terms);
  const found = pattern ? [...body.matchAll(pattern)] : [];
  const count = (from: number): number =>
    new Set(
      found
        .filter(({ index }) => index >= from && index < from + SNIPPET / 2)
        .map(([word]) => word.toLowerCase()),
    ).size;
  const best = found.reduce<RegExpMatchArray | undefined>(
    (a, b) => (a && count(a.index ?? 0) >= count(b.index) ? a : b),
    undefined,
  );
  const at = best?.index ?? -1;
  const begin = at <= SNIPPET / 3 ? 0 : body.indexOf(" ", at - SNIPPET / 3) + 1;
  const end = body.length <= begin + SNIPPET ? body.length : body.lastIndexOf(" ", begin + SNIPPET);
  const shown = `${begin ? "… " : ""}${body.slice(begin, end)}${end < body.length ? " …" : ""}`;
  return pieces(shown, pattern);
}
