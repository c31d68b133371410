/** The effective configuration with origins, and the limits of users. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { data } from "../../api.ts";
import { useRemote } from "../../remote.ts";
import { limitAmount, limitName } from "../../text/site.ts";
import { ErrorMessage, Loading } from "../messages.tsx";
import { Table } from "../table.tsx";
import { Nothing, Part } from "./part.tsx";

interface SettingRow {
  setting: string;
  value: string;
  origin: string;
  about: string;
}

type LimitsRow = { of: "everybody" | "plan" | "user"; name: string } & Record<
  string,
  string | number
>;

interface ConfigurationReply {
  settings: SettingRow[];
  limits: LimitsRow[];
}

const useConfiguration = () =>
  useRemote<ConfigurationReply>("site-configuration", (signal) =>
    data("site/site-configuration", {}, signal),
  );

export function Settings(): JSX.Element {
  const [text, setText] = useState("");
  const [changed, setChanged] = useState(false);
  const state = useConfiguration();
  if (state.error) return <ErrorMessage error={state.error} again={state.reload} />;
  if (!state.data) return <Loading what="the configuration" />;
  const wanted = text.trim().toLowerCase();
  const rows = state.data.settings.filter(
    (s) =>
      (!changed || s.origin !== "default") &&
      (wanted === "" || `${s.setting} ${s.about} ${s.value}`.toLowerCase().includes(wanted)),
  );
  return (
    <Part
      title="Configuration"
      note="As this supervisor uses it. Secrets are in files of their own."
      actions={
        <>
          <label class="tick">
            <input type="checkbox" checked={changed} onChange={() => setChanged(!changed)} />
            Without defaults
          </label>
          <label class="site-field">
            <span class="hidden">Only settings with</span>
            <input
              type="search"
              placeholder="Only settings with …"
              value={text}
              onInput={(e) => setText(e.currentTarget.value)}
            />
          </label>
        </>
      }
    >
      {rows.length === 0 ? (
        <Nothing>No setting matches.</Nothing>
      ) : (
        <Table
          label="Settings with their values and origins"
          class="flat settings"
          heads={["Setting", "Value", "From", "Meaning"]}
        >
          {rows.map((s) => (
            <tr key={s.setting} data-changed={s.origin !== "default"}>
              <th scope="row" class="mono">
                {s.setting}
              </th>
              <td class="mono value">{s.value}</td>
              <td class="value soft">{s.origin}</td>
              <td class="soft">{s.about}</td>
            </tr>
          ))}
        </Table>
      )}
    </Part>
  );
}

const ofWhom = (row: LimitsRow): string =>
  row.of === "everybody" ? "Everybody" : row.of === "plan" ? `Plan ${row.name}` : row.name;

export function LimitsOfUsers(): JSX.Element {
  const state = useConfiguration();
  if (state.error) return <ErrorMessage error={state.error} again={state.reload} />;
  if (!state.data) return <Loading what="limits" />;
  const rows = state.data.limits.filter((row) => Object.keys(row).length > 2);
  return (
    <Part title="Limits" note="Those of a plan replace those of everybody, those of a user both">
      {rows.length === 0 ? (
        <Nothing>
          There are none. The setting <code>queues.file</code> names the file of queues and limits.
        </Nothing>
      ) : (
        <Table label="Limits of users" heads={["Of", "Limits"]}>
          {rows.map((row) => (
            <tr key={`${row.of} ${row.name}`}>
              <th scope="row">{ofWhom(row)}</th>
              <td>
                {Object.entries(row)
                  .filter(([key]) => key !== "of" && key !== "name")
                  .map(([key, value]) => `${limitName(key)}: ${limitAmount(key, Number(value))}`)
                  .join(" · ")}
              </td>
            </tr>
          ))}
        </Table>
      )}
    </Part>
  );
}
