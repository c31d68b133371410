/** The page of jobs: filters, search, order, pages, live changes, and cancel of several jobs. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { data } from "../api.ts";
import { CancelDialog } from "../cancel.tsx";
import { now } from "../clock.ts";
import { usePaced } from "../every.ts";
import {
  isActive,
  type JobRow,
  type Progress,
  type ProgressEvent,
  type SearchReply,
  type Status,
  secondsOf,
  titleOf,
  withStatus,
} from "../jobs.ts";
import { useLive } from "../live.ts";
import { othersQuery } from "../me.ts";
import { FilterBar } from "../parts/filter_bar.tsx";
import { Frame } from "../parts/frame.tsx";
import { Icon } from "../parts/icons.tsx";
import { Empty, ErrorMessage, Loading } from "../parts/messages.tsx";
import { SavedViews } from "../parts/saved_views.tsx";
import { Scopes } from "../parts/scopes.tsx";
import { StateBadge } from "../parts/state.tsx";
import { useRemote } from "../remote.ts";
import { jobPath, path } from "../site.ts";
import {
  type Filters,
  formatFilters,
  furtherSearch,
  isFiltered,
  NO_FILTERS,
  type Order,
  parseFilters,
  searchName,
  searchRequest,
} from "../text/filters.ts";
import { ago, duration, moment, plural } from "../text/format.ts";
import { plainCommand } from "../text/shown_command.ts";

const PAGE = 50;
/** The time between two searches of a list about others, where something changes all the time. */
const OTHERS_MS = 2000;

export function JobsPage(): JSX.Element {
  const { url, route } = useLocation();
  const query = url.includes("?") ? url.slice(url.indexOf("?")) : "";
  const filters = parseFilters(query);
  const [progress, setProgress] = useState<Record<string, Progress>>({});
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [canceling, setCanceling] = useState(false);

  const list = useRemote<SearchReply>(
    formatFilters(filters),
    (signal) => data(searchName(filters), searchRequest(filters, PAGE), signal),
    true,
  );
  const rows = list.data?.jobs ?? [];

  const change = (change: Partial<Filters>): void => {
    setChosen(new Set());
    route(path("/jobs") + formatFilters({ ...filters, cursor: "", ...change }));
  };

  // a later page stays as it is
  const again = filters.cursor ? () => {} : list.reload;
  const reload = usePaced(again, filters.scope === "mine" ? 0 : OTHERS_MS);
  useLive(
    filters.scope === "mine" ? "" : othersQuery(),
    (name, event) => {
      if (name === "many") reload();
      else if (name === "status") {
        const status = event as Status;
        if (status.parallelStatus) keepProgress(status.computeJid, status.parallelStatus);
        const row = rows.find((r) => r.jid === status.computeJid);
        if (row) {
          list.patch((reply) => ({
            ...reply,
            jobs: reply.jobs.map((r) => (r.jid === row.jid ? withStatus(r, status) : r)),
          }));
        }
        // a new job, or one that may belong elsewhere now
        const moved = row && (row.state !== status.state || row.serial !== status.computeJobSerial);
        if (moved || !row) reload();
      } else if (name === "progress") {
        const report = event as ProgressEvent;
        keepProgress(report.computeJid, report.parallelStatus);
      }
    },
    list.reload,
    list.reload,
  );
  const keepProgress = (jid: string, report: Progress): void => {
    if (report.percentComplete !== undefined) setProgress((p) => ({ ...p, [jid]: report }));
  };

  const active = rows.filter((r) => isActive(r.state) && chosen.has(r.jid)).map((r) => r.jid);
  return (
    <Frame title="Jobs">
      <div class="page-head">
        <h1>Jobs</h1>
        <Scopes filters={filters} onChange={change} />
        <div class="buttons actions">
          <a class="button" href={path("/submit")}>
            New job
          </a>
        </div>
      </div>
      <SavedViews
        query={formatFilters({ ...filters, cursor: "" })}
        isPlain={!isFiltered(filters) && filters.sort === "changed" && !filters.ascending}
      />
      <FilterBar filters={filters} onChange={change} />
      {list.error && <ErrorMessage error={list.error} again={list.reload} />}
      {list.data === undefined && !list.error && <Loading what="jobs" />}
      {list.data !== undefined && rows.length === 0 && (
        <NoJobs filters={filters} early={furtherSearch(filters, list.data) !== null} />
      )}
      {rows.length > 0 && (
        <JobTable
          rows={rows}
          filters={filters}
          progress={progress}
          chosen={chosen}
          onChoose={setChosen}
          onSort={(sort, ascending) => change({ sort, ascending })}
          busy={list.loading}
        />
      )}
      {list.data && <Pages filters={filters} reply={list.data} />}
      {chosen.size > 0 && (
        <section class="bulk" aria-label="Chosen jobs">
          <span role="status">{plural(chosen.size, "job")} chosen</span>
          <button
            type="button"
            class="danger"
            disabled={active.length === 0}
            onClick={() => setCanceling(true)}
          >
            {active.length ? `Cancel ${active.length} …` : "None is active"}
          </button>
          <button type="button" onClick={() => setChosen(new Set())}>
            Clear
          </button>
        </section>
      )}
      {canceling && (
        <CancelDialog
          jids={active}
          onClose={() => setCanceling(false)}
          onDone={() => {
            setChosen(new Set());
            list.reload();
          }}
        />
      )}
    </Frame>
  );
}

