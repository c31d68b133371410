/** What the supervisor says about a job that is not submitted yet: problems, dry run, equivalents. */

import type { JSX } from "preact";
import type { Remote } from "../remote.ts";
import { plural, sentence } from "../text/format.ts";
import type { Problem } from "../text/problem.ts";
import { Snippet } from "./copy.tsx";
import { ErrorMessage } from "./messages.tsx";

/** The answer to `job-check`. */
export interface Check {
  /** Version of OpenPAI's configuration; 0: a job file of jobscribe. */
  openpai: number;
  problems: Problem[];
  warnings: Problem[];
  jobs: { name: string; runs: number; lines?: string[] }[];
  command?: string;
  program?: string;
}

const SHOWN = 100;

export function ProblemList(props: {
  title: string;
  kind: "error" | "warning";
  problems: Problem[];
  onLine: ((line: number) => void) | undefined;
}): JSX.Element | null {
  const { problems, onLine } = props;
  if (problems.length === 0) return null;
  return (
    <section class="problems" data-kind={props.kind} aria-label={props.title}>
      <h2 class="small">{props.title}</h2>
      <ul>
        {problems.slice(0, SHOWN).map((p) => (
          <li key={`${p.line} ${p.path} ${p.problem}`}>
            {p.line && onLine && (
              <button type="button" class="plain line" onClick={() => onLine(p.line ?? 1)}>
                Line {p.line}
              </button>
            )}
            <span>
              {p.path && <code>{p.path}</code>} {sentence(p.problem)}{" "}
              {sentence(`right: ${p.right}`)}
            </span>
          </li>
        ))}
      </ul>
      {problems.length > SHOWN && <p class="soft">And {problems.length - SHOWN} more.</p>}
    </section>
  );
}

export function CheckPanel(props: {
  check: Remote<Check>;
  blank: boolean;
  /** Problems that stand beside the fields are only counted. */
  general: Problem[] | undefined;
  fileText: string | undefined;
  /** Of the job; a command line adds them afterwards. */
  tags: string[];
  onLine: ((line: number) => void) | undefined;
}): JSX.Element {
  const { check, blank } = props;
  const found = check.data;
  if (check.error && !blank) return <ErrorMessage error={check.error} again={check.reload} />;
  if (blank || !found) {
    return <p class="soft check-empty">{blank ? "What will run appears here." : "Checking …"}</p>;
  }
  const count = found.problems.length;
  const shown = props.general ?? found.problems;
  return (
    <>
      <p class={count ? "verdict bad" : "verdict"} role="status">
        {count
          ? `${plural(count, "problem")}${props.general ? ", marked in the form" : ""}.`
          : "No problems."}
        {found.openpai > 0 && ` A configuration of OpenPAI, version ${found.openpai}.`}
        {check.loading && <span class="soft busy"> Checking …</span>}
      </p>
      <ProblemList title="Problems" kind="error" problems={shown} onLine={props.onLine} />
      <ProblemList
        title="Warnings"
        kind="warning"
        problems={found.warnings}
        onLine={props.onLine}
      />
      {found.jobs.length > 0 && <DryRun check={found} />}
      {found.command && <Snippet title="Command line" text={found.command + tagging(props.tags)} />}
      {props.fileText && count === 0 && (
        <details>
          <summary>Job file (job.json)</summary>
          <Snippet title="Job file" text={props.fileText} />
        </details>
      )}
      {found.program && (
        <details>
          <summary>Python</summary>
          <Snippet title="Python" text={found.program} />
        </details>
      )}
    </>
  );
}

/** Return the lines of a shell that add the tags to the new job. */
const tagging = (tags: string[]): string =>
  tags.length ? `\njobscribe job tag COMPUTEJID add ${tags.map(shellWord).join(" ")}` : "";

const shellWord = (word: string): string =>
  /^[\w.:@/+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`;

function DryRun({ check }: { check: Check }): JSX.Element {
  const runs = check.jobs.reduce((sum, job) => sum + job.runs, 0);
  const title = `${plural(check.jobs.length, "job")}${runs > check.jobs.length ? `, ${plural(runs, "run")}` : ""}`;
  const left = check.jobs.filter((job) => !job.lines).length;
  const text = check.jobs.flatMap((job) => job.lines ?? []).join("\n");
  return (
    <section class="snippet" aria-label="Dry run">
      <div class="snippet-head">
        <h2 class="small">Dry run</h2>
        <span class="soft">{title}</span>
      </div>
      {/* biome-ignore lint/a11y/useSemanticElements: a text that scrolls, not a group of fields */}
      <pre tabIndex={0} role="group" aria-label="Dry run of each task">
        {text}
      </pre>
      {left > 0 && <p class="soft">{sentence(`${plural(left, "further job")} not shown`)}</p>}
    </section>
  );
}
