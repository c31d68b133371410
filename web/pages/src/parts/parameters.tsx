/** What was submitted, in readable form, and a form that makes a new job from it. */

import "./parameters.css";
import type { JSX } from "preact";
import { data } from "../api.ts";
import { useRemote } from "../remote.ts";
import { commands, type DefinitionReply, groups, masked } from "../text/definition.ts";
import type { JobView } from "../text/job_view.ts";
import { CloneEditor } from "./clone_editor.tsx";
import { Notes } from "./definition_notes.tsx";
import { ErrorMessage, Loading } from "./messages.tsx";

export function Parameters(props: {
  jid: string;
  view: JobView;
  serial: number | undefined;
}): JSX.Element {
  const { jid, view } = props;
  const definition = useRemote<DefinitionReply>(
    `definition ${jid} ${props.serial}`,
    (signal) => data("job-definition", { computeJid: jid }, signal),
    true,
  );
  if (definition.error) return <ErrorMessage error={definition.error} again={definition.reload} />;
  if (!definition.data) return <Loading what="the parameters" />;
  if (view.edit) return <CloneEditor jid={jid} reply={definition.data} view={view} />;
  return <Shown reply={definition.data} />;
}

function Shown({ reply }: { reply: DefinitionReply }): JSX.Element {
  return (
    <div class="pad parameters">
      {commands(reply).map(([role, text]) => (
        <section key={role}>
          <h2>{role ? `Command of ${role}` : "Command"}</h2>
          <section class="code" tabIndex={0} aria-label={role ? `Command of ${role}` : "Command"}>
            <pre>{text}</pre>
          </section>
        </section>
      ))}
      <div class="parameter-groups">
        {groups(reply).map((group) => (
          <section key={group.title}>
            <h2>{group.title}</h2>
            <dl class="pairs">
              {group.rows.map(([name, value]) => (
                <div key={name}>
                  <dt>{name}</dt>
                  <dd>{value}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
      {reply.app && (
        <section>
          <h2>Inputs</h2>
          <section class="code" tabIndex={0} aria-label="Inputs">
            <pre>{masked(JSON.stringify(reply.definition.data, null, 2))}</pre>
          </section>
        </section>
      )}
      <Notes reply={reply} />
    </div>
  );
}
