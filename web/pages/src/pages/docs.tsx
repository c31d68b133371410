/** The documentation: pages, table of contents, and a search over all of them. */

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { useLocation, useRoute } from "preact-iso";
import { get } from "../api.ts";
import { Markdown } from "../docs/markdown.tsx";
import { Frame } from "../parts/frame.tsx";
import { Icon } from "../parts/icons.tsx";
import { Empty, ErrorMessage, Loading } from "../parts/messages.tsx";
import { useRemote } from "../remote.ts";
import { path } from "../site.ts";
import {
  type Doc,
  DocSearch,
  grouped,
  type Heading,
  headings,
  parseDocs,
  wordsPattern,
} from "../text/docs.ts";
import { plural } from "../text/format.ts";

let held: Promise<Doc[]> | undefined;

/** Load all pages once; a failure is not kept. */
async function load(): Promise<Doc[]> {
  held ??= get<{ pages: Record<string, string> }>("/page-files/docs.json").then((said) =>
    parseDocs(said.pages),
  );
  try {
    return await held;
  } catch (error) {
    held = undefined;
    throw error;
  }
}

export const docAddress = (name: string, words = "", anchor = ""): string =>
  path(`/docs${name === "index" ? "" : `/${name}`}`) +
  (words ? `?q=${encodeURIComponent(words)}` : "") +
  (anchor && `#${anchor}`);

export function DocsPage(): JSX.Element {
  const name = useRoute().params.page ?? "index";
  const words = useLocation().query.q ?? "";
  const docs = useRemote<Doc[]>("docs", load);
  const doc = docs.data?.find((d) => d.name === name);
  const searching = name === "index" && words !== "";
  return (
    <Frame title={searching ? "Docs: search" : (doc?.title ?? "Docs")} still>
      {docs.error && <ErrorMessage error={docs.error} again={docs.reload} />}
      {!docs.data && !docs.error && <Loading what="the documentation" />}
      {docs.data && (
        <div class="reading">
          <Side docs={docs.data} current={name} words={words} searching={searching} />
          {searching ? (
            <Hits docs={docs.data} words={words} />
          ) : doc ? (
            <Article key={name} doc={doc} words={words} />
          ) : (
            <Empty title="There is no such page.">
              <p>
                <a href={path("/docs")}>All pages</a>
              </p>
            </Empty>
          )}
        </div>
      )}
    </Frame>
  );
}

function Side(props: {
  docs: Doc[];
  current: string;
  words: string;
  searching: boolean;
}): JSX.Element {
  const { route } = useLocation();
  const [open, setOpen] = useState(false);
  const groups = useMemo(() => grouped(props.docs), [props.docs]);
  return (
    <div class="side">
      <search class="search">
        <Icon name="search" />
        <input
          type="search"
          aria-label="Search the documentation"
          placeholder="Search"
          value={props.words}
          onInput={(e) => route(docAddress("index", e.currentTarget.value), props.searching)}
        />
      </search>
      <button
        type="button"
        class="side-toggle"
        aria-expanded={open}
        aria-controls="doc-pages"
        onClick={() => setOpen(!open)}
      >
        All pages
      </button>
      <nav id="doc-pages" aria-label="Documentation" data-open={open}>
        {groups.map(([group, pages]) => (
          <section key={group}>
            <h2 class="small">{group}</h2>
            <ul>
              {pages.map((doc) => (
                <li key={doc.name}>
                  <a
                    href={docAddress(doc.name)}
                    aria-current={
                      !props.searching && doc.name === props.current ? "page" : undefined
                    }
                    onClick={() => setOpen(false)}
                  >
                    {doc.title}
                  </a>
                </li>
              ))}
              {group === "Build a web application" && (
                <li>
                  <a href={path("/reference")}>API reference</a>
                </li>
              )}
            </ul>
          </section>
        ))}
      </nav>
    </div>
  );
}

function Hits({ docs, words }: { docs: Doc[]; words: string }): JSX.Element {
  const search = useMemo(() => new DocSearch(docs), [docs]);
  const hits = useMemo(() => search.find(words), [search, words]);
  return (
    <div class="hits">
      <h1>Search</h1>
      <p class="soft" role="status">
        {hits.length
          ? `${plural(hits.length, "section")} with “${words}”`
          : `Nothing has “${words}”.`}
      </p>
      {hits.length === 0 && <p>Try fewer or shorter words.</p>}
      <ol>
        {hits.map((hit) => (
          <li key={`${hit.name}#${hit.anchor}`} class="card">
            <a href={docAddress(hit.name, hit.name === "index" ? "" : words, hit.anchor)}>
              {hit.heading}
            </a>
            {hit.heading !== hit.page && <span class="soft"> · {hit.page}</span>}
            <p class="soft">
              {hit.snippet.map((piece, n) =>
                piece.hit ? <mark key={n}>{piece.text}</mark> : piece.text,
              )}
            </p>
          </li>
        ))}
      </ol>
    </div>
  );
}

function Article({ doc, words }: { doc: Doc; words: string }): JSX.Element {
  const { url } = useLocation();
  const parts = useMemo(() => headings(doc.tokens).filter((h) => [2, 3].includes(h.depth)), [doc]);
  const pattern = useMemo(() => wordsPattern(words.split(/\s+/)), [words]);
  useEffect(() => {
    const anchor = decodeURIComponent(location.hash.slice(1));
    const target = anchor && document.getElementById(anchor);
    if (target) target.scrollIntoView();
  }, [url, doc]);
  return (
    <>
      <article class="doc card">
        <Markdown tokens={doc.tokens} pattern={pattern} />
      </article>
      {parts.length > 1 && <Contents parts={parts} />}
    </>
  );
}

function Contents({ parts }: { parts: Heading[] }): JSX.Element {
  return (
    <nav class="contents" aria-labelledby="on-this-page">
      <h2 class="small" id="on-this-page">
        On this page
      </h2>
      <ul>
        {parts.map((part) => (
          <li key={part.anchor} data-depth={part.depth}>
            <a href={`#${part.anchor}`}>{part.text}</a>
          </li>
        ))}
      </ul>
    </nav>
  );
}
