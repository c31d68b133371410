/** One operation: what it does, an example, its parameters and body, answers and error codes. */

import type { ComponentChildren, JSX } from "preact";
import { Example } from "../parts/example.tsx";
import { Table } from "../parts/table.tsx";
import { path, site } from "../site.ts";
import { sentence } from "../text/format.ts";
import {
  bodyOf,
  codesOf,
  curl,
  type OpenApi,
  type Operation,
  type Parameter,
  typeText,
} from "../text/openapi.ts";
import { SchemaTable } from "./schema.tsx";

export function OperationView(props: {
  document: OpenApi;
  operation: Operation;
  supervisor: boolean;
}): JSX.Element {
  const { document, operation, supervisor } = props;
  const body = bodyOf(operation);
  const responses = Object.entries(operation.responses ?? {});
  const good = responses.filter(([status]) => status < "400");
  const refusals = responses.filter(([status]) => status >= "400");
  return (
    <article class="doc card operation">
      <h1>{withCode(operation.summary ?? operation.path)}</h1>
      <p class="address">
        <span class="method" data-method={operation.method}>
          {operation.method}
        </span>{" "}
        <code>{operation.path}</code>
      </p>
      {paragraphs(operation.description).map((text) => (
        <p key={text}>{withCode(text)}</p>
      ))}
      {supervisor ? (
        <>
          <h2>Example</h2>
          <Example code={curl(document, operation, site.api || "ADDRESS")} />
          <p class="soft">
            TOKEN is an <a href={path("/account")}>API token</a> of yours.
          </p>
        </>
      ) : (
        <p class="soft">
          For pages of this site: the browser sends its sign-in. Programs use the supervisor's
          interface with an <a href={path("/account")}>API token</a>.
        </p>
      )}
      {operation.parameters && operation.parameters.length > 0 && (
        <>
          <h2>Parameters</h2>
          <Parameters document={document} parameters={operation.parameters} />
        </>
      )}
      {body && (
        <>
          <h2>Body</h2>
          <SchemaTable document={document} schema={body} label="Body" />
        </>
      )}
      {!body && operation.requestBody && (
        <>
          <h2>Body</h2>
          <p>{Object.keys(operation.requestBody.content ?? {}).join(" or ")}</p>
        </>
      )}
      <h2>Answer</h2>
      {good.map(([status, response]) => (
        <div key={status}>
          <p>
            <strong>{status}</strong> {sentence(response.description ?? "")}{" "}
            <span class="soft">{Object.keys(response.content ?? {}).join(" or ")}</span>
          </p>
          {Object.values(response.content ?? {}).map(
            ({ schema }, n) =>
              schema && (
                <SchemaTable
                  key={n}
                  document={document}
                  schema={schema}
                  label={`Answer ${status}`}
                />
              ),
          )}
        </div>
      ))}
      {refusals.length > 0 && (
        <details>
          <summary>Error codes</summary>
          <dl class="codes">
            {refusals.map(([status, response]) => (
              <div key={status}>
                <dt>{status}</dt>
                <dd>
                  {codesOf(response).map((code) => (
                    <code key={code}>{code}</code>
                  ))}
                </dd>
              </div>
            ))}
          </dl>
          <p class="soft">
            A refusal is <code>{"{state, code, error, advice, retry}"}</code>: a sentence, what to
            do, and whether the same request may succeed later.
          </p>
        </details>
      )}
    </article>
  );
}

function Parameters(props: { document: OpenApi; parameters: Parameter[] }): JSX.Element {
  return (
    <Table label="Parameters" class="fields" heads={["Name", "In", "Type"]}>
      {props.parameters.map((p) => (
        <tr key={`${p.in} ${p.name}`}>
          <th scope="row">
            <code>{p.name}</code>
            {p.required && <span class="required"> required</span>}
          </th>
          <td>{p.in}</td>
          <td>
            {typeText(props.document, p.schema ?? {})}
            {p.description && <span class="sub">{p.description}</span>}
            {p.schema?.pattern && <code class="sub">{p.schema.pattern}</code>}
          </td>
        </tr>
      ))}
    </Table>
  );
}

/** Return a text with its parts in backquotes as code. */
export const withCode = (text: string): ComponentChildren =>
  text.split("`").map((part, n) => (n % 2 === 1 ? <code key={n}>{part}</code> : part));

/** A description is wrapped text with empty lines between paragraphs. */
const paragraphs = (text: string | undefined): string[] =>
  (text ?? "")
    .split(/\n\s*\n/)
    .map((part) => part.replaceAll(/\s+/g, " ").trim())
    .filter(Boolean);
