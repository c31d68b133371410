/** A schema as a table of fields. Objects within it open below their field. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Table } from "../parts/table.tsx";
import { type OpenApi, objectOf, type Schema, typeText } from "../text/openapi.ts";

export function SchemaTable(props: {
  document: OpenApi;
  schema: Schema;
  label: string;
}): JSX.Element {
  const { document, schema, label } = props;
  const found = objectOf(document, schema);
  if (!found) return <p class="soft">{typeText(document, schema)}</p>;
  const fields = Object.entries(found.schema.properties ?? {});
  if (fields.length === 0) return <p class="soft">An object without fields of its own.</p>;
  return (
    <Table
      label={label}
      class="fields"
      heads={["Field", "Type", { text: "Default", class: "middle" }]}
    >
      {fields.map(([name, field]) => (
        <Field
          key={name}
          document={document}
          name={name}
          schema={field}
          required={found.schema.required?.includes(name) ?? false}
          label={`${label}, ${name}`}
        />
      ))}
    </Table>
  );
}

function Field(props: {
  document: OpenApi;
  name: string;
  schema: Schema;
  required: boolean;
  label: string;
}): JSX.Element {
  const { document, name, schema, required } = props;
  const [open, setOpen] = useState(false);
  const inner = objectOf(document, schema);
  return (
    <>
      <tr>
        <th scope="row">
          <code>{name}</code>
          {required && <span class="required"> required</span>}
        </th>
        <td>
          {typeText(document, schema)}
          {schema.description && <span class="sub">{schema.description}</span>}
          {schema.pattern && <code class="sub">{schema.pattern}</code>}
          {inner && (
            <button
              type="button"
              class="plain open"
              aria-expanded={open}
              onClick={() => setOpen(!open)}
            >
              {open ? "Hide" : "Show"} the fields
              <span class="hidden"> of {name}</span>
            </button>
          )}
        </td>
        <td class="middle">
          {schema.default !== undefined && <code>{JSON.stringify(schema.default)}</code>}
        </td>
      </tr>
      {open && inner && (
        <tr class="inner">
          <td colSpan={3}>
            <SchemaTable document={document} schema={inner.schema} label={props.label} />
          </td>
        </tr>
      )}
    </>
  );
}