function NoJobs({ filters, early }: { filters: Filters; early: boolean }): JSX.Element {
  if (early) {
    return (
      <Empty title="No job found yet.">
        <p>The search took too long and ended early: older jobs have not been searched.</p>
      </Empty>
    );
  }
  if (!isFiltered(filters) && !filters.cursor && filters.scope !== "mine") {
    return <Empty title="Nobody has jobs yet." />;
  }
  if (!isFiltered(filters) && !filters.cursor) {
    return (
      <Empty title="You have no jobs yet.">
        <p class="soft">
          Start one on the page <a href={path("/submit")}>New job</a>, with{" "}
          <code>jobscribe job submit</code>, from Python, or on the page of apps. It appears here at
          once.
        </p>
      </Empty>
    );
  }
  return (
    <Empty title="No job matches.">
      <p>
        <a
          href={
            path("/jobs") +
            formatFilters({ ...NO_FILTERS, scope: filters.scope, sort: filters.sort })
          }
        >
          Remove all filters
        </a>
      </p>
    </Empty>
  );
}

function Pages({ filters, reply }: { filters: Filters; reply: SearchReply }): JSX.Element | null {
  const further = furtherSearch(filters, reply);
  if (!reply.next && !filters.cursor && further === null) return null;
  const first = path("/jobs") + formatFilters({ ...filters, cursor: "" });
  const next = path("/jobs") + formatFilters({ ...filters, cursor: reply.next ?? "" });
  const isSame = further !== null && path("/jobs") + further === next;
  return (
    <nav class="pages" aria-label="Pages of the list">
      {filters.cursor && <a href={first}>First page</a>}
      {reply.next && !isSame && <a href={next}>Next page</a>}
      {further !== null && (
        <>
          <a href={path("/jobs") + further}>Search on</a>
          <span class="soft">
            The search ended early: older jobs have not been searched
            {isSame ? "." : ". It goes on in the order of changes."}
          </span>
        </>
      )}
    </nav>
  );
}

interface TableProps {
  rows: JobRow[];
  filters: Filters;
  progress: Record<string, Progress>;
  chosen: ReadonlySet<string>;
  onChoose: (chosen: ReadonlySet<string>) => void;
  onSort: (sort: Order, ascending: boolean) => void;
  busy: boolean;
}

