/** A terminal with a shell in a task of a job. It stays open while other tabs of the job are shown. */

import "./shell.css";
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { copyText } from "../clipboard.ts";
import { type ShellPlace, ShellSession } from "../shell.ts";
import { isOwn, ownerOf } from "../site.ts";
import type { JobView } from "../text/job_view.ts";
import { enteredTask, isOver, type ShellState, stateText } from "../text/shell_text.ts";
import { Command } from "./command.tsx";
import { notify } from "./frame.tsx";
import { loaded } from "./late.tsx";
import { Loading } from "./messages.tsx";
import type { Task, TasksReply } from "./tasks.tsx";
import type { TerminalView } from "./terminal_view.ts";

/** The job whose shell is opened as soon as its tab is shown: the user has asked for it. */
export const wantedShell = signal("");

interface Opened {
  place: ShellPlace;
  state: ShellState;
}

const nameOf = (task: { role: string; index: number }): string => `${task.role}/${task.index}`;

export function Shell(props: {
  jid: string;
  view: JobView;
  tasks: TasksReply | undefined;
  onChange: (change: Partial<JobView>) => void;
}): JSX.Element {
  const { jid, view, tasks } = props;
  const [opened, setOpened] = useState<Opened | undefined>();
  const [hasSelection, setSelection] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const after = useRef<HTMLButtonElement>(null);
  const open = useRef<{ session: ShellSession; terminal: TerminalView } | undefined>(undefined);
  const state = opened?.state;
  const isActive = state !== undefined && !isOver(state);
  const task = tasks && enteredTask(tasks.tasks, view.role, view.index);

  const end = (): void => {
    open.current?.session.close();
    open.current?.terminal.close();
    open.current = undefined;
  };
  const begin = async (place: ShellPlace): Promise<void> => {
    end();
    setOpened({ place, state: { name: "opening" } });
    const part = await loaded(() => import("./terminal_view.ts")).catch(() => undefined);
    // the place of the terminal is rendered by then
    await new Promise((resolve) => setTimeout(resolve));
    if (!box.current) return;
    if (!part) {
      const why = "The terminal did not arrive. Check the connection, then open it again.";
      return setOpened({ place, state: { name: "lost", why } });
    }
    const terminal = new part.TerminalView(box.current, {
      onText: (text) => {
        const isTyped = open.current?.session.type(text) ?? true;
        if (!isTyped) notify("The shell does not read; this text is not sent.", true);
      },
      onSize: (size) => open.current?.session.resize(size),
      onSelect: setSelection,
      onLeave: () => after.current?.focus(),
      onCopied: copy,
    });
    const session = new ShellSession(place, terminal.size, {
      onState: (next) => {
        if (open.current?.session !== session) return;
        setOpened({ place, state: next });
        if (isOver(next)) terminal.end();
      },
      onOutput: (data) => terminal.write(data),
    });
    open.current = { session, terminal };
    terminal.focus();
  };
  useEffect(() => {
    if (wantedShell.value !== jid || !task || !tasks) return;
    wantedShell.value = "";
    if (!isActive) void begin(placeOf(jid, task, tasks.attempt));
  });
  useEffect(() => {
    window.addEventListener("pagehide", end);
    return () => {
      window.removeEventListener("pagehide", end);
      end();
    };
  }, []);
  useEffect(() => {
    if (!isActive) return;
    // Ctrl+W deletes a word in shells, and closes the tab of a browser
    const warn = (event: BeforeUnloadEvent): void => event.preventDefault();
    window.addEventListener("beforeunload", warn);
    return () => window.removeEventListener("beforeunload", warn);
  }, [isActive]);

  if (!tasks) return <Loading what="tasks" />;
  if (!task && !opened) return <p class="pad soft">No task has been placed yet.</p>;
  return (
    <div class="pad shell">
      <div class="shell-head">
        {opened ? (
          <p role="status">{stateText(opened.state, taskText(opened.place))}</p>
        ) : (
          <Intro jid={jid} />
        )}
        {!isActive && task && <TaskChoice {...props} tasks={tasks} task={task} />}
        {!isActive && task && (
          <button
            type="button"
            class="main"
            onClick={() => void begin(placeOf(jid, task, tasks.attempt))}
          >
            {opened ? "Open again" : "Open a shell"}
          </button>
        )}
        {hasSelection && (
          <button type="button" onClick={() => copy(open.current?.terminal.selected ?? "")}>
            Copy selection
          </button>
        )}
      </div>
      {opened && (
        <>
          <section
            // another shell has another terminal
            key={placeKey(opened.place)}
            class="shell-screen"
            ref={box}
            aria-label={`Terminal in ${taskText(opened.place)}`}
          />
          <div class="shell-foot">
            <p class="soft small">
              <kbd>Shift</kbd>+<kbd>F6</kbd> leaves the terminal, <kbd>Tab</kbd> goes to the shell.{" "}
              <kbd>Ctrl</kbd>+<kbd>C</kbd> copies while text is selected, <kbd>Ctrl</kbd>+
              <kbd>V</kbd> pastes.
            </p>
            <button
              type="button"
              ref={after}
              onClick={() => {
                if (isActive) open.current?.session.close();
                else {
                  end();
                  setOpened(undefined);
                }
              }}
            >
              {isActive ? "Close the shell" : "Clear"}
            </button>
          </div>
        </>
      )}
      {!opened && task && (
        <>
          <p class="soft">The same in a terminal of your own:</p>
          <Command text={commandOf(jid, task, tasks)} />
        </>
      )}
    </div>
  );
}

