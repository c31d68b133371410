/** The user's usage of a month: totals, bars by day with a table, and the months before. */

import type { JSX } from "preact";
import { useLocation } from "preact-iso";
import { data } from "../api.ts";
import { now } from "../clock.ts";
import { ErrorMessage, Loading } from "../parts/messages.tsx";
import { Table } from "../parts/table.tsx";
import { type Remote, useRemote } from "../remote.ts";
import { path } from "../site.ts";
import {
  amountOf,
  type Day,
  daysOf,
  MEASURES,
  type Measure,
  monthBefore,
  monthName,
  parseMeasure,
  parseMonth,
  type UsageReply,
  type UsageRow,
  valueText,
} from "../text/usage.ts";

/** Months in the list. */
const MONTHS = 12;

export interface UsageData {
  month: string;
  days: Remote<UsageReply>;
  months: Remote<UsageReply>;
}

export function useUsage(): UsageData {
  const month = parseMonth(useLocation().query.month, now.peek());
  const present = parseMonth(undefined, now.peek());
  const days = useRemote<UsageReply>(
    `usage ${month}`,
    (signal) => data("usage", { since: month, until: month, by: ["day"] }, signal),
    true,
  );
  const months = useRemote<UsageReply>(`months ${present}`, (signal) =>
    data("usage", { since: monthBefore(present, MONTHS - 1), by: ["month"] }, signal),
  );
  return { month, days, months };
}

const address = (month: string, measure: Measure): string =>
  path(`/account?month=${month}&measure=${measure}`);

export function Usage({ month, days, months }: UsageData): JSX.Element {
  const { route, query } = useLocation();
  const measure = parseMeasure(query.measure);
  const present = parseMonth(undefined, now.peek());
  const choices = Array.from({ length: MONTHS }, (_, n) => monthBefore(present, n));
  if (!choices.includes(month)) choices.push(month);
  return (
    <section class="card account-part" aria-labelledby="usage">
      <div class="account-head">
        <h2 id="usage">Usage</h2>
        <select
          aria-label="Month"
          value={month}
          onChange={(e) => route(address(e.currentTarget.value, measure))}
        >
          {choices.map((choice) => (
            <option value={choice} key={choice}>
              {monthName(choice)}
            </option>
          ))}
        </select>
      </div>
      {days.error && <ErrorMessage error={days.error} again={days.reload} />}
      {!days.data && !days.error && <Loading what="the usage" />}
      {days.data && (
        <>
          <fieldset class="tiles">
            <legend class="hidden">What the bars show</legend>
            {MEASURES.map(({ name, label }) => (
              <button
                type="button"
                key={name}
                aria-pressed={name === measure}
                onClick={() => route(address(month, name))}
              >
                <span class="soft">{label}</span>
                <strong class="number">{days.data && valueText(days.data.total, name)}</strong>
              </button>
            ))}
          </fieldset>
          <Days month={month} rows={days.data.rows} measure={measure} />
        </>
      )}
      {months.data && months.data.rows.length > 0 && (
        <UsageTable
          label="Last months"
          head="Month"
          rows={[...months.data.rows].reverse().map((row) => ({
            key: row.month ?? "",
            name: <a href={address(row.month ?? month, measure)}>{monthName(row.month ?? "")}</a>,
            row,
          }))}
        />
      )}
      <p class="soft small">
        What ended jobs used, by days and months in UTC. A “+” marks a lower bound: of some runs the
        value is not known. <a href={path("/docs/usage")}>What is counted</a>
      </p>
    </section>
  );
}

function Days(props: { month: string; rows: UsageRow[]; measure: Measure }): JSX.Element {
  const { month, rows, measure } = props;
  if (rows.length === 0) {
    return <p class="none">No job ended in {monthName(month)}.</p>;
  }
  const days = daysOf(month, rows);
  if (days.every(({ row }) => !row)) {
    return <p class="none">Of this month only the sum is known.</p>;
  }
  const used = days.filter((d): d is Day & { row: UsageRow } => d.row !== undefined);
  return (
    <>
      <Bars days={days} month={month} measure={measure} />
      <details>
        <summary>The days as a table</summary>
        <UsageTable
          label={`Days of ${monthName(month)}`}
          head="Day"
          rows={used.map(({ day, row }) => ({ key: String(day), name: String(day), row }))}
        />
      </details>
    </>
  );
}

function Bars(props: { days: Day[]; month: string; measure: Measure }): JSX.Element {
  const { days, month, measure } = props;
  const top = Math.max(...days.map(({ row }) => (row ? amountOf(row, measure) : 0)));
  const peak = days.find(({ row }) => row && amountOf(row, measure) === top)?.row;
  const label = MEASURES.find((m) => m.name === measure)?.label ?? "";
  const most = peak ? valueText(peak, measure) : "0";
  return (
    <figure class="bars-figure">
      <figcaption class="soft small">
        {label} by day, at most {most}
      </figcaption>
      <div
        class="bars"
        role="img"
        aria-label={`${label} by day in ${monthName(month)}, at most ${most}. The table below has the values.`}
      >
        {days.map(({ day, row }) => (
          <span key={day} title={row ? `${day}: ${valueText(row, measure)}` : `${day}: nothing`}>
            <i
              style={{
                height: `${row && top > 0 ? Math.max(2, (amountOf(row, measure) / top) * 100) : 0}%`,
              }}
            />
            <b>{day === 1 || day % 5 === 0 ? day : ""}</b>
          </span>
        ))}
      </div>
    </figure>
  );
}

function UsageTable(props: {
  label: string;
  head: string;
  rows: { key: string; name: JSX.Element | string; row: UsageRow }[];
}): JSX.Element {
  return (
    <Table label={props.label} heads={[props.head, ...MEASURES.map(({ label }) => label)]}>
      {props.rows.map(({ key, name, row }) => (
        <tr key={key}>
          <th scope="row">{name}</th>
          {MEASURES.map((m) => (
            <td class="number" key={m.name}>
              {valueText(row, m.name)}
            </td>
          ))}
        </tr>
      ))}
    </Table>
  );
}