function JobTable(props: TableProps): JSX.Element {
  const { rows, chosen, onChoose } = props;
  const all = useRef<HTMLInputElement>(null);
  const count = rows.filter((r) => chosen.has(r.jid)).length;
  useEffect(() => {
    if (all.current) all.current.indeterminate = count > 0 && count < rows.length;
  });
  const toggle = (jid: string): void => {
    const next = new Set(chosen);
    if (!next.delete(jid)) next.add(jid);
    onChoose(next);
  };
  return (
    <table class="jobs" aria-busy={props.busy}>
      <caption class="hidden">Jobs</caption>
      <thead>
        <tr>
          <th scope="col" class="check">
            <label>
              <input
                type="checkbox"
                ref={all}
                checked={count === rows.length}
                onChange={() =>
                  onChoose(count === rows.length ? new Set() : new Set(rows.map((r) => r.jid)))
                }
              />
              <span class="hidden">Choose all jobs of this page</span>
            </label>
          </th>
          <th scope="col">State</th>
          <th scope="col">Job</th>
          {props.filters.scope !== "mine" && (
            <th scope="col" class="user">
              User
            </th>
          )}
          <th scope="col" class="wide where">
            Where
          </th>
          <Sortable {...props} sort="submitted" label="Submitted" class="middle" />
          <Sortable {...props} sort="duration" label="Duration" class="middle" />
          <Sortable {...props} sort="changed" label="Changed" class="wide" />
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <Row
            key={row.jid}
            row={row}
            filters={props.filters}
            progress={props.progress[row.jid]}
            chosen={chosen.has(row.jid)}
            onToggle={() => toggle(row.jid)}
          />
        ))}
      </tbody>
    </table>
  );
}

function Sortable(props: TableProps & { sort: Order; label: string; class: string }): JSX.Element {
  const { filters, sort, label } = props;
  const current = filters.sort === sort;
  const direction = filters.ascending ? "ascending" : "descending";
  return (
    <th scope="col" class={props.class} aria-sort={current ? direction : "none"}>
      <button
        type="button"
        class="plain"
        onClick={() => props.onSort(sort, current && !filters.ascending)}
      >
        {label}
        {current && <Icon name={filters.ascending ? "up" : "down"} />}
      </button>
    </th>
  );
}

function Row(props: {
  row: JobRow;
  filters: Filters;
  progress: Progress | undefined;
  chosen: boolean;
  onToggle: () => void;
}): JSX.Element {
  const { row } = props;
  const title = titleOf(row);
  const secs = secondsOf(row, now.value);
  const took = secs === null ? "–" : duration(secs);
  const percent = row.state === "running" ? props.progress?.percentComplete : undefined;
  return (
    <tr data-jid={row.jid} data-state={row.state}>
      <td class="check">
        <label>
          <input type="checkbox" checked={props.chosen} onChange={props.onToggle} />
          <span class="hidden">Choose {title}</span>
        </label>
      </td>
      <td class="state-cell">
        <StateBadge state={row.state} />
        {percent !== undefined && <Bar percent={percent} />}
      </td>
      <td class="job-cell">
        <a href={jobPath(row.jid)} class="title">
          {title}
        </a>
        {row.name && row.command ? (
          <code class="sub">{plainCommand(row.command)}</code>
        ) : (
          <span class="sub soft">{row.jid}</span>
        )}
        <span class="sub soft narrow">
          {props.filters.scope === "mine" ? "" : `${row.uid} · `}
          {ago(row.queuedAt, now.value)} · {took}
        </span>
      </td>
      {props.filters.scope !== "mine" && (
        <td class="user mono">
          <a href={path("/jobs") + formatFilters({ ...props.filters, user: row.uid, cursor: "" })}>
            {row.uid}
          </a>
        </td>
      )}
      <td class="wide where soft">
        {[row.simulationType === "command" ? null : row.simulationType, row.driver, row.queue]
          .filter(Boolean)
          .join(" · ")}
      </td>
      <td class="middle number" title={moment(row.queuedAt)}>
        {ago(row.queuedAt, now.value)}
      </td>
      <td class="middle number">{took}</td>
      <td class="wide number soft">
        {ago(row.endedAt ?? row.startedAt ?? row.queuedAt, now.value)}
      </td>
    </tr>
  );
}

function Bar({ percent }: { percent: number }): JSX.Element {
  const value = Math.round(Math.max(0, Math.min(100, percent)));
  return (
    <span class="progress">
      <progress max={100} value={value} aria-label="Progress" />
      <span class="number soft">{value} %</span>
    </span>
  );
}