function Intro({ jid }: { jid: string }): JSX.Element {
  return (
    <p class="soft intro">
      A shell in the directory and with the environment of a task. The task may be running, held or
      over; leaving the shell does not affect it.{" "}
      {isOwn(jid)
        ? "Each shell is recorded in the audit trail."
        : `It acts as user ${ownerOf(jid)}, and is recorded in the audit trail.`}
    </p>
  );
}

/** The task and the attempt that are entered, if there are several. */
function TaskChoice(props: {
  view: JobView;
  tasks: TasksReply;
  task: Task;
  onChange: (change: Partial<JobView>) => void;
}): JSX.Element {
  const { tasks, task, onChange } = props;
  return (
    <>
      {tasks.tasks.length > 1 && (
        <label>
          <span class="hidden">Task</span>
          <select
            value={nameOf(task)}
            onChange={(e) => {
              const [role = "", index = "0"] = e.currentTarget.value.split("/");
              onChange({ role, index: Number(index) });
            }}
          >
            {tasks.tasks.map((t) => (
              <option value={nameOf(t)} key={nameOf(t)}>
                {nameOf(t)}
                {t.heldUntil ? ", held" : ""}
              </option>
            ))}
          </select>
        </label>
      )}
      {tasks.attempts.length > 1 && (
        <label>
          <span class="hidden">Attempt</span>
          <select
            value={String(tasks.attempt)}
            onChange={(e) => onChange({ attempt: Number(e.currentTarget.value) })}
          >
            {tasks.attempts.map((a) => (
              <option value={String(a.number)} key={a.number}>
                Attempt {a.number}
              </option>
            ))}
          </select>
        </label>
      )}
    </>
  );
}

const placeOf = (jid: string, { role, index }: Task, attempt: number): ShellPlace => ({
  jid,
  role,
  index,
  attempt,
});

const placeKey = (place: ShellPlace): string => `${taskText(place)} ${place.jid}`;

const taskText = (place: ShellPlace): string => `${nameOf(place)}, attempt ${place.attempt}`;

function commandOf(jid: string, task: Task, tasks: TasksReply): string {
  const newest = tasks.attempts.at(-1)?.number ?? tasks.attempt;
  const which = tasks.tasks.length > 1 ? ` --role ${task.role} --index ${task.index}` : "";
  const attempt = tasks.attempt < newest ? ` --attempt ${tasks.attempt}` : "";
  return `jobscribe job shell ${jid}${which}${attempt}`;
}

function copy(text: string): void {
  void copyText(text).then(
    () => notify("The selection is copied."),
    () => notify("The browser does not permit to copy the selection.", true),
  );
}
