/** Below the results: output and files of the run, and the library of the app. */

import type { JSX } from "preact";
import type { AppInfo, AppStatus, RunOf } from "../apps.ts";
import type { SimulationView } from "../text/simulation.ts";
import { Library } from "./library.tsx";
import { Log, type LogState } from "./log.tsx";
import { RunFiles } from "./run_files.tsx";
import { Tabs } from "./tabs.tsx";

const LABELS = { log: "Log", files: "Files", library: "Library" };

export function Panels(props: {
  app: AppInfo;
  run: RunOf;
  jid: string;
  status: AppStatus;
  isRun: boolean;
  view: SimulationView;
  log: LogState;
  onView: (part: Partial<SimulationView>) => void;
}): JSX.Element {
  const { app, jid, view, isRun, onView } = props;
  const panels = isRun ? (["log", "files", "library"] as const) : (["library"] as const);
  const panel = isRun ? view.panel : "library";
  return (
    <div class="panels">
      <Tabs
        label="Output and files"
        items={panels.map((name) => ({ name, label: LABELS[name] }))}
        selected={panel}
        onSelect={(name) => onView({ panel: name })}
      >
        {panel === "log" && (
          <Log
            jid={jid}
            view={{
              tab: "log",
              stream: view.stream,
              attempt: 0,
              role: "",
              index: 0,
              edit: false,
              file: "",
            }}
            log={props.log}
            tasks={[]}
            attempts={[]}
            onChange={({ stream }) => stream && onView({ stream })}
          />
        )}
        {panel === "files" && <RunFiles run={props.run} status={props.status} />}
        {panel === "library" && <Library type={app.name} />}
      </Tabs>
    </div>
  );
}
