/** The reference of the two HTTP interfaces, from their OpenAPI documents. */

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { useLocation, useRoute } from "preact-iso";
import { get } from "../api.ts";
import { Frame } from "../parts/frame.tsx";
import { Icon } from "../parts/icons.tsx";
import { Empty, ErrorMessage, Loading } from "../parts/messages.tsx";
import { OperationView, withCode } from "../reference/operation.tsx";
import { useRemote } from "../remote.ts";
import { path, site } from "../site.ts";
import { plural } from "../text/format.ts";
import { matching, type OpenApi, type Operation, operations } from "../text/openapi.ts";

const APIS = {
  supervisor: { name: "Supervisor", address: "/page-data/api-document" },
  site: { name: "Site", address: "/openapi.json" },
};
type Api = keyof typeof APIS;

const address = (api: Api, id = "", words = ""): string => {
  const query = new URLSearchParams();
  if (id) query.set("op", id);
  if (words) query.set("q", words);
  return path(`/reference/${api}`) + (query.size ? `?${query}` : "");
};

export function ReferencePage(): JSX.Element {
  const api: Api = useRoute().params.api === "site" ? "site" : "supervisor";
  const { op = "", q = "" } = useLocation().query;
  const document = useRemote<OpenApi>(api, (signal) => get(APIS[api].address, signal));
  const all = useMemo(
    () => (document.data ? operations(document.data, api === "site" ? site.base : "") : []),
    [document.data, api],
  );
  const shown = all.find((o) => o.id === op);
  return (
    <Frame title={shown ? `${shown.path} · API` : "API reference"} still>
      {document.error && <ErrorMessage error={document.error} again={document.reload} />}
      {!document.data && !document.error && <Loading what="the reference" />}
      {document.data && (
        <div class="reading reference">
          <Side api={api} all={all} current={op} words={q} />
          {shown ? (
            <OperationView
              key={shown.id}
              document={document.data}
              operation={shown}
              supervisor={api === "supervisor"}
            />
          ) : op ? (
            <Empty title="There is no such operation.">
              <p>
                <a href={address(api)}>All operations</a>
              </p>
            </Empty>
          ) : (
            <Overview document={document.data} all={matching(all, q)} api={api} words={q} />
          )}
        </div>
      )}
    </Frame>
  );
}

function Side(props: { api: Api; all: Operation[]; current: string; words: string }): JSX.Element {
  const { route } = useLocation();
  const [open, setOpen] = useState(false);
  const { api, current, words } = props;
  return (
    <div class="side">
      <search class="search">
        <Icon name="search" />
        <input
          type="search"
          aria-label="Search the operations"
          placeholder="Search"
          value={words}
          onInput={(e) => route(address(api, "", e.currentTarget.value), !current)}
        />
      </search>
      <button
        type="button"
        class="side-toggle"
        aria-expanded={open}
        aria-controls="operations"
        onClick={() => setOpen(!open)}
      >
        All operations
      </button>
      <nav id="operations" aria-label="API reference" data-open={open}>
        <section>
          <h2 class="small">Interface</h2>
          <ul>
            {(Object.keys(APIS) as Api[]).map((name) => (
              <li key={name}>
                <a href={address(name)} aria-current={name === api ? "true" : undefined}>
                  {APIS[name].name}
                </a>
              </li>
            ))}
          </ul>
        </section>
        {groups(matching(props.all, words)).map(([group, list]) => (
          <section key={group}>
            <h2 class="small">{group}</h2>
            <ul>
              {list.map((o) => (
                <li key={o.id}>
                  <a
                    href={address(api, o.id, words)}
                    aria-current={o.id === current ? "page" : undefined}
                    title={o.summary}
                    onClick={() => setOpen(false)}
                  >
                    {short(o)}
                  </a>
                </li>
              ))}
            </ul>
          </section>
        ))}
      </nav>
    </div>
  );
}

function Overview(props: {
  document: OpenApi;
  all: Operation[];
  api: Api;
  words: string;
}): JSX.Element {
  const { document, all, api, words } = props;
  return (
    <article class="doc card">
      <h1>{words ? "Operations" : `API reference: ${APIS[api].name.toLowerCase()}`}</h1>
      {!words && <p>{withCode(document.info.description ?? "")}</p>}
      <p class="soft" role="status">
        {plural(all.length, "operation")}
        {words ? ` with “${words}”` : ` of version ${document.info.version}`}.{" "}
        {!words && <a href={path("/docs/http")}>How to use it</a>}
      </p>
      {groups(all).map(([group, list]) => (
        <section key={group} class="operations">
          <h2>{group}</h2>
          <ul>
            {list.map((o) => (
              <li key={o.id}>
                <span class="method" data-method={o.method}>
                  {o.method}
                </span>
                <a href={address(api, o.id, words)}>
                  <code>{o.path}</code>
                </a>
                <span class="soft">{withCode(o.summary ?? "")}</span>
              </li>
            ))}
          </ul>
        </section>
      ))}
    </article>
  );
}

/** The path without what all have in common. */
const short = (operation: Operation): string =>
  operation.path
    .replace(site.base, "")
    .replace(/^\/(api\/)?/, "")
    .replace(/^page-data\//, "") || "/";

function groups(all: Operation[]): [string, Operation[]][] {
  const found = new Map<string, Operation[]>();
  for (const operation of all) {
    found.set(operation.group, [...(found.get(operation.group) ?? []), operation]);
  }
  return [...found];
}
